# SPDX-License-Identifier: Apache-2.0
"""One answer for all ranks, over the store: each rank leaves a value, and the last one to arrive answers for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as torch_dist

from mcr_dl import watch
from mcr_dl.base import stores
from mcr_dl.base.errors import BackendError, InvalidArgumentError, McrError, PeerLostError

NEXT = 1.0  # seconds for the others to come to the next round
PATIENCE = 15.0  # seconds for another rank's answer; that rank may ask the missing ones where they are
NOTICE = 1.0  # seconds from the end of the store to the notice of a rank that has ended with it
_SHORTEST, _LONGEST = 0.0001, 0.01  # seconds between two looks
_LOCATED = 8  # missing ranks whose places an error has, at most
_CLOSED = 1 << 40  # added to the counter of arrived ranks: it is too late

Decide = Callable[[list[Any]], Any]
"""Makes an answer of the ranks' values, in rank order; both of JSON's types."""


def pause(passed: float, size: int = 1, longest: float = _LONGEST) -> float:
    """Seconds to the next look at the store, ``passed`` seconds after the first: a tenth of these, at most ``longest``.

    Of many ranks that look each does so less often, as one process answers all of them.
    """
    return min(max(passed / 10, _SHORTEST, size * 1e-6), max(longest, size * 1e-4))


def poll(
    condition: Callable[[], bool],
    limit: float,
    check: Callable[[], object] | None = None,
    *,
    size: int = 1,
    longest: float = _LONGEST,
) -> bool:
    """Whether a condition becomes true within ``limit`` seconds. Polls: a wait in the store would block other threads.

    Between two looks it sleeps as ``pause`` says; ``size``: the number of ranks that look. ``check`` may raise, and
    ends the wait if its result is true.
    """
    begin = time.monotonic()
    while not condition():
        passed = time.monotonic() - begin
        if (check is not None and check()) or passed > limit:
            return False
        time.sleep(pause(passed, size, longest))
    return True


def absent_of(ranks: Iterable[int], values: list[Any]) -> list[int]:
    """The ranks without a value. There may be none in a closed round, as a rank leaves its value before it arrives."""
    return [rank for rank, value in zip(ranks, values, strict=True) if value is None]


def absent_text(ranks: Sequence[int], seconds: float) -> str:
    """``rank 1 did not come within 0.5 s``."""
    return f"{watch.ranks_text(ranks) if ranks else 'some ranks'} did not come within {seconds:g} s"


def with_places(text: str, absent: Sequence[int]) -> str:
    """The text of a timeout, with the places of ranks that have not come, if these can be found out."""
    where = watch.locate(text, list(absent[:_LOCATED])) if absent else ""
    return f"{text}. Not arrived: {where}" if where else text


def require_whole_job() -> None:
    """Raise PeerLostError if the job has lost a rank."""
    lost = watch.lost()
    if lost:
        raise PeerLostError("; ".join(lost.values()))


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Errors of the store become mcr_dl's: most often the process that holds it has ended. ``what`` begins the text."""
    try:
        yield
    except stores.STORE_ERRORS as error:
        if isinstance(error, McrError):
            raise
        poll(lambda: bool(watch.lost()), NOTICE)
        require_whole_job()
        raise BackendError(f"{what}: the job's store cannot be reached: {error}") from error


def problem_of(error: InvalidArgumentError) -> dict[str, str]:
    """An answer that has only the reason why there is no other one."""
    return {"problem": str(error)}


