# SPDX-License-Identifier: Apache-2.0
"""Named regions of a program, which traces show next to the calls and summaries divide by."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from mcr_dl import _C
from mcr_dl.base.errors import InvalidTypeError

_LIMIT = 65536  # only the newest ones are kept


class Region(NamedTuple):
    """`name` from `begin` to `end`, in ns of the steady clock, on the thread with that id."""

    name: str
    begin: int
    end: int
    thread: int


_regions: deque[Region] = deque(maxlen=_LIMIT)


@contextmanager
def region(name: str) -> Iterator[None]:
    """Mark a part of the program: ``with mcr_dl.trace.region("step"):``.

    Traces show it, and ``mcr-trace summary`` and ``plot`` have a part for each region. Raises InvalidTypeError if the
    name is not a str.
    """
    given: object = name
    if not isinstance(given, str):
        message = f"trace.region: name: expected a str, got {name!r}"
        raise InvalidTypeError(message)
    begin = _C.log_now()
    try:
        yield
    finally:
        _regions.append(Region(name, begin, _C.log_now(), threading.get_native_id()))


def regions() -> list[Region]:
    """The ended regions of this process, the newest 65,536, in the order of their ends."""
    return list(_regions)
