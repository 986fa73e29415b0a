# SPDX-License-Identifier: Apache-2.0
"""Records and traces made by hand, for tests of their views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcr_dl.records.log import Record, RecordedGroup
from mcr_dl.trace import _clock
from mcr_dl.trace._files import Trace
from mcr_dl.trace._regions import Region

MS = 1_000_000
WORLD = (0, 1)


def group_of(rank: int = 0, name: str = "default", ranks: tuple[int, ...] = WORLD) -> RecordedGroup:
    """A group as one of its ranks has recorded it."""
    return RecordedGroup(name, 0, rank, ranks)


def record_of(op: str, begin: float, end: float | None, **more: Any) -> Record:
    """A blocking call of 1000 floats from `begin` to `end`, in ms, unless `more` says otherwise."""
    values: dict[str, Any] = {**dict.fromkeys(Record._fields), **Record._field_defaults}
    values.update(
        number=1, seq=1, group=group_of(), op=op, vectored=False, peer=op in ("send", "recv"), dtype="float32",
        backend="mpi", asynchronous=False, in_count=0, out_count=1000, in_splits=(), out_splits=(), truncated=False,
        nbytes=4000, fused=False, issue=round(begin * MS), start=round(begin * MS), waited=0, thread=7,
        end=None if end is None else round(end * MS), state="issued" if end is None else "completed",
    )  # fmt: skip
    return Record(**{**values, **more})


def work_of(op: str, begin: float, start: float, end: float, wait: tuple[float, float] | None, **more: Any) -> Record:
    """An asynchronous call that was handed over at `start` and waited for in `wait`."""
    times: dict[str, Any] = {"asynchronous": True, "start": round(start * MS)}
    if wait is not None:
        first, last = round(wait[0] * MS), round(wait[1] * MS)
        times.update(wait_begin=first, wait_end=last, waited=last - first)
    return record_of(op, begin, end, **{**times, **more})


def trace_of(
    records: Sequence[Record], *, rank: int = 0, ranks: int = 1, regions: Sequence[Region] = (), **more: Any
) -> Trace:
    """The trace of one rank."""
    clock = more.pop("clock", _clock.Clock(0, 0, _clock.SAME, 0, 0))
    return Trace(rank, ranks, clock, list(records), list(regions), more.pop("lost", 0), 100 * MS, {"host": "h"})
