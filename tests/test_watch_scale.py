# SPDX-License-Identifier: Apache-2.0
"""The watch's requests to the store in large jobs: the number for one rank."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as torch_dist

from harness.counted import CALL, RANKS, SIZE, Counted
from mcr_dl import _C
from mcr_dl.watch import _report
from mcr_dl.watch._alarm import ENDED, ENDINGS, Alarm, Exchange, missing
from mcr_dl.watch._inquiry import Inquiries
from mcr_dl.watch._losses import Losses
from waiting import await_true


def report(made: int = 1, size: int = SIZE) -> dict[str, Any]:
    """Of a rank that has made so many collectives of the group g."""
    calls = [{"seq": seq, **CALL} for seq in range(1, made + 1)]
    group = {"group": "g", "label": "g", "collectives": made, "messages": 0, "calls": calls}
    return {"size": size, "groups": [group], "threads": [], "place": "a.py:1 in f"}


class Rank:
    """One rank's end of the watch, with a store that counts."""

    def __init__(self, store: Any, rank: int, size: int = SIZE) -> None:
        self.exchange = Exchange(store, rank, size, self._answer, lambda *_: None)
        self.counted = Counted(self.exchange.store)
        self.exchange.store = self.counted
        self.losses = Losses(self.exchange)
        self.inquiries = Inquiries(self.exchange, self.losses)
        self.size = size

    def _answer(self, alarm: Alarm) -> dict[str, Any]:
        made = report(size=self.size)
        self.inquiries.note(self.exchange.number, alarm, made)
        return made

    def find_out(self, patience: float = 10.0, seq: int = 1) -> str:
        """Ask for a call of the group."""
        alarm = Alarm(self.exchange.rank, "timeout", "g", "text", seq)
        return self.inquiries.find_out(alarm, list(range(self.size)), patience).text


@contextmanager
def started(*ranks: Rank) -> Iterator[None]:
    """The ranks listen."""
    for rank in ranks:
        rank.exchange.start()
    try:
        yield
    finally:
        for rank in ranks:
            rank.exchange.stop()
            rank.exchange.end()


def leave_reports(store: Any, without: tuple[int, ...] = ()) -> None:
    """Of all ranks but 0, on the first alarm."""
    for rank in RANKS[1:]:
        if rank not in without:
            store.set(f"watch/report/0/{rank}", json.dumps(report()))


@pytest.mark.parametrize(("without", "most"), [((), 6), ((7, 500), 110)])
def test_the_rank_that_asks(without: tuple[int, ...], most: int) -> None:
    """It needs a few requests for all reports, and some more for each that is missing."""
    store = torch_dist.HashStore()
    leave_reports(store, without)
    rank = Rank(store, 0)
    with started(rank):
        text = rank.find_out()
        assert text.startswith("Not arrived: rank 7: it has not started; rank 500: " if without else "All ranks have")
        if not without:
            assert rank.counted.made.pop("check") <= 25  # 20 a second
        assert rank.counted.made.total() <= most


def test_a_rank_that_waits() -> None:
    """It reads one rank's diagnosis, and asks for that 20 times a second at most."""
    store = torch_dist.HashStore()
    rank = Rank(store, 5)
    store.add("watch/alarm/0", 1)
    store.set("watch/ring/0/5", json.dumps({"by": 0, "kind": "timeout", "group": "g", "text": "t", "seq": 1}))
    store.set("watch/asker/0/0/g", "0")
    tell = threading.Timer(1.0, lambda: store.set("watch/diagnosis/0/0/g", json.dumps("Told.")))
    with started(rank):
        tell.start()
        assert rank.find_out() == "Told."
        tell.join()
        assert rank.counted.made.total() <= 30
        assert not store.check(["watch/report/0/7"])


def test_another_rank_takes_the_place_of_a_lost_one() -> None:
    """One of those that wait: it alone reads the reports, and all have its diagnosis."""
    store = torch_dist.HashStore()
    ranks = [Rank(store, rank, 4) for rank in range(3)]
    store.add("watch/alarm/0", 1)  # by rank 3, which has rung
    rung = json.dumps({"by": 3, "kind": "timeout", "group": "g", "text": "t", "seq": 1})
    store.set("watch/asker/0/0/g", "3")
    texts: list[str] = []
    asking = [threading.Thread(target=lambda rank=rank: texts.append(rank.find_out())) for rank in ranks]
    for rank in ranks:
        store.set(f"watch/ring/0/{rank.exchange.rank}", rung)
    with started(*ranks):
        for each in asking:
            each.start()
        for rank in ranks:
            rank.losses._texts[3] = "lost rank 3: process 9 on a has ended"
        for each in asking:
            each.join(20)
    assert texts == ["Not arrived: rank 3: process 9 on a has ended."] * 3
    assert sum(rank.counted.made["multi_get"] > 0 for rank in ranks) == 1


