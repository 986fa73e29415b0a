# SPDX-License-Identifier: Apache-2.0
"""The ends of ranks: whether all of them end their libraries together, as the store of their job says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch.distributed as torch_dist

from mcr_dl.watch import _alarm
from mcr_dl.watch._alarm import Exchange
from waiting import await_true

LIMIT = 30.0


class Ranks:
    """The two ranks of a job, whose ends run on threads."""

    def __init__(self) -> None:
        self.store = torch_dist.HashStore()
        self.exchanges = [Exchange(self.store, rank, 2, lambda _: {}, lambda *_: None) for rank in range(2)]
        self._threads = ThreadPoolExecutor(2)
        for exchange in self.exchanges:
            exchange._asker.start()

    def leave(self, rank: int, *, well: bool = True, limit: float | None = LIMIT, begun: bool = True) -> Future[bool]:
        """Begin a rank's end."""
        return self._threads.submit(self.exchanges[rank].leave_together, well, limit, begun=begun)

    def has(self, key: str) -> bool:
        """Whether the store has a key."""
        return bool(self.store.check([f"watch/{key}"]))

    def await_counted(self, ranks: int) -> None:
        """Wait until so many ranks have begun their ends."""
        await_true(lambda: self.has("leaving") and int(self.store.get("watch/leaving")) == ranks)

    def close(self) -> None:
        """End the threads, also after a failed test."""
        self.store.set("watch/failed", "")
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
    await_true(lambda: ranks.has("failed"))
    assert other.result(LIMIT) is False


@pytest.mark.parametrize("limit", [LIMIT, None])
def test_all_end_well(ranks: Ranks, limit: float | None) -> None:
    """With and without a limit."""
    assert [end.result(LIMIT) for end in [ranks.leave(rank, limit=limit) for rank in range(2)]] == [True, True]


@pytest.mark.parametrize("kind", ["error", "limit"])
def test_a_rank_does_not_end_well(ranks: Ranks, kind: str) -> None:
    """Ranks that wait without a limit do not wait for one that has failed, or has gone without them."""
    patient = ranks.leave(1, limit=None)
    if kind == "limit":
        ranks.exchanges[0].size = 3  # another rank is missing
        ranks.exchanges[1].size = 3
    assert ranks.leave(0, well=kind != "error", limit=0).result(LIMIT) is False
    assert patient.result(LIMIT) is False


@pytest.mark.parametrize("how", ["not begun", "moved on before", "moved on", "slow"])
def test_a_rank_that_cannot_be_counted(ranks: Ranks, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries wait for it; a rank with a limit leaves at its end."""
    if how == "moved on before":
        ranks.exchanges[1].move_on()
        await_true(lambda: ranks.has("elsewhere"))
    patient = ranks.leave(0, limit=None, begun=how != "not begun")
    if how == "moved on":
        ranks.await_counted(1)
        ranks.exchanges[1].move_on()
    if how == "slow":
        ranks.await_counted(1)
        monkeypatch.setattr(_alarm, "PARTING", 0.0)
    assert patient.result(LIMIT) is True
    monkeypatch.undo()
    assert ranks.leave(1, well=False, limit=LIMIT).result(LIMIT) is False
