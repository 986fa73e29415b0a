# SPDX-License-Identifier: Apache-2.0
"""Forked child processes: they have this process's memory, but neither its threads nor its connections."""

from __future__ import annotations

import os
from collections.abc import Callable

from mcr_dl import _C
from mcr_dl.base.errors import NotInitializedError

_groups: Callable[[], list[_C.Group]] = list
_rank: int | None = None
_forked = False


def prepare(rank: int, groups: Callable[[], list[_C.Group]]) -> None:
    """Make forked children refuse to communicate from now on."""
    global _rank, _groups
    if _rank is None:
        os.register_at_fork(after_in_child=_in_child)
    _rank, _groups = rank, groups


def forked() -> bool:
    """Whether this process was forked from one that communicates."""
    return _forked


def text() -> str:
    """Why a forked process cannot communicate."""
    return (
        f"this process was forked from rank {_rank} after init, and cannot use its connections: communicate from the "
        "parent, or start processes by 'spawn' and call init there"
    )


def refuse_fork() -> None:
    """Raise NotInitializedError in a forked process, where the caller would use or end its parent's connections."""
    if _forked:
        raise NotInitializedError(text())


def _in_child() -> None:
    global _forked
    _forked = True
    _C.stop_forked(text())
    for group in _groups():
        _C.keep_forever(group)
