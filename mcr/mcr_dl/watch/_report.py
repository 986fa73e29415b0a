# SPDX-License-Identifier: Apache-2.0
"""A report: one process's description of itself when an alarm is raised, in JSON's types alone."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed

from mcr_dl import _C
from mcr_dl.base import launcher

FORMAT, VERSION = "mcr-dl dump", 1
_CALLS = 64
CALLS_OF_OTHERS = 4  # of groups that the alarm does not concern
_FOLDERS = (os.path.dirname(torch.distributed.__file__), os.path.dirname(os.path.dirname(__file__)))
_INNER = (*(folder + os.sep for folder in _FOLDERS), threading.__file__)

Report = dict[str, Any]


class Ages:
    """How long each thread has been in its current activity, as far as it was seen."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[int, float]] = {}
        self._lock = threading.Lock()

    def sample(self) -> list[dict[str, Any]]:
        """The activities of all threads, each with its ``age`` in seconds since it was first seen."""
        now = time.monotonic()
        with self._lock:
            activities: list[dict[str, Any]] = _C.activities()
            before, self._first = self._first, {}
            for activity in activities:
                thread, turn = activity["thread"], activity["turn"]
                known = before.get(thread)
                since = known[1] if known is not None and known[0] == turn else now
                self._first[thread] = (turn, since)
                activity["age"] = now - since
        return activities


def identity(rank: int) -> dict[str, Any]:
    """The identity of the process, left at the store at its start, for the time when it can no longer answer."""
    return {
        "rank": rank,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "machine": launcher.machine(),
        "system": launcher.host_identity(),
        "processes": pid_namespace(),
    }


def pid_namespace() -> str:
    """The namespace in which process numbers have a meaning; empty if the system does not say."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _line(file: str, number: int | None, function: str) -> str:
    return f"{Path(file).name}:{number} in {function}"


def stacks() -> dict[str, list[str]]:
    """The stack of every Python thread, innermost frame first, by the thread's name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    several = {name for name, count in Counter(names.values()).items() if count > 1}

    def title(ident: int) -> str:
        name = names.get(ident, str(ident))
        return f"{name} ({ident})" if name in several else name

    return {
        title(ident): [
            _line(each.filename, each.lineno, each.name) for each in reversed(traceback.extract_stack(frame))
        ]
        for ident, frame in sys._current_frames().items()
    }


def place() -> str | None:
    """The main thread's innermost line outside torch.distributed and this package."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    last = None
    while frame is not None:
        last = _line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        if not frame.f_code.co_filename.startswith(_INNER):
            return last
        frame = frame.f_back
    return last


def last(rank: int, size: int, ages: Ages, text: str, *, well: bool, by_code: bool = False) -> Report:
    """The last report of a process that ends: the reason, its calls, and whether it ends communication as intended.

    ``by_code``: it does not if its exit code is another one than 0.
    """
    return {**make(rank, size, ages, None), "ended": text, "well": well, "by_code": by_code}


def make(rank: int, size: int, ages: Ages, group: str | None, *, whole: bool = False) -> Report:
    """This process's report. ``group``: whose calls are reported in detail.

    ``whole``: all that a dump has; the ranks that read a report at the store know the members of their group.
    """
    groups = _C.positions(most=_CALLS)
    for each in groups:
        kept = _CALLS if whole or each["group"] == group else CALLS_OF_OTHERS
        each["calls"] = each["calls"][-kept:]
        if not whole:
            del each["ranks"]  # in a large job most of the report
    report = {
        "format": FORMAT,
        "version": VERSION,
        **identity(rank),
        "size": size,
        "time": time.time(),
        "groups": groups,
        "threads": ages.sample(),
        "place": place(),
    }
    if whole:
        report |= {"pending": [known for _, known in _C.pending(64)], "stacks": stacks()}
    return report
