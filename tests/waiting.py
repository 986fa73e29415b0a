# SPDX-License-Identifier: Apache-2.0
"""Waits of tests for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 20.0  # seconds; more means that nothing happens


def await_true(condition: Callable[[], object], what: str | Callable[[], object] = "", limit: float = PATIENCE) -> None:
    """Wait until the condition holds; AssertionError with ``what`` if that takes longer than ``limit`` seconds.

    ``what``: the event's name, or a function that tells at that time what is wrong.
    """
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"not seen within {limit:.0f} s: {what() if callable(what) else what}"
        time.sleep(0.01)


def state_of(pid: int) -> str:
    """The letter of a process's state, as in proc(5): T if it is stopped; none if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def running(pid: int) -> bool:
    """Whether a process goes on; one that has ended may be left in the table of processes."""
    return state_of(pid) not in ("", "Z", "X")
