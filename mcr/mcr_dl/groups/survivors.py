# SPDX-License-Identifier: Apache-2.0
"""The group of the ranks that are left after a loss, on which they agree; behind the functions named ``shrink``."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as torch_dist

from mcr_dl import _C, watch
from mcr_dl.base import agreement
from mcr_dl.base.errors import BackendError, BackendUnavailableError, CollectiveTimeoutError, McrError, PeerLostError
from mcr_dl.groups import factory
from mcr_dl.libraries import registry
from mcr_dl.runtime import core_groups, lines, state

_log = logging.getLogger("mcr_dl")
_PAUSE = 0.01  # seconds between two looks at the store
_STORE_ERRORS = (RuntimeError, OSError)


class _Outcome(NamedTuple):
    """What the ranks have decided at one step."""

    ranks: list[int]  # global ranks that have come to the step and are not lost
    problems: list[str]  # theirs, in the order of the ranks; empty texts for none


class _Meeting:
    """Meetings at the store from which lost ranks may be missing.

    All ranks get one outcome: that of the rank which first set it, by the store's atomic compare_set.
    """

    def __init__(self, store: torch_dist.Store, rank: int, limit: timedelta) -> None:
        self._store, self._rank = store, rank
        self._deadline = time.monotonic() + limit.total_seconds()

    def meet(self, step: str, members: Sequence[int], problem: str = "") -> _Outcome:
        """Wait until each member has come to the step or is lost.

        Raises CollectiveTimeoutError, which names the members that have neither come nor ended, and BackendError if
        the store is gone.
        """
        try:
            self._store.set(f"{step}/{self._rank}", agreement.encode(problem))
            while not self._store.check([f"{step}/outcome"]):
                self._conclude(step, members)
                time.sleep(_PAUSE)
            ranks, problems = agreement.decode(self._store.get(f"{step}/outcome"), step)
        except _STORE_ERRORS as error:
            if isinstance(error, McrError):
                raise
            message = f"shrink: the job's store cannot be reached, so the ranks cannot agree: {error}"
            raise BackendError(message) from error
        return _Outcome(ranks, problems)

    def _conclude(self, step: str, members: Sequence[int]) -> None:
        """Set the outcome, if all members that are not lost have come; the first of them looks."""
        running = [rank for rank in members if rank not in watch.lost()]
        keys = [f"{step}/{rank}" for rank in running]
        if running and running[0] == self._rank and self._store.check(keys):
            problems = [agreement.decode(self._store.get(key), key) for key in keys]
            self._store.compare_set(f"{step}/outcome", "", agreement.encode([running, problems]))
        elif time.monotonic() > self._deadline:
            missing = [rank for rank, key in zip(running, keys, strict=True) if not self._store.check([key])]
            message = (
                f"shrink: {watch.ranks_text(missing or running[:1])} still running, but not in shrink() within the "
                f"timeout"
            )
            raise CollectiveTimeoutError(message)


def make(
    old: _C.Group, members: Sequence[int], limit: timedelta, asked: list[str] | None = None, *, exactly: bool = False
) -> _C.Group:
    """Make a group of these members (global ranks) of an old group, as far as they are left; each of them calls this.

    Args:
        old: the group that has lost ranks.
        members: without ranks that the caller leaves out.
        limit: the timeout of the new group's operations, and of the survivors' meetings.
        asked: its backends; None: those of the old group that can go on.
        exactly: raise PeerLostError, on all survivors, if one of the members is lost.

    Raises as ``shrink`` does.
    """
    wanted, current = list(members), state.current()
    members, rank = wanted, current.launch.rank
    while True:
        name = f"{old.name()}/shrunk-{current.count(f'shrink {old.name()}')}"
        meeting = _Meeting(torch_dist.PrefixStore(f"shrink/{name}", current.store), rank, limit)
        members = meeting.meet("left", members).ranks
        if exactly and members != wanted:
            missing = [each for each in wanted if each not in members]
            message = (
                f"shrink: {watch.ranks_text(missing)} lost too, or left out by the other ranks: leave out all of them"
            )
            raise PeerLostError(message)
        if rank not in members:
            message = f"shrink: the other ranks of {old.name()!r} have found this process lost, and go on without it"
            raise BackendError(message)
        made, problem = None, ""
        try:
            names = _backends(old, members, asked)
            made = factory.make_group(name, members, names, limit)
        except McrError as error:
            problem = str(error)
        made_by = meeting.meet("made", members, problem)
        told = next(filter(None, made_by.problems), "")
        if made is not None and made_by.ranks == members and not told:
            return made
        if name in current.groups:
            core_groups.forget_group(current.groups[name])
        if made_by.ranks == members:
            raise BackendUnavailableError(f"shrink: {told}")
        members = made_by.ranks  # more ranks have been lost meanwhile


def _backends(old: _C.Group, members: list[int], asked: list[str] | None) -> list[str]:
    """The backends of the new group. All survivors decide alike: by the old group's backends and the members alone."""
    names = lines.that_fit(old.backends if asked is None else asked, members)
    if asked is not None or len(members) == old.size():
        return names
    kept = [name for name in names if not any(registry.describe(each).together for each in _libraries(name))]
    left_out = [name for name in names if name not in kept]
    if not kept:
        message = (
            f"group {old.name()!r}: none of its backends ({', '.join(names)}) can go on after a loss: add one such as "
            f"gloo at init_process_group(), or name one in backend="
        )
        raise BackendUnavailableError(message)
    if left_out and members[0] == state.current().launch.rank:
        _log.warning("shrink: group %r goes on without %s", old.name(), ", ".join(left_out))
    return kept


def _libraries(name: str) -> tuple[str, ...]:
    return registry.parts_of(name) or (name,)
