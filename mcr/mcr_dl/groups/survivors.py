# SPDX-License-Identifier: Apache-2.0
"""The group of the ranks that are left after a loss, and of those that come back: behind ``shrink`` and ``grow``.

The ranks agree at the store. All of them get one outcome of each step: that of the rank which first set it, by the
store's atomic compare_set.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch.distributed as torch_dist

from mcr_dl import _C, watch
from mcr_dl.base import blocks, stores
from mcr_dl.base.errors import (
    BackendError,
    BackendUnavailableError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    McrError,
    PeerLostError,
    text_of,
)
from mcr_dl.groups import applicants, factory, group_options, libraries_after_loss
from mcr_dl.libraries import registry
from mcr_dl.runtime import communicators, lines, state
from mcr_dl.runtime.rounds import poll

_log = logging.getLogger("mcr_dl")
_GRACE = 20.0  # seconds for the first rank to look, once all have come
_NOT_TRIED = "after a loss it is used only in jobs on one host, by processes that have been there from the start"
_Look = Callable[[], list[applicants.Applicant]]


class _Outcome(NamedTuple):
    """The ranks' decision at one step."""

    ranks: list[int]  # global ranks that have come to the step and are not lost
    problems: list[str]  # theirs, in the order of the ranks; empty texts for none
    wishes: list[Any]  # theirs, in the same order
    functions: list[str]  # that they have called, in the same order
    invited: list[applicants.Applicant]  # processes that take the places of lost ranks
    broken: bool  # the former group has lost a rank


def raise_named(what: str, error: Exception) -> NoReturn:
    """Say that the store is gone if the error is one of it, else raise the error. ``what``: the function called."""
    if isinstance(error, McrError) or not isinstance(error, stores.STORE_ERRORS):
        raise error
    message = f"{what}: the job's store cannot be reached, so the ranks cannot agree: {error}"
    raise BackendError(message) from error


class _Steps:
    """The members' steps at the store; lost ones may be missing. ``what``: the function that the user called."""

    def __init__(self, what: str, store: torch_dist.Store, rank: int, limit: timedelta) -> None:
        self._what, self._store, self._rank = what, store, rank
        self._limit, self._deadline = limit.total_seconds(), 0.0
        self._before = ""  # the key of this rank at the step before

    def meet(
        self,
        step: str,
        members: Sequence[int],
        problem: str = "",
        *,
        wish: Any = None,
        broken: bool = False,
        look: _Look = list,
    ) -> _Outcome:
        """Wait until each member has come to the step or is lost. ``look`` runs on one of them, for all.

        ``broken``: this rank knows of a loss in the former group.

        Raises CollectiveTimeoutError, which names the members that have neither come nor ended, and BackendError if
        the store is gone.
        """
        mine, outcome_key = f"{step}/{self._rank}", f"{step}/outcome"
        self._deadline = time.monotonic() + self._limit
        try:
            self._store.set(mine, stores.encode([problem, wish, self._what, broken]))
            conclude = partial(self._conclude, step, members, look)  # sets an outcome in any case, in time
            poll(lambda: self._store.check([outcome_key]), math.inf, conclude, size=len(members))
            outcome = stores.decode(self._store.get(outcome_key), step)
            # Of this step, a rank that falsely takes another for lost may still read the keys, even after the outcome.
            if self._before and not isinstance(outcome, str):  # all have come
                self._store.delete_key(self._before)
            self._before = mine
        except stores.STORE_ERRORS as error:
            raise_named(self._what, error)
        if isinstance(outcome, str):
            raise CollectiveTimeoutError(outcome)
        ranks, words, places, invited = outcome
        each_word = [words[place] for place in blocks.unpack(places)]
        problems, wishes, functions, knowing = [list(column) for column in zip(*each_word, strict=True)]
        newcomers = [applicants.Applicant(*each) for each in invited]
        return _Outcome(blocks.unpack(ranks), problems, wishes, functions, newcomers, any(knowing))

    def _conclude(self, step: str, members: Sequence[int], look: _Look) -> None:
        """Set the outcome, if all members that are not lost have come; the first of them looks."""
        lost = watch.lost()
        running = [rank for rank in members if rank not in lost]
        keys = [f"{step}/{rank}" for rank in running]
        if running and running[0] == self._rank and self._store.check(keys):
            texts = self._store.multi_get(keys)
            words = [stores.decode(text, f"{step}: a rank's value") for text in dict.fromkeys(texts)]
            # All ranks read it: equal words, as those of most ranks are, are there once.
            outcome = [blocks.pack(running), words, blocks.pack(blocks.numbered(texts)), look()]
            self._store.compare_set(f"{step}/outcome", "", stores.encode(outcome))
        elif self._has_waited_enough(keys):
            missing = [running[place] for place in stores.absent(self._store, keys)]
            message = (
                f"{self._what}: {watch.ranks_text(missing or running[:1])} still running, but not in {self._what}() "
                f"within the timeout"
            )
            # For all ranks: those that come later do not meet one that has gone.
            self._store.compare_set(f"{step}/outcome", "", stores.encode(message))

    def _has_waited_enough(self, keys: list[str]) -> bool:
        """Whether the time is over; once all have come, the first rank may still look."""
        passed = time.monotonic() - self._deadline
        return passed > 0 and (passed > _GRACE or not self._store.check(keys))

    def is_over(self, step: str) -> bool:
        """Whether the ranks that came to the step have given up the others."""
        try:
            key = f"{step}/outcome"
            return self._store.check([key]) and isinstance(stores.decode(self._store.get(key), step), str)
        except stores.STORE_ERRORS:  # which the step itself reports
            return False


