# SPDX-License-Identifier: Apache-2.0
"""The exchange of alarms over a store that is slow, and the alarms that stay there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as torch_dist

from mcr_dl.watch import _alarm
from mcr_dl.watch._alarm import Alarm, Exchange
from waiting import await_true


def _exchange(store: Any, heard: Callable[..., None] = lambda *_: None) -> Exchange:
    return Exchange(store, 0, 1, lambda _: {}, heard)


def test_a_slow_store() -> None:
    """It is given up for the call that asks, not for later ones; a store that fails late is given up."""
    exchange = _exchange(torch_dist.HashStore())
    exchange.start()
    free, failed = threading.Event(), threading.Event()

    def fail() -> None:
        failed.wait(10)
        raise RuntimeError("cut")

    try:
        with pytest.raises(RuntimeError, match="does not answer"):
            exchange.ask(lambda: free.wait(10), limit=0.05)
        with pytest.raises(RuntimeError, match="does not answer"):
            exchange.ask(lambda: 1, limit=10)  # returns at once: the first is still running
        free.set()
        await_true(lambda: exchange.lost is None)
        assert exchange.ask(lambda: 1) == 1
        with pytest.raises(RuntimeError, match="does not answer"):
            exchange.ask(fail, limit=0.05)
        failed.set()
        exchange.end()
        exchange._asker.join(10)
        assert not exchange._asker.is_alive()
        assert exchange.lost == "it does not answer"
    finally:
        free.set()
        failed.set()
        exchange.stop()


def test_a_long_time_without_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener's wait at the store ends by itself after a day; the listener does not."""
    monkeypatch.setattr(_alarm, "_LONG", timedelta(seconds=0.2))
    store, heard = torch_dist.TCPStore("127.0.0.1", 0, 1, True), threading.Event()
    exchange = _exchange(store, heard=lambda *_: heard.set())
    next_alarm, ended = exchange._next, threading.Semaphore(0)
    monkeypatch.setattr(exchange, "_next", lambda: next_alarm() or ended.release())
    exchange.start()
    try:
        assert ended.acquire(timeout=10)
        assert exchange.lost is None
        exchange.raise_alarm(Alarm(0, "timeout", "g", "text"))
        assert heard.wait(10)
    finally:
        exchange.stop()


def test_many_alarms_leave_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may catch a timeout every second."""
    monkeypatch.setattr(_alarm, "_COUNTED", 50)
    store = torch_dist.TCPStore("127.0.0.1", 0, 1, True)
    heard = threading.Semaphore(0)
    exchange = _exchange(store, heard=lambda *_: heard.release())
    exchange.start()
    try:
        for number in range(200):
            exchange.raise_alarm(Alarm(0, "timeout", "g", "text"))
            assert heard.acquire(timeout=10)
            deadline = time.monotonic() + 10
            inquiry = f"{number}/0/g"
            assert exchange.asker(inquiry, None, deadline) == 0
            assert exchange.publish(number, inquiry, "text", deadline) == "text"
            assert exchange._until(lambda: exchange.number == number + 1, 10, deadline)  # noqa: B023
        assert store.num_keys() < 52 + 3 * 70
    finally:
        exchange.stop()


@pytest.mark.parametrize(
    ("lost", "ended", "stay"),
    [([0], [2], []), ([0], [], ["ring/0/2"]), ([2], [], ["alarm/0", "ring/0/0", "ring/0/2"])],
)
def test_alarms_of_ranks_that_hear_none(
    monkeypatch: pytest.MonkeyPatch, lost: list[int], ended: list[int], stay: list[str]
) -> None:
    """The lowest rank that runs removes them, and no others."""
    monkeypatch.setattr(_alarm, "_COUNTED", 10)
    store, heard = torch_dist.TCPStore("127.0.0.1", 0, 1, True), threading.Semaphore(0)
    for rank in ended:
        store.set(f"watch/ended/{rank}", "{}")
    exchange = Exchange(store, 1, 3, lambda _: {}, lambda *_: heard.release(), gone=lambda: lost)
    exchange.start()
    try:
        for number in range(13):
            exchange.raise_alarm(Alarm(1, "timeout", "g", "text"))
            assert heard.acquire(timeout=10)
            await_true(lambda: exchange.number == number + 1)  # noqa: B023
        assert [key for key in ("alarm/0", "ring/0/0", "ring/0/2") if store.check([f"watch/{key}"])] == stay
        assert not store.check(["watch/ring/0/1"])
        assert store.check(["watch/alarm/12", "watch/ring/12/0", "watch/ring/12/2"])
    finally:
        exchange.stop()
