# SPDX-License-Identifier: Apache-2.0
"""The ends of ranks: whether all of them end their libraries together, as the store of their job says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch.distributed as torch_dist

from mcr_dl.watch import _alarm
from mcr_dl.watch._alarm import Exchange

LIMIT = 30.0


class Ranks:
    """The two ranks of a job, whose ends run on threads."""

    def __init__(self) -> None:
        self.store = torch_dist.HashStore()
        self.exchanges = [Exchange(self.store, rank, 2, lambda _: {}, lambda *_: None) for rank in range(2)]
        self._threads = ThreadPoolExecutor(2)
        for exchange in self.exchanges:
            exchange._asker.start()

    def leave(self, rank: int, *, well: bool = True, limit: float = LIMIT) -> Future[bool]:
        """Begin a rank's end."""
        return self._threads.submit(self.exchanges[rank].leave_together, well, limit)

    def await_state(self, condition: Callable[[], bool]) -> None:
        """Wait for a state of the store."""
        deadline = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def has(self, key: str) -> bool:
        """Whether the store has a key."""
        return bool(self.store.check([f"watch/{key}"]))

    def await_counted(self, ranks: int) -> None:
        """Wait until so many ranks have begun their ends."""
        self.await_state(lambda: self.has("leaving") and int(self.store.get("watch/leaving")) == ranks)

    def close(self) -> None:
        """End the threads."""
        for exchange in self.exchanges:
            exchange.end()
        self._threads.shutdown()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """Two ranks."""
    made = Ranks()
    yield made
    made.close()


@pytest.fixture
def slow(ranks: Ranks) -> Iterator[threading.Event]:
    """Occupy the thread that asks the store for rank 0, until the event."""
    free = threading.Event()
    with suppress(RuntimeError):
        ranks.exchanges[0].ask(lambda: free.wait(LIMIT), limit=0.01)
    yield free
    free.set()


def test_a_slow_store(ranks: Ranks, slow: threading.Event) -> None:
    """All ranks wait for it."""
    ends = [ranks.leave(rank) for rank in range(2)]
    ranks.await_counted(1)
    slow.set()
    assert [end.result(LIMIT) for end in ends] == [True, True]


def test_a_store_that_is_too_slow(ranks: Ranks, slow: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank that leaves without an answer lets the others know."""
    other = ranks.leave(1)
    ranks.await_counted(1)
    monkeypatch.setattr(_alarm, "PARTING", 0.05)
    assert ranks.leave(0).result(LIMIT) is False
    monkeypatch.undo()
    slow.set()
    ranks.await_state(lambda: ranks.has("failed"))
    assert other.result(LIMIT) is False
