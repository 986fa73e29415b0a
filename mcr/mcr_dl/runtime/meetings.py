# SPDX-License-Identifier: Apache-2.0
"""Meetings of all ranks of the job at a point in their programs, over the store, to which some may come too late."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as torch_dist

from mcr_dl import watch
from mcr_dl.base import agreement, stores
from mcr_dl.base.errors import CollectiveTimeoutError, InvalidArgumentError, McrError
from mcr_dl.base.stores import own_connection
from mcr_dl.runtime import state
from mcr_dl.runtime.rounds import (
    NEXT,
    NOTICE,
    PATIENCE,
    Decide,
    absent_of,
    absent_text,
    explained,
    join,
    poll,
    require_whole_job,
    with_places,
)

_log = logging.getLogger("mcr_dl")


def value_or_problem(make: Callable[[], Any]) -> dict[str, Any]:
    """The ``value`` that other ranks wait for or, whatever error is raised here, the ``problem``'s text."""
    try:
        return {"value": make()}
    except McrError as error:
        return {"problem": str(error)}
    except Exception as error:
        _log.exception("an agreement of the ranks has failed")
        return {"problem": f"{type(error).__name__}: {error}"}


def value_of_rank_0(values: list[Any]) -> Any:
    """The value that rank 0 has made by ``value_or_problem``. Raises InvalidArgumentError if it could not."""
    if "problem" in values[0]:
        raise InvalidArgumentError(values[0]["problem"])
    return values[0]["value"]


class Part(torch_dist.PrefixStore):
    """A part of the store that knows the keys which this rank has set there."""

    def __init__(self, prefix: str, store: torch_dist.Store) -> None:
        super().__init__(prefix, store)
        self._set: list[str] = []

    def set(self, key: str, value: str) -> None:
        """Set a value, until clear()."""
        self._set.append(key)
        super().set(key, value)

    def clear(self) -> None:
        """Delete the values of this rank: no rank reads them any more."""
        keys, self._set = self._set, []
        with suppress(*stores.STORE_ERRORS):  # a store of another kind may not delete
            for key in keys:
                self.delete_key(key)


class Meetings:
    """The meetings of one object that all ranks have: they take place in one order, and some ranks may be late.

    A rank that comes to a meeting which the others have given up goes on to the next one, if they come to that in time.
    """

    part: Part | None = None  # of the store, for the function that all ranks were in last, see meet_all()

    def __init__(self, store: torch_dist.Store, name: str, rank: int, size: int) -> None:
        """``name``: of the object, equal on all ranks."""
        self._name = name
        self._store: Any = own_connection(torch_dist.PrefixStore(name, store))
        self._rank, self._size = rank, size
        self.last = -1  # the number of the last meeting that this rank came to, equal on all ranks that did
        self.undecided = False  # this rank has come to a meeting, and has no answer
        self.problem = ""  # why the last meeting without a result had none
        self.absent: list[int] = []  # ranks that did not come to it in time

    def meet(self, what: str, value: Any, decide: Decide, patience: float, *, next_in: float = NEXT) -> Any:
        """The result of ``decide`` on the ranks' values (JSON's types, in rank order); None if it has none.

        It has none if a rank does not come within ``patience`` seconds after this one, has ended before it came, or
        meets about something else (``what``), or if ``decide``, which runs on any rank, raises an error; also if this
        rank comes too late, and the others do not come to the next one within ``next_in`` seconds. Raises
        PeerLostError if the last rank to come has ended without an answer, or the store with its rank;
        CollectiveTimeoutError if the last rank does not answer.
        """
        with explained(self._name):
            return self._meet(what, value, decide, patience, next_in)

    def _count(self) -> int:
        self.last += 1
        return self.last

    def _meet(self, what: str, value: Any, decide: Decide, patience: float, next_in: float) -> Any:
        mine = {"what": what, "value": value}
        if self._size == 1:
            self._count()
            return self._result(self._answer(decide, [mine]))
        this_round, last = join(
            self._store, self._count, self._rank, self._size, mine, next_in=next_in, check=watch.lost
        )
        self.undecided = not this_round.late
        if this_round.late:  # the others' calls may wait for this rank
            others = [rank for rank in range(self._size) if rank != self._rank]
            return self._result({"problem": "this rank came too late", "absent": others})
        answer = this_round.conclude(
            last,
            partial(self._answer, decide),
            partial(_given_up, patience),
            limit=patience,
            check=watch.lost,
            patience=lambda: NOTICE if watch.lost() else PATIENCE,
        )
        if answer is None:
            require_whole_job()
            raise CollectiveTimeoutError(f"{self._name}: the last rank to come to an agreement timed out")
        self.undecided = False
        return self._result(answer)

    def _result(self, answer: dict[str, Any]) -> Any:
        if "problem" in answer:
            self.problem, self.absent = answer["problem"], answer.get("absent", [])
            _log.info("%s: the ranks have not agreed: %s", self._name, self.problem)
        return answer.get("value")

    def post(self, key: str, value: Any) -> Any:
        """Leave a value for the other ranks; the value that all ranks get, which another one may have left before."""
        with explained(self._name):
            found = self._store.compare_set(f"post/{key}", "", stores.encode(value))
            return stores.decode(found, f"{self._name}: a decision")

    def forget(self, key: str) -> None:
        """Delete a value that was left so long ago that all ranks have read it."""
        with explained(self._name):
            self._store.delete_key(f"post/{key}")

    def read(self, keys: list[str], patience: float, otherwise: Any) -> Any:
        """The value of the first of the keys that a rank posts.

        If none is posted in time, or a rank is lost before, that of the first key is ``otherwise``, for all ranks.
        """
        found: list[str] = []

        def posted() -> bool:
            found.extend(key for key in keys if self._store.check([f"post/{key}"]))
            return bool(found)

        with explained(self._name):
            if not poll(posted, patience, watch.lost, size=self._size):
                return self.post(keys[0], otherwise)
            return stores.decode(self._store.get(f"post/{found[0]}"), f"{self._name}: a decision")

    @staticmethod
    def _answer(decide: Decide, values: list[Any]) -> dict[str, Any]:
        def value() -> Any:
            agreement.require_equal("meeting", [each["what"] for each in values])
            return decide([each["value"] for each in values])

        return value_or_problem(value)


def _given_up(patience: float, values: list[Any]) -> dict[str, Any]:
    """The answer of a meeting to which not all ranks came."""
    absent = absent_of(range(len(values)), values)
    problem = "; ".join(watch.lost().values()) or absent_text(absent, patience)
    return {"problem": problem, "absent": absent}


def meet_all(function: str, patience: timedelta) -> torch_dist.Store:
    """Return when all ranks of the job are in this function: a part of the store that is empty, and only for this time.

    The values that the ranks set there stay until all have come to the next one.

    ``function``: its public name. Raises CollectiveTimeoutError if a rank does not come within ``patience``, which says
    where the missing ranks are; the next call can succeed.
    """
    current = state.current()
    rank, size, seconds = current.launch.rank, current.launch.size, patience.total_seconds()
    if current.meetings is None:
        current.meetings = Meetings(current.store, "all", rank, size)
    meetings: Meetings = current.meetings
    if meetings.meet(function, None, len, seconds, next_in=seconds) is None:
        text = f"{function}: {meetings.problem}"
        if not meetings.absent:
            raise InvalidArgumentError(text)
        raise CollectiveTimeoutError(with_places(f"{function}: timed out: {meetings.problem}", meetings.absent))
    if meetings.part is not None:
        meetings.part.clear()
    meetings.part = Part(f"all/{meetings.last}", current.store)
    return meetings.part