@dataclass
class Forming:
    """The making of a group of what is left of a former one, by all its members together.

    Attributes:
        what: the function that the user called.
        name: of the former group.
        backends: of the former group.
        members: global ranks, without those that the caller leaves out.
        limit: the timeout of the new group's operations, and of each step.
        asked: the new group's backends; None: those of the former group that can go on.
        changed: the new group has other processes than the former one.
        wish: for the form of torch's calls on the new group (group_options.wish).
        former: the former group; None in a process that comes back.
    """

    what: str
    name: str
    backends: list[str]
    members: list[int]
    limit: timedelta
    asked: list[str] | None = None
    changed: bool = False
    wish: dict[str, Any] = field(default_factory=dict)
    former: _C.Group | None = None
    _rank: int = field(default_factory=lambda: state.current().launch.rank)
    # By library that starts on all ranks of a job together: why it does not connect the members; empty if it does.
    _tried: dict[str, str] = field(default_factory=dict)

    def shrink(self, *, exactly: bool = False) -> _C.Group:
        """Make a group of the members that are left. Each of them calls this.

        ``exactly``: raise PeerLostError, on all survivors, if one of the members is lost. Raises as ``mcr_dl.shrink``.
        """
        wanted = self.members
        while True:
            name, steps = self._next()
            outcome = steps.meet("left", self.members, wish=self._usable(), broken=self._broken())
            self._leave_out(outcome.ranks)
            self.changed = self.changed or outcome.broken
            if self._differ(outcome):  # those in grow() raise, and come again
                continue
            if exactly and self.members != wanted:
                missing = [each for each in wanted if each not in self.members]
                verb, them = ("is", "it") if len(missing) == 1 else ("are", "them")
                message = (
                    f"{self.what}: expected the excluded ranks to be all lost ones, but {watch.ranks_text(missing)} "
                    f"{verb} lost too, or other ranks exclude {them}: exclude {them} as well, on all ranks"
                )
                raise PeerLostError(message)
            made = self._made(name, steps) if self._try(outcome, name, steps) else None
            if made is not None:
                return made

    def grow(self) -> _C.Group | None:
        """Make a group of the members that are left and of the processes that wait to come back; None: no change.

        Each of the members calls this. Raises as ``mcr_dl.grow``.
        """
        name, steps = self._next()
        before = self.members
        outcome = self._meet_applicants(name, steps)
        self._leave_out(outcome.ranks)
        self.changed = self.changed or outcome.broken
        if self._differ(outcome):
            message = f"{self.what}: {self._loss()}; other ranks of group {self.name!r} are in shrink()"
            raise PeerLostError(message)
        if outcome.invited:
            return self._take(outcome.invited, name, steps, ordered=before == sorted(before))
        if self.members == before and not outcome.broken:
            self._forget_call_before(name)
            return None
        return (self._made(name, steps) if self._try(outcome, name, steps) else None) or self.shrink()

    def _forget_call_before(self, name: str) -> None:
        """Delete what the call before has left, if it changed nothing either: all members are here, and have read it.
        Calls of grow() may be many.
        """
        current = state.current()
        ours = current.of(self.name)
        before, ours.last_idle_grow = ours.last_idle_grow, name
        if before:
            with contextlib.suppress(*stores.STORE_ERRORS):
                store = torch_dist.PrefixStore(f"survivors/{before}", current.store)
                store.delete_key(f"left/{self._rank}")
                if self.members[0] == self._rank:
                    store.delete_key("left/outcome")

    def _usable(self) -> list[str]:
        return [] if self.asked is not None else libraries_after_loss.usable(self.backends)

    def _try(self, outcome: _Outcome, name: str, steps: _Steps) -> bool:
        """Try the libraries that all members could use, if ranks are lost; False if more have been lost meanwhile."""
        self._tried = {}
        common = [each for each in outcome.wishes[0] if all(each in wish for wish in outcome.wishes)]
        if not self.changed or not common:
            return True
        problems = {each: libraries_after_loss.problem(each, name, self.members) for each in common}
        tried = steps.meet("tried", self.members, wish=problems)
        if tried.ranks != self.members:
            self._leave_out(tried.ranks)
            return False
        self._tried = {each: next(filter(None, (wish[each] for wish in tried.wishes)), "") for each in common}
        return True

    def _take(self, invited: list[applicants.Applicant], name: str, steps: _Steps, *, ordered: bool) -> _C.Group:
        """Make the group with these processes. If there is an error, their ranks are lost again."""
        self.members = self.members + sorted(each.rank for each in invited)
        self.members = sorted(self.members) if ordered else self.members
        self.changed, backends = True, state.current().backends
        try:
            for each in invited:
                applicants.admit(state.current(), each)
            for each in invited:
                applicants.answer(state.current(), each, name, self._told(), self.limit)
            return self.join(name, "", steps)
        except Exception as error:  # whatever it is, no process may stay half admitted
            state.current().backends = backends  # the nodes agree with the identities at the store
            for each in invited:
                text = f"lost rank {each.rank}: the process that was to take its place does not: {error}"
                watch.give_up(each.rank, text)
            raise_named(self.what, error)

    def _meet_applicants(self, name: str, steps: _Steps) -> _Outcome:
        """Meet the other members; one of them looks for processes that wait. Those that are not taken may wait on."""
        found: list[applicants.Applicant] = []
        invited: list[applicants.Applicant] = []

        def look() -> list[applicants.Applicant]:
            found.extend(applicants.applicants(state.current(), name))
            return found

        try:
            outcome = steps.meet("left", self.members, wish=self._usable(), broken=self._broken(), look=look)
            invited = [] if self._are_mixed(outcome) else outcome.invited
            return outcome
        finally:
            with contextlib.suppress(*stores.STORE_ERRORS):
                applicants.dismiss(state.current(), [each for each in found if each not in invited])

    @staticmethod
    def _are_mixed(outcome: _Outcome) -> bool:
        return len(set(outcome.functions)) > 1

    def _differ(self, outcome: _Outcome) -> bool:
        """Whether some members have noticed a loss, and others have not: they are in shrink() and in grow().

        Raises InvalidArgumentError, on all of them, if there is no loss.
        """
        if not self._are_mixed(outcome):
            return False
        if self.changed:
            return True
        pairs = zip(outcome.ranks, outcome.functions, strict=True)
        calls = ", ".join(f"{function}() on rank {rank}" for rank, function in pairs)
        message = f"{self.what}: expected one function on all ranks of group {self.name!r}, got {calls}"
        raise InvalidArgumentError(message)

    def _loss(self) -> str:
        """The state of the former group."""
        lost = None if self.former is None else _C.lost(self.former._label)
        return lost or f"ranks of group {self.name!r} are lost"

    def _broken(self) -> bool:
        return self.former is not None and communicators.is_broken(self.former)

    def join(self, name: str, problem: str, steps: _Steps | None = None) -> _C.Group:
        """Make the group together with ranks that come back, which have a problem or not, once all are there."""
        steps = steps or self._steps(name)
        ready = steps.meet("ready", self.members, problem)
        told = next(filter(None, ready.problems), "")
        if told:
            raise BackendUnavailableError(f"{self.what}: {told}")
        if ready.ranks != self.members:
            self._leave_out(ready.ranks)
            return self.shrink()
        return self._made(name, steps) or self.shrink()

    def _told(self) -> dict[str, Any]:
        """The facts that a process needs to take part: the fields that are in JSON's types."""
        return {key: getattr(self, key) for key in ("what", "name", "backends", "members", "asked", "wish")}

    def _next(self) -> tuple[str, _Steps]:
        while True:
            name = f"{self.name}/survivors-{state.current().count('survivors', self.name)}"
            steps = self._steps(name)
            if not steps.is_over("left"):
                return name, steps

    def _steps(self, name: str) -> _Steps:
        # One prefix for shrink() and grow(): of members in both, each would wait for the other.
        store = torch_dist.PrefixStore(f"survivors/{name}", state.current().store)
        return _Steps(self.what, store, self._rank, self.limit)

    def _leave_out(self, left: list[int]) -> None:
        """Go on with the members that are left."""
        if self._rank not in left:
            message = (
                f"{self.what}: the other ranks of {self.name!r} have found this process lost, and go on without it: "
                "end this process; a new one can take its place with rejoin()"
            )
            raise BackendError(message)
        self.changed = self.changed or left != self.members
        self.members = left

    def _made(self, name: str, steps: _Steps) -> _C.Group | None:
        """The connected group; None if more ranks have been lost meanwhile."""
        made, problem, current = None, "", state.current()
        try:
            patience = communicators.PATIENCE if self.changed else None
            made = factory.make_group(name, self.members, self._names(), self.limit, patience=patience)
        except Exception as error:  # whatever it is, the others wait at the next step
            problem = text_of(error)
        told, used = "", False
        try:
            made_by = steps.meet("made", self.members, problem, wish=self.wish)
            told = next(filter(None, made_by.problems), "") or self._formed(made, made_by)
            used = made is not None and made_by.ranks == self.members and not told
        finally:
            if not used and name in current.groups:
                factory.give_up(current.groups[name])
        if used:
            return made
        if made_by.ranks == self.members:
            raise BackendUnavailableError(f"{self.what}: {told}")
        self._leave_out(made_by.ranks)
        return None

    @staticmethod
    def _formed(made: _C.Group | None, made_by: _Outcome) -> str:
        """Set the form of torch's calls, or say on all ranks why there is none."""
        try:
            uniform = group_options.uniform(made_by.wishes)
        except InvalidArgumentError as error:
            return str(error)
        if made is not None:
            group_options.apply(made, uniform)
        return ""

    def _names(self) -> list[str]:
        """The backends of the new group. All ranks decide alike: by the former group's backends and the members."""
        if self.asked is not None:
            return self.asked
        names = lines.that_fit(self.backends, self.members)
        if not self.changed:
            return names
        libraries = dict.fromkeys(each for name in names for each in registry.collective_starters(name))
        problems = {each: self._tried.get(each, _NOT_TRIED) for each in libraries}
        kept = [name for name in names if not any(problems[each] for each in registry.collective_starters(name))]
        left_out = [name for name in names if name not in kept]
        reasons = "".join(f"; {each}: {text}" for each, text in problems.items() if text)
        if not kept:
            message = (
                f"group {self.name!r}: none of its backends ({', '.join(names)}) can go on after a loss: add one such "
                f"as gloo at init_process_group(), or name one in backend={reasons}"
            )
            raise BackendUnavailableError(message)
        if left_out and self.members[0] == self._rank:
            _log.warning("%s: group %r goes on without %s%s", self.what, self.name, ", ".join(left_out), reasons)
        return kept


def of(
    what: str,
    old: _C.Group,
    members: Sequence[int],
    limit: timedelta,
    wish: dict[str, Any],
    asked: list[str] | None = None,
) -> Forming:
    """The making of a group of these members (global ranks) of an old group, as far as they are left."""
    changed = list(members) != list(old.ranks)
    # In a process that has come back, the default group has none.
    backends = list(old.backends) or list(state.current().backends)
    return Forming(what, old.name(), backends, list(members), limit, asked, changed, wish, former=old)
