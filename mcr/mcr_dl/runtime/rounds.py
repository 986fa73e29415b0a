# SPDX-License-Identifier: Apache-2.0
"""One answer for all ranks, over the store: each rank leaves a value, and the last one to arrive answers for all."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch.distributed as torch_dist

from mcr_dl.base import agreement

_SHORTEST = 0.0001  # seconds between two looks
_CLOSED = 1 << 40  # added to the counter of arrived ranks: it is too late


def pause(passed: float, longest: float, size: int = 1) -> float:
    """Seconds to the next look at the store, ``passed`` seconds after the first: a tenth of these, at most ``longest``.

    Of many ranks that look each does so less often, as one process answers all of them.
    """
    return min(max(passed / 10, _SHORTEST, size * 1e-6), max(longest, size * 1e-4))


def poll(
    condition: Callable[[], bool],
    limit: float,
    longest: float,
    check: Callable[[], None] | None = None,
    *,
    size: int = 1,
) -> bool:
    """Whether a condition becomes true within ``limit`` seconds. Polls: a wait in the store would block other threads.

    Between two looks it sleeps as ``pause`` says; ``size``: the number of ranks that look. ``check`` may raise.
    """
    begin = time.monotonic()
    while not condition():
        passed = time.monotonic() - begin
        if check is not None:
            check()
        if passed > limit:
            return False
        time.sleep(pause(passed, longest, size))
    return True


class Round:
    """A rank's part in one answer. No method waits: the ranks poll ``answered``.

    A rank that stops waiting closes the round. One counter decides whether that came before the last rank, so that all
    ranks know who answers: the last rank to arrive, or, in a closed round, the rank that closed it.
    """

    def __init__(self, store: torch_dist.Store, key: str, rank: int, size: int, *, values: str = "value") -> None:
        self._store: Any = store
        self._key, self._rank, self._size, self._values = key, rank, size, values
        self.late = False  # this rank has arrived at a closed round
        self.counting = False  # this rank may have been counted, even if that has failed here

    def arrive(self, value: str) -> bool:
        """Leave this rank's value; whether this rank is the last, and has to answer."""
        agreement.leave(self._store, f"{self._values}/{self._rank}", value)
        self.counting = True
        arrived = self._store.add(f"come/{self._key}", 1)
        self.late = arrived > _CLOSED
        return bool(arrived == self._size)

    def close(self) -> bool:
        """Close the round; whether this rank has to answer, as not all ranks have arrived."""
        return bool(self._store.add(f"come/{self._key}", _CLOSED) < _CLOSED + self._size)

    def values(self) -> list[bytes | None]:
        """The values that are there, by rank."""
        keys = [f"{self._values}/{rank}" for rank in range(self._size)]
        missing = set(agreement.absent(self._store, keys))
        there = [key for rank, key in enumerate(keys) if rank not in missing]
        found: dict[str, bytes] = dict(zip(there, self._store.multi_get(there), strict=True)) if there else {}
        return [agreement.whole(self._store, key, found[key], key) if key in found else None for key in keys]

    def answer(self, text: str) -> None:
        """Leave the answer for all ranks."""
        agreement.leave(self._store, f"answer/{self._key}", text)

    def answered(self) -> bool:
        """Whether the answer is there."""
        return bool(self._store.check([f"answer/{self._key}"]))

    def result(self) -> bytes:
        """The answer."""
        key = f"answer/{self._key}"
        return agreement.whole(self._store, key, self._store.get(key), key)

    def forget(self, key: str) -> None:
        """Delete the counter and the answer of an earlier round, which all ranks have read."""
        self._store.delete_key(f"come/{key}")
        agreement.remove(self._store, f"answer/{key}")

    def withdraw(self) -> None:
        """Nothing needs the answer any more, on any rank, and some may never arrive: delete what this one has left."""
        self._store.delete_key(f"{self._values}/{self._rank}")
        self._store.delete_key(f"come/{self._key}")

    def leave(self) -> None:
        """Where ranks may be several rounds apart: this rank has the answer. The last rank to have it deletes all."""
        agreement.remove(self._store, f"{self._values}/{self._rank}")
        if self._store.add(f"read/{self._key}", 1) == self._size:
            self.forget(self._key)
            self._store.delete_key(f"read/{self._key}")
