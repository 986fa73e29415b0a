# SPDX-License-Identifier: Apache-2.0
"""One answer for all ranks, over the store: each rank leaves a value, and the last one to arrive answers for all."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch.distributed as torch_dist

_SHORTEST = 0.0001  # seconds between two looks
_CLOSED = 1 << 40  # added to the counter of arrived ranks: it is too late


def poll(condition: Callable[[], bool], limit: float, longest: float, check: Callable[[], None] | None = None) -> bool:
    """Whether a condition becomes true within ``limit`` seconds. Polls: a wait in the store would block other threads.

    Between two looks it sleeps for a tenth of the elapsed time, at most ``longest`` seconds; ``check`` may raise.
    """
    begin = time.monotonic()
    while not condition():
        passed = time.monotonic() - begin
        if check is not None:
            check()
        if passed > limit:
            return False
        time.sleep(min(max(passed / 10, _SHORTEST), longest))
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

    def arrive(self, value: str) -> bool:
        """Leave this rank's value; whether this rank is the last, and has to answer."""
        self._store.set(f"{self._values}/{self._rank}", value)
        arrived = self._store.add(f"come/{self._key}", 1)
        self.late = arrived > _CLOSED
        return bool(arrived == self._size)

    def close(self) -> bool:
        """Close the round; whether this rank has to answer, as not all ranks have arrived."""
        return bool(self._store.add(f"come/{self._key}", _CLOSED) < _CLOSED + self._size)

    def values(self) -> list[bytes | None]:
        """The values that are there, by rank."""
        keys = [f"{self._values}/{rank}" for rank in range(self._size)]
        there = keys if self._store.check(keys) else [key for key in keys if self._store.check([key])]
        found: dict[str, bytes] = dict(zip(there, self._store.multi_get(there), strict=True)) if there else {}
        return [found.get(key) for key in keys]

    def answer(self, text: str) -> None:
        """Leave the answer for all ranks."""
        self._store.set(f"answer/{self._key}", text)

    def answered(self) -> bool:
        """Whether the answer is there."""
        return bool(self._store.check([f"answer/{self._key}"]))

    def result(self) -> bytes:
        """The answer."""
        text: bytes = self._store.get(f"answer/{self._key}")
        return text

    def forget(self, key: str) -> None:
        """Delete the counter and the answer of an earlier round, which all ranks have read."""
        self._store.delete_key(f"come/{key}")
        self._store.delete_key(f"answer/{key}")
