# SPDX-License-Identifier: Apache-2.0
"""Named stretches of a program, which traces show beside the calls and summaries divide by."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from mcr_dl import _C

_LIMIT = 65536  # the newest stay


class Region(NamedTuple):
    """`name` from `begin` to `end`, in ns of the steady clock, on the thread of that number."""

    name: str
    begin: int
    end: int
    thread: int


_regions: deque[Region] = deque(maxlen=_LIMIT)


@contextmanager
def region(name: str) -> Iterator[None]:
    """Mark what the program does inside: ``with mcr_dl.trace.region("step"):``; traces and summaries show it."""
    begin = _C.log_now()
    try:
        yield
    finally:
        _regions.append(Region(name, begin, _C.log_now(), threading.get_native_id()))


def regions() -> list[Region]:
    """Those of this process that have ended, the newest 65,536, in the order of their ends."""
    return list(_regions)


def reset() -> None:
    """Forget them."""
    _regions.clear()