class Round:
    """A rank's part in one answer. Values and answers are of JSON's types, and not None.

    No method but ``conclude`` waits: the ranks poll ``answered``. A rank that stops waiting closes the round. One
    counter decides whether that came before the last rank, so that all ranks know who answers: the last rank to arrive,
    or, in a closed round, the rank that closed it.
    """

    def __init__(self, store: torch_dist.Store, key: str, rank: int, size: int, *, values: str = "value") -> None:
        self._store: Any = store
        self._key, self._rank, self._size, self._values = key, rank, size, values
        self.late = False  # this rank has arrived at a closed round
        self.counting = False  # this rank may have been counted, even if that has failed here

    def arrive(self, value: Any) -> bool:
        """Leave this rank's value; whether this rank is the last, and has to answer."""
        stores.leave(self._store, f"{self._values}/{self._rank}", stores.encode([self._key, value]))
        self.counting = True
        arrived = self._store.add(f"come/{self._key}", 1)
        self.late = arrived > _CLOSED
        return bool(arrived == self._size)

    def close(self) -> bool:
        """Close the round; whether this rank has to answer, as not all ranks have arrived."""
        return bool(self._store.add(f"come/{self._key}", _CLOSED) < _CLOSED + self._size)

    def values(self) -> list[Any]:
        """The values by rank; None for a rank that is not there: it has not arrived, or is at another round by now."""
        keys = [f"{self._values}/{rank}" for rank in range(self._size)]
        missing = set(stores.absent(self._store, keys))
        there = [key for rank, key in enumerate(keys) if rank not in missing]
        texts = self._store.multi_get(there) if there else []
        found = {key: stores.value_of(self._store, key, text, key) for key, text in zip(there, texts, strict=True)}
        rounds = [found.get(key, [None, None]) for key in keys]
        return [value if of == self._key else None for of, value in rounds]

    def answer(self, answer: Any) -> None:
        """Leave the answer for all ranks."""
        stores.leave(self._store, f"answer/{self._key}", stores.encode(answer))

    def begun(self) -> bool:
        """Whether a rank has arrived, or has closed the round."""
        return bool(self._store.check([f"come/{self._key}"]))

    def answered(self) -> bool:
        """Whether the answer is there."""
        return bool(self._store.check([f"answer/{self._key}"]))

    def result(self) -> Any:
        """The answer."""
        key = f"answer/{self._key}"
        return stores.value_of(self._store, key, self._store.get(key), key)

    def conclude(
        self,
        last: bool,
        decide: Decide,
        give_up: Decide,
        unreadable: Callable[[InvalidArgumentError], Any] = problem_of,
        *,
        limit: float,
        check: Callable[[], object],
        longest: float = _LONGEST,
        patience: Callable[[], float] = lambda: PATIENCE,
    ) -> Any:
        """The answer, for a rank that has arrived, as the ``last`` one or not; None if it does not come.

        The last rank answers with ``decide``, and deletes what earlier rounds have left. Others wait for the answer for
        ``limit`` seconds, and then close the round: one answers with ``give_up``, unless the last rank has arrived;
        those that do not answer wait for the answer of the one that does, for as many seconds as ``patience`` then
        says.

        ``unreadable``: makes the answer if a rank's value cannot be read, as it is too long, or is not there for the
        last rank, as the rank was interrupted while it waited, and is at another round. ``check`` may raise, and ends
        the first wait if its result is true; ``longest``: as of ``pause``.
        """

        def wait(seconds: float, look: Callable[[], object]) -> bool:
            return poll(self.answered, seconds, look, size=self._size, longest=longest)

        if last:
            self._answer_by(decide, unreadable, complete=True)
        elif not wait(limit, check):
            if self.close():
                self._answer_by(give_up, unreadable)
            elif not wait(patience(), lambda: check() and None):
                return None
        result = self.result()
        if last:
            self._forget_earlier()
        return result

    def _answer_by(
        self, make: Decide, unreadable: Callable[[InvalidArgumentError], Any], *, complete: bool = False
    ) -> None:
        try:
            values = self.values()
            if complete and None in values:
                message = f"expected all ranks to wait for the others, got another call on rank {values.index(None)}"
                raise InvalidArgumentError(message)
        except InvalidArgumentError as error:  # the others wait for an answer
            self.answer(unreadable(error))
        else:
            self.answer(make(values))

    def _forget_earlier(self) -> None:
        """Delete what earlier rounds have left, also those that were given up: all ranks have come to this one.

        The keys are numbers. The last rank of a complete round does so: it finds what came after another complete one.
        """
        for turn in range(int(self._key) - 1, -1, -1):
            if not self._store.check([f"come/{turn}"]):
                return
            self._forget(str(turn))

    def _forget(self, key: str) -> None:
        self._store.delete_key(f"come/{key}")
        stores.remove(self._store, f"answer/{key}")

    def withdraw(self) -> None:
        """Nothing needs the answer any more, on any rank, and some may never arrive: delete what this one has left."""
        self._store.delete_key(f"{self._values}/{self._rank}")
        self._store.delete_key(f"come/{self._key}")

    def leave(self) -> None:
        """Where ranks may be several rounds apart: this rank has the answer. The last rank to have it deletes all."""
        # Some stores cannot delete keys, and one may end with a rank that goes on.
        with suppress(*stores.STORE_ERRORS):
            stores.remove(self._store, f"{self._values}/{self._rank}")
            if self._store.add(f"read/{self._key}", 1) == self._size:
                self._forget(self._key)
                self._store.delete_key(f"read/{self._key}")


def join(
    store: torch_dist.Store,
    count: Callable[[], int],
    rank: int,
    size: int,
    value: Any,
    *,
    next_in: float = NEXT,
    check: Callable[[], object] | None = None,
) -> tuple[Round, bool]:
    """Arrive at the next one of a series of rounds: that round, and whether this rank is the last one to come.

    A rank that comes to a round which the others have given up goes on to the next one if they come to that within
    ``next_in`` seconds; otherwise the round is ``late``. ``count`` gives the keys of this rank's rounds; ``check``:
    as of ``poll``.
    """
    while True:
        turn = count()
        this_round = Round(store, str(turn), rank, size)
        last = this_round.arrive(value)
        if not this_round.late or not poll(Round(store, str(turn + 1), rank, size).begun, next_in, check, size=size):
            return this_round, last
