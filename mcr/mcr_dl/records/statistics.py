# SPDX-License-Identifier: Apache-2.0
"""Statistics of one rank's records, by operation, message size and backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from mcr_dl.base.operations import bandwidths
from mcr_dl.records.log import Record

_TRIM = 0.1  # the fraction of outliers on either side that means leave out, as DeepSpeed's do
_GIGABITS = 8.0  # of a gigabyte


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without the largest and the smallest tenth; 0 for no values."""
    if not values:
        return 0.0
    cut = round(len(values) * _TRIM)
    kept = sorted(values)[cut : len(values) - cut]
    return float(np.mean(kept))


def size_text(nbytes: int) -> str:
    """Bytes as in DeepSpeed's table: 4.0 KB is 4096."""
    value, unit = float(nbytes), 0
    names = ("B", "KB", "MB", "GB", "TB", "PB")
    while value >= 1024 and unit + 1 < len(names):
        value, unit = value / 1024, unit + 1
    return f"{round(value, 2)} {names[unit]}"


def rates(record: Record) -> tuple[float, float]:
    """Algorithm and bus bandwidth of a completed call, in Gbps (10^9 bits per second), by nccl-tests' rules."""
    if not record.latency:
        return 0.0, 0.0
    name = "send" if record.peer else record.name
    algbw, busbw = bandwidths(name, record.nbytes, record.latency / 1000, len(record.group.ranks))
    return algbw * _GIGABITS, busbw * _GIGABITS


@dataclass(frozen=True)
class Line:
    """A set of calls, under DeepSpeed's names.

    Latencies are in ms from the call to its end, bandwidths in Gbps; means leave outliers out.
    """

    count: int
    total_latency_ms: float
    avg_latency_ms: float
    p50_latency_ms: float
    p99_latency_ms: float
    tput_avg_gbps: float
    busbw_avg_gbps: float

    @staticmethod
    def of(records: Sequence[Record]) -> Line:
        """Statistics of completed calls."""
        latencies = [(record.latency or 0) / 1e6 for record in records]
        bandwidth = [rates(record) for record in records]
        return Line(
            count=len(records),
            total_latency_ms=sum(latencies),
            avg_latency_ms=trimmed_mean(latencies),
            p50_latency_ms=float(np.percentile(latencies, 50)),
            p99_latency_ms=float(np.percentile(latencies, 99)),
            tput_avg_gbps=trimmed_mean([algbw for algbw, _ in bandwidth]),
            busbw_avg_gbps=trimmed_mean([busbw for _, busbw in bandwidth]),
        )


def label(record: Record) -> str:
    """The operation, and its caller if the record has it: DeepSpeed's names."""
    return record.name if record.caller is None else f"{record.name} | [Caller Func: {record.caller}]"


def ended(records: Iterable[Record]) -> list[Record]:
    """The completed records; the time of a failed call means nothing."""
    return [record for record in records if record.state == "completed"]


Key = tuple[str, int]


def by_size(records: Iterable[Record]) -> dict[Key, list[Record]]:
    """Completed records by operation and message size, in that order."""

    def key(record: Record) -> Key:
        return label(record), record.nbytes

    return {each: list(part) for each, part in groupby(sorted(ended(records), key=key), key=key)}


def by_backend(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Completed records by the candidate that did them."""
    parts: dict[str, list[Record]] = {}
    for record in ended(records):
        parts.setdefault(record.backend or "-", []).append(record)
    return dict(sorted(parts.items()))
