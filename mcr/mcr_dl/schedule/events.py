# SPDX-License-Identifier: Apache-2.0
"""Trace events of schedules, for Perfetto or chrome://tracing. Times are nanoseconds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]


@dataclass
class Traced:
    """The steps in a block of ``ByteScheduler.traced``, or the iterations in one of ``Syndicate.traced``.

    ``exposed_ms``: how long the program waited for gradients, or for calls, in each of them, milliseconds on this rank:
    communication that computation does not hide. ``planned_ms``: the same by simulation (of Syndicate: on rank 0).
    """

    planned_ms: float = 0.0
    exposed_ms: list[float] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        """The median of ``exposed_ms``; 0 without steps."""
        return statistics.median(self.exposed_ms or [0.0])


def named(process: int, name: str, threads: Mapping[int, str]) -> list[Event]:
    """The names of a process and its threads."""
    rows: list[Event] = [{"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}]
    for thread, text in threads.items():
        rows.append({"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": text}})
    return rows


def span(process: int, thread: int, name: str, begin: int, end: int) -> Event:
    """A slice; slices of one thread do not overlap."""
    return {"ph": "X", "pid": process, "tid": thread, "name": name, "ts": begin / 1000, "dur": (end - begin) / 1000}


def operation(process: int, index: int, name: str, begin: int, end: int) -> list[Event]:
    """An operation, which may overlap with others; `index` is unique in the process."""
    common = {"cat": "operation", "pid": process, "id": index, "name": name}
    return [{"ph": "b", **common, "ts": begin / 1000}, {"ph": "e", **common, "ts": end / 1000}]
