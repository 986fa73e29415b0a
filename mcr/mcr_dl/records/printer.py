# SPDX-License-Identifier: Apache-2.0
"""``verbose``: prints a line for every call, from a thread that reads the log periodically."""

from __future__ import annotations

import threading

from mcr_dl import _C
from mcr_dl.base import launcher
from mcr_dl.base.warning import say
from mcr_dl.records import log, statistics
from mcr_dl.records.log import Record
from mcr_dl.runtime import state

_PERIOD = 0.5  # seconds
_lock = threading.Lock()
_stop: threading.Event | None = None
_next = 0  # the first record that was not looked at yet
_open: set[int] = set()  # numbers of earlier records whose calls were still running, or that were still being written
_groups: set[str] = set()  # names of groups whose calls are printed


def line_of(record: Record) -> str:
    """DeepSpeed's line for a call, with its backend."""
    algbw, busbw = statistics.rates(record)
    return (
        f"comm op: {statistics.label(record)} | time (ms): {(record.latency or 0) / 1e6:.3f} | "
        f"msg size: {statistics.size_text(record.nbytes)} | algbw (Gbps): {algbw:.2f} | busbw (Gbps): {busbw:.2f} | "
        f"backend: {record.backend} | {record.state}"
    )


def _rank() -> int:
    """This process's rank; a program may state it only after it has asked for the log."""
    return state.current().launch.rank if state.has_begun() else launcher.detect().rank


def flush() -> None:
    """Print the lines of the calls that have ended since the last time."""
    global _next
    with _lock:
        if _stop is None or _rank() > 0:
            return
        capacity, end = _C.log_capacity(), _C.log_made() + 1
        oldest = end - capacity
        if oldest > _next:
            say(f"mcr_dl: verbose: up to {oldest - _next} lines left out, as the log keeps {capacity} records")
        spans = [*((number, number + 1) for number in sorted(_open)), (_next, end)]
        _open.update(range(max(_next, oldest), end))
        for record in log.every_record(spans):  # reset() must not hide lines that are still to come
            if record.group.name not in _groups:
                _open.discard(record.number)
            elif record.end is not None:
                say(line_of(record))
                _open.discard(record.number)
        _open.difference_update([number for number in _open if number < oldest])
        _next = end


def _run(over: threading.Event) -> None:
    while not over.wait(_PERIOD):
        flush()


def start(group: str) -> None:
    """Print the calls of the group of this name from now on, on rank 0 of the job."""
    global _stop, _next
    with _lock:
        if _stop is None and _rank() <= 0:
            over = threading.Event()
            threading.Thread(target=_run, args=(over,), name="mcr_dl log", daemon=True).start()
            _stop, _next = over, _C.log_made() + 1
        _groups.add(group)


def prints(group: str) -> bool:
    """Whether the calls of the group of this name are printed, on rank 0 of the job."""
    return group in _groups


def leave_out(group: str) -> None:
    """Print the remaining lines of the group of this name, and no later ones."""
    if group in _groups:
        flush()
        with _lock:
            _groups.discard(group)


def stop() -> None:
    """Print the remaining lines, and stop."""
    global _stop
    flush()
    with _lock:
        _groups.clear()
        _open.clear()
        if _stop is not None:
            _stop.set()
        _stop = None