def test_a_slow_rank_is_not_waited_for_to_the_end() -> None:
    """Another one reads the reports before the time is over; without any time, the text says which rank is slow."""
    store = torch_dist.HashStore()
    rank = Rank(store, 0, 2)
    store.add("watch/alarm/0", 1)
    store.set("watch/asker/0/0/g", "1")
    rung = json.dumps({"by": 1, "kind": "timeout", "group": "g", "text": "t", "seq": 1})
    store.set("watch/ring/0/0", rung)
    store.set("watch/report/0/1", json.dumps(report()))
    with started(rank):
        await_true(lambda: rank.exchange.number == 1)
        rank.inquiries._fresh = 60.0
        assert "rank 1, which reads the reports, is slow" in rank.find_out(0.05)
        begin = time.monotonic()
        assert rank.find_out(10.0).startswith("All ranks have arrived")
        assert time.monotonic() - begin < 5


def test_news_get_no_reports() -> None:
    """A rank that raises an alarm at the same time raises the next one."""
    store = torch_dist.HashStore()
    ranks = [Rank(store, rank, 2) for rank in range(2)]
    with started(*ranks):
        first, second = (rank.exchange for rank in ranks)
        assert first.raise_alarm(Alarm(0, "lost", "", "lost", lost=1)) == (0, True)
        await_true(lambda: first.number == second.number == 1)
        assert not store.check(["watch/report/0/0"])
        second.number = 0  # as if it had not heard it yet
        threading.Timer(0.2, lambda: setattr(second, "number", 1)).start()
        assert ranks[1].find_out().startswith("All ranks have arrived")
        assert store.check(["watch/report/1/0"])


def test_a_call_that_times_out_later() -> None:
    """It uses the diagnosis of the alarm on this call or an earlier one, if it had been made then."""
    store = torch_dist.HashStore()
    leave_reports(store, (1,))
    ranks = [Rank(store, rank) for rank in range(2)]
    with started(*ranks):
        told = ranks[0].find_out()
        await_true(lambda: ranks[1].exchange.number == 1)
        ranks[1].counted.forget()
        ranks[1].inquiries._fresh = 60.0
        assert ranks[1].find_out(seq=1) == told
        assert ranks[1].exchange.number == 1
        assert ranks[1].counted.made.total() <= 4
        ranks[1].find_out(seq=2)  # all had arrived at that call, not at this one
        await_true(lambda: ranks[1].exchange.number == 2)


def test_a_small_job_answers_anew() -> None:
    """After half a second: the ranks may be somewhere else by then."""
    store = torch_dist.HashStore()
    ranks = [Rank(store, rank, 2) for rank in range(2)]
    with started(*ranks):
        ranks[0].find_out()
        await_true(lambda: ranks[1].exchange.number == 1)
        assert ranks[1].inquiries._fresh == 0.5
        ranks[1].inquiries._fresh = 0.0
        ranks[1].find_out()
        await_true(lambda: ranks[1].exchange.number == 2)


def test_missing() -> None:
    """One request if all are there."""
    store = Counted(torch_dist.HashStore())
    for number in RANKS:
        store.store.set(f"k/{number}", "")
    assert missing(store, "k", RANKS) == []
    assert store.made.total() == 1
    for number in (0, 998):
        store.store.delete_key(f"k/{number}")
    assert missing(store, "k", RANKS) == [0, 998]
    assert store.made.total() <= 45
    assert missing(store, "k", []) == []


def test_a_report_leaves_out_what_others_know() -> None:
    """The members of groups, which are most of a report in a large job; a dump has them."""
    group = _C.Group("large", RANKS, 0, timedelta(seconds=1))
    try:
        short = _report.make(0, SIZE, _report.Ages(), "large")
        whole = _report.make(0, SIZE, _report.Ages(), "large", whole=True)
    finally:
        group._close()
    assert len(json.dumps(short)) < 2000
    assert next(each for each in whole["groups"] if each["group"] == "large")["ranks"] == RANKS


def test_the_end_of_the_store() -> None:
    """Rank 0 counts the ranks that have ended, and reads none of their reports."""
    store = torch_dist.HashStore()
    rank = Rank(store, 0)
    with started(rank):
        rank.exchange.leave(ENDED, report())
        store.add(f"watch/{ENDINGS}", SIZE - 1)
        rank.counted.forget()
        rank.exchange.close("it ends", well=True)
        assert rank.counted.made.total() <= 2
        store.add(f"watch/{ENDINGS}", -1)
        threading.Timer(0.1, lambda: store.add("watch/closed", 1)).start()
        rank.exchange.close("it ends", well=True)
        assert store.check(["watch/ring/0/7", "watch/ring/1/999"])


# ---- the comparison of calls
