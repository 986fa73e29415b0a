# SPDX-License-Identifier: Apache-2.0
"""Plans and what has run in one timeline, for Perfetto or chrome://tracing. Times are nanoseconds."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcr_dl.base.documents import require_writable, write_rows
from mcr_dl.base.errors import McrError

PLAN, RANK = 0, 1  # processes in the trace
ITERATIONS, COMPUTATION, WAITING = 1, 2, 3  # threads

Row = dict[str, Any]
Span = tuple[int, int]  # nanoseconds


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


def require_possible(what: str, path: str | os.PathLike[str], *, running: bool) -> None:
    """Raise McrError if a block is recorded already, and InvalidArgumentError for a file that cannot be written."""
    if running:
        raise McrError(f"{what}: expected no other block, got one inside another")
    require_writable(path, what)


def named(process: int, name: str, threads: Mapping[int, str]) -> list[Row]:
    """The names of a process and its threads."""
    rows: list[Row] = [{"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}]
    for thread, text in threads.items():
        rows.append({"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": text}})
    return rows


def span(process: int, thread: int, name: str, begin: int, end: int) -> Row:
    """A slice; slices of one thread do not overlap."""
    return {"ph": "X", "pid": process, "tid": thread, "name": name, "ts": begin / 1000, "dur": (end - begin) / 1000}


def operation(process: int, index: int, name: str, begin: int, end: int) -> list[Row]:
    """An operation, which may overlap with others; `index` is unique in the process."""
    common = {"cat": "operation", "pid": process, "id": index, "name": name}
    return [{"ph": "b", **common, "ts": begin / 1000}, {"ph": "e", **common, "ts": end / 1000}]


def write(path: str | os.PathLike[str], rows: Sequence[Row], plan: str, traced: Traced) -> None:
    """Write the file. ``plan``: its name."""
    other = {"plan": plan, "planned_exposed_ms": traced.planned_ms, "exposed_ms": traced.exposed_ms}
    write_rows(os.fspath(path), {"traceEvents": rows, "displayTimeUnit": "ms", "otherData": other})
