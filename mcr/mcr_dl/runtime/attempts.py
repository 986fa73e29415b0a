# SPDX-License-Identifier: Apache-2.0
"""Attempts of a group's members to connect it, which succeed on all of them or on none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.base import agreement, stores
from mcr_dl.base.errors import (
    BackendUnavailableError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    PeerLostError,
    text_of,
)
from mcr_dl.runtime import state
from mcr_dl.runtime.meetings import value_or_problem
from mcr_dl.runtime.rounds import NEXT, Decide, Round, absent_of, absent_text, explained, poll, with_places
from mcr_dl.runtime.watched_store import WatchedStore, require_all_ranks
from mcr_dl.watch import ranks_text

_FAILED = "failed"  # the key of a member's error
_MAKE = "make"  # the first agreement of an attempt


class Attempt:
    """One attempt of a group's members to connect it. It has the same number on all of them.

    A member that fails alone leaves its error at the store, where the waits of the others look: they would wait for it
    until the timeout, at the store or inside a library.
    """

    def __init__(self, group: _C.Group, outer: Attempt | None = None) -> None:
        """Make one: all members count the attempts for the group's name.

        A member that has made fewer of them, as an error kept it from one, goes on as ``next_name`` does.

        ``outer``: the one of a larger group that this is a part of, whose number it has.
        """
        self.group, self._outer = group, outer
        self._turn: int = self._next_turn() if outer is None else outer._turn
        self._store = torch_dist.PrefixStore(self.name("attempt"), state.current().store)

    def _next_turn(self) -> int:
        group = self.group
        count = partial(state.current().count, "connect", group.name())
        if group.size() == 1:
            return count()
        with explained(f"group {group.name()!r}"):
            return _next_number(count, lambda turn: _name(_MAKE, group.name(), group.ranks[0], turn))

    def name(self, what: str) -> str:
        """The name of a part of the job's store that only this attempt uses."""
        return _name(what, self.group.name(), self.group.ranks[0], self._turn)

    def store(self, what: str) -> WatchedStore:
        """A part of the job's store, where waits end as those of ``check`` do."""
        return WatchedStore(self.name(what), state.current().store, self.group, self.check)

    def check(self, condition: Callable[[], bool]) -> None:
        """Raise PeerLostError if the group has lost a rank, and BackendUnavailableError if another member has failed.

        ``condition``: this member's wait, which does not end if it is true: an error that all members find together
        follows from a value that is at the store before the first of them fails by it.
        """
        require_all_ranks(self.group._label)
        if self._store.check([_FAILED]) and not condition():
            told = stores.decode(self._store.get(_FAILED), "the error of another member")
            raise BackendUnavailableError(f"group {self.group.name()!r} cannot be made: {told}", elsewhere=True)
        if self._outer is not None:
            self._outer.check(condition)

    @contextmanager
    def told(self) -> Iterator[None]:
        """If the block raises on one member, end the waits of the others in it."""
        try:
            yield
        except PeerLostError:  # which every member finds by itself
            raise
        except BaseException as error:
            text = own_text(error)
            if text and self.group.size() > 1:
                rank = self.group.ranks[self.group.rank()]
                with suppress(*stores.STORE_ERRORS):
                    self._store.set(_FAILED, stores.encode(f"{ranks_text([rank])}: {text}"))
            raise

    @contextmanager
    def all_or_none(self, backends: Sequence[str]) -> Iterator[None]:
        """Make the block, which connects these backends, succeed on all members or on none.

        If one of them raises in it, the others raise BackendUnavailableError with its text. Raises
        InvalidArgumentError, on all members, if their backends differ, PeerLostError if the group loses a rank, and
        CollectiveTimeoutError if one does not come within the group's timeout.
        """
        with self.told():
            self.meet(_MAKE, backends)
            yield
            self.meet("made")

    def meet(self, what: str, backends: Sequence[str] = ()) -> None:
        """Return when all members are here with the same backends; a member that has failed does not come.

        Raises as ``agree``; InvalidArgumentError if their backends differ.
        """
        self.agree(what, ", ".join(backends), partial(agreement.require_equal, "backend", ranks=self.group.ranks))

    def agree(self, what: str, value: Any, decide: Decide, *, locate: bool = False) -> Any:
        """The result of ``decide`` on the members' values, which runs on one of them, once all are here.

        A member may still wait for an earlier call before it comes. ``what``: another name for each agreement of the
        attempt. ``locate``: the error of a timeout says where the missing ranks are.

        Raises as ``check``; on all members InvalidArgumentError if ``decide`` raises an error, and
        CollectiveTimeoutError if one does not come within the group's timeout.
        """
        group = self.group
        if group.size() == 1:
            return decide([value])
        this_round = _round(self.name(what), group.rank(), group.size())
        seconds = group.timeout.total_seconds()

        def give_up(values: list[Any]) -> dict[str, str]:
            absent = absent_of(group.ranks, values)
            text = absent_text(absent, seconds)
            return {"late": with_places(text, absent) if locate else text}

        with explained(f"group {group.name()!r}"):
            answer = this_round.conclude(
                this_round.arrive(value),
                lambda values: value_or_problem(partial(decide, values)),
                give_up,
                limit=seconds,
                check=partial(self.check, this_round.answered),
            )
        if answer is None:
            raise CollectiveTimeoutError(
                f"group {group.name()!r}: connecting timed out: no answer of the last rank to come"
            )
        this_round.leave()
        if "late" in answer:
            raise CollectiveTimeoutError(f"group {group.name()!r}: connecting timed out: {answer['late']}")
        if "problem" in answer:
            raise InvalidArgumentError(f"group {group.name()!r}: {answer['problem']}")
        return answer["value"]


def own_text(error: BaseException) -> str:
    """The text of an error in an attempt for the other members; empty if it is that of another member."""
    return "" if isinstance(error, BackendUnavailableError) and error.elsewhere else text_of(error)


def next_name(key: str, name: Callable[[int], str], first: int) -> str:
    """The name of a new group that only its members make and count. ``first``: their first global rank.

    A rank that has made fewer of them, as an error kept it from one, goes on from those that the others have given up.
    """
    count = partial(state.current().count_at_store, key)
    with explained("making a group"):
        return name(_next_number(count, lambda number: _name(_MAKE, name(number), first, turn=0)))


def _next_number(count: Callable[[], int], making: Callable[[int], str]) -> int:
    """This rank's next number that the others have not given up. ``making``: the name of a number's first agreement."""

    def looked_at(number: int) -> Round:  # which this rank does not join
        return _round(making(number), rank=0, size=1)

    while True:
        number = count()
        given_up = looked_at(number).answered()  # without this rank, there is no other answer
        if not given_up or not poll(looked_at(number + 1).begun, NEXT):
            return number


def _name(what: str, group: str, first: int, turn: int) -> str:
    """The name of a part of the store. ``first``: a global rank, as parts of one group may share the group's name."""
    return f"{what}/{group}/{first}/{turn}"


def _round(name: str, rank: int, size: int) -> Round:
    """The round of an agreement, in a part of the job's store."""
    return Round(torch_dist.PrefixStore(name, state.current().store), "0", rank, size)
