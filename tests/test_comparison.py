# SPDX-License-Identifier: Apache-2.0
"""MCR_DL_DEBUG=detail: how ranks leave and compare their calls at the store, and in few requests in large jobs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as torch_dist

from harness.counted import CALL, RANKS, SIZE, Counted
from mcr_dl.watch import _compare, _detail
from mcr_dl.watch._alarm import ENDED, ENDINGS, Exchange, decode
from mcr_dl.watch._compare import Comparison, Verdict
from mcr_dl.watch._detail import Detail
from waiting import await_true


def compared(store: Any, rank: int, members: list[int], monkeypatch: pytest.MonkeyPatch, size: int = SIZE) -> Any:
    """One rank's part of the comparison, and a function that lets it make one collective of a group."""
    calls: list[dict[str, Any]] = []

    def positions(since: dict[int, int]) -> list[dict[str, Any]]:
        new = [call for call in calls if call["seq"] >= since.get(7, 0)]
        return [{"group": "g", "number": 7, "former": 0, "derived": False, "ranks": members, "calls": new}]

    def made(run: Callable[[], Any], **other: Any) -> Any:
        if other:
            calls.append({"seq": len(calls) + 1, **CALL, **other})
        monkeypatch.setattr(_compare, "_C", SimpleNamespace(positions=positions, take_messages=list))
        return run()

    comparison = Comparison(store, rank, size)
    return comparison, lambda **other: made(comparison.step, **other), lambda: made(comparison.finish)


def test_batches_of_many_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank reads them at once, and one counter if there are none."""
    store = Counted(torch_dist.HashStore())
    steps = [compared(store, rank, RANKS[:50], monkeypatch)[1] for rank in RANKS[:50]]
    for step in steps[1:]:
        step(bytes=4)
        step(bytes=8)
    store.forget()
    assert steps[0](bytes=4) is None
    del store.made["delete_key"]
    assert store.made.total() == 5  # its own batch, the counter, a check and the values
    store.forget()
    assert steps[0]() is None
    assert store.made.total() == 1
    assert steps[0](bytes=16)[1].startswith("the ranks have made different calls: collective 2 of group 'g'")
    assert store.store.num_keys() == 1  # the counter


def test_batches_that_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number may be taken before its batch is there; a rank's batches are compared in order, each once."""
    store = torch_dist.HashStore()
    (first, step, _), (second, other, _) = (compared(store, rank, [0, 1], monkeypatch) for rank in range(2))
    other(bytes=4)
    other(bytes=8)
    key = second._groups[7].key
    hidden = store.get(f"{key}/1")
    store.delete_key(f"{key}/1")
    assert step(bytes=4) is None
    assert first._groups[7].awaited == [1, 2]
    store.set(f"{key}/1", hidden)
    store.set(f"{key}/{store.add(f'{key}/made', 1)}", hidden)  # again, as after an error of the store
    assert step(bytes=8) is None
    assert first._groups[7].awaited == []
    assert first._groups[7].calls == {0: {}, 1: {}}
    assert store.num_keys() == 1


def test_groups_of_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that has ended is forgotten, also at the store; a later one of its name and ranks is compared anew."""
    store = torch_dist.HashStore()
    both = [Comparison(store, rank, 2) for rank in range(2)]

    def step(rank: int, former: int, *calls: dict[str, Any]) -> tuple[str, str] | None:
        group = {"group": "g", "number": former, "former": former, "derived": False, "ranks": [0, 1], "calls": calls}
        core = SimpleNamespace(positions=lambda _: [group] if calls else [], take_messages=list)
        monkeypatch.setattr(_compare, "_C", core)
        return both[rank].step()

    for former in range(3):
        assert [step(rank, former, {**CALL, "seq": 1}, {**CALL, "seq": 2}) for rank in (1, 0)] == [None, None]
        assert [step(rank, former) for rank in (1, 0)] == [None, None]
        assert both[0]._groups == both[1]._groups == {}
        assert store.num_keys() == 0
    step(1, 3, {**CALL, "seq": 1, "bytes": 4})
    found = step(0, 3, {**CALL, "seq": 1, "bytes": 8})
    assert found is not None
    assert "collective 1 of group 'g'" in found[1]


def test_a_difference_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that asked for the comparison may not have waited for its end."""
    store = torch_dist.HashStore()
    (_, step, finish), (_, other, end) = (compared(store, rank, [0, 1], monkeypatch, 2) for rank in range(2))
    other(bytes=4)
    found = step(bytes=8)
    assert found is not None
    assert "collective 1 of group 'g'" in found[1]
    assert step() == found
    assert [end(), finish(), end()] == [None, None, None]
    assert finish() == end() == Verdict(*found, [])


@pytest.mark.parametrize("missed", [False, True])
def test_a_group_that_ends_unseen(monkeypatch: pytest.MonkeyPatch, missed: bool) -> None:
    """If the last step before its end came too late, this rank may have made more calls than it has left."""
    store = torch_dist.HashStore()
    comparisons = [Comparison(store, rank, 2) for rank in range(2)]
    group = {"group": "g", "number": 3, "former": 0, "derived": False, "ranks": [0, 1]}

    def step(rank: int, *seqs: int) -> None:
        groups = [{**group, "calls": [{**CALL, "seq": seq} for seq in seqs]}] if seqs else []
        monkeypatch.setattr(_compare, "_C", SimpleNamespace(positions=lambda _: groups, take_messages=list))
        assert comparisons[rank].step() is None

    step(1, 1)
    step(0, 1, 2)
    if missed:
        comparisons[1].miss()
    step(1)
    step(0)
    assert comparisons[0]._groups == {}
    assert (comparisons[0]._uneven is None) == missed


def test_large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are cut, as a store takes no larger values; the messages of all groups are kept if the store fails."""
    monkeypatch.setattr(_compare, "_RUNS", 2)
    made = _compare._Group({"group": "g", "former": 0, "ranks": [0, 1]}, 0)
    runs = [(True, 1, tag, None, "float32", 4, None, None, 1) for tag in range(5)]
    made.prepare([{**CALL, "seq": 1}], runs, lost=False, last=True)
    batches = [decode(batch.encode()) for batch in made.unsent]
    assert [len(batch["messages"]) for batch in batches] == [2, 2, 1]
    assert [len(batch["calls"]) for batch in batches] == [1, 0, 0]
    assert [batch.get("end") for batch in batches] == [None, None, 1]
    assert all(made.add(batch) for batch in batches)
    assert len(made.messages.waiting(9)) == 5


def test_a_store_that_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages of all groups, which the core gives once, come with the next step."""
    store = torch_dist.HashStore()
    groups = [
        {"group": f"g{number}", "number": number, "former": 0, "derived": False, "ranks": [0, 1], "calls": []}
        for number in (1, 2)
    ]
    taken = [[(number, [(True, 1, 0, None, "float32", 4, None, None, 1)], False) for number in (1, 2)], []]
    core = SimpleNamespace(positions=lambda _: groups, take_messages=lambda: taken.pop(0))
    monkeypatch.setattr(_compare, "_C", core)
    comparison = Comparison(store, 0, 2)

    def fail(*_: object) -> None:
        raise RuntimeError("the store fails")

    with monkeypatch.context() as patch:
        patch.setattr(comparison, "_store", SimpleNamespace(add=fail))
        with pytest.raises(RuntimeError, match="the store fails"):
            comparison.step()
    assert comparison.step() is None
    assert [len(comparison.unmatched(f"g{number}")) for number in (1, 2)] == [1, 1]


def test_groups_that_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core is asked for no calls of groups that follow from others, and of groups of one rank."""
    asked: list[dict[int, int]] = []
    common = {"group": "g", "former": 0, "calls": []}
    groups = [
        {**common, "number": 1, "derived": True, "ranks": [0, 1]},
        {**common, "number": 2, "derived": False, "ranks": [0]},
        {**common, "number": 3, "derived": False, "ranks": [0, 1]},
    ]

    def positions(since: dict[int, int]) -> list[dict[str, Any]]:
        asked.append(since)
        return groups

    monkeypatch.setattr(_compare, "_C", SimpleNamespace(positions=positions, take_messages=list))
    comparison = Comparison(torch_dist.HashStore(), 0, 2)
    comparison.step()
    comparison.step()
    assert asked == [{}, {1: 1 << 62, 2: 1 << 62, 3: 1}]
    groups.clear()
    comparison.step()
    comparison.step()
    assert asked[3] == {3: 1}  # until the other rank has left its end


def test_the_last_comparison_is_made_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Two functions of the end ask for it; the second one does not wait again."""
    asked: list[Any] = []

    def ask(action: Any, _: float) -> None:
        asked.append(action)
        raise RuntimeError("it is away")

    exchange: Any = SimpleNamespace(rank=0, size=2, store=torch_dist.HashStore(), ask=ask, pause=0.0)
    made = Detail(exchange, threading.Event())
    made.compare_last()
    made.compare_last()
    assert len(asked) == 1
    assert capsys.readouterr().err.count("the last calls have not been compared: the store cannot be reached") == 1


def test_all_ranks_learn_of_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once this rank has heard the alarm that another one has raised a moment before; they are told once."""
    monkeypatch.setattr(_detail, "INQUIRY", 0.1)
    monkeypatch.setattr(_detail, "_C", SimpleNamespace(stop_desync=lambda _: None))
    store = torch_dist.HashStore()
    exchange = Exchange(store, 0, 2, lambda _: {}, lambda *_: None)
    exchange.start()
    made = Detail(exchange, threading.Event())
    made.comparison.step = lambda: ("g", "the calls differ")  # type: ignore[method-assign]
    try:
        store.add("watch/alarm/0", 1)
        made.compare()
        assert not store.check(["watch/ring/0/1"])
        store.set("watch/ring/0/0", json.dumps({"by": 1, "kind": "error", "group": "g", "text": "failed"}))
        await_true(lambda: exchange.number == 1)
        for _ in range(3):
            made.compare()
        assert json.loads(store.get("watch/ring/1/1"))["kind"] == "desync"
        assert not store.check(["watch/alarm/2"])
    finally:
        exchange.stop()
        exchange.end()


def test_calls_that_were_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that makes many calls at once may leave some out: their counterparts do not stay."""
    store = torch_dist.HashStore()
    (first, step, _), (_, other, _) = (compared(store, rank, [0, 1], monkeypatch) for rank in range(2))
    for _ in range(3):
        other(bytes=4)
    first._groups[7] = _compare._Group({"group": "g", "former": 0, "ranks": [0, 1]}, 0)
    first._groups[7].next = 3  # calls 1 and 2 are not known any more
    for _ in range(2):
        assert step(bytes=4) is None
    assert step(bytes=4) is None
    assert first._groups[7].calls == {0: {}, 1: {}}


def test_the_end_of_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks wait for counters, and rank 0 gives the verdict."""
    store = Counted(torch_dist.HashStore())
    ranks = [compared(store, rank, [0, 1, 2], monkeypatch, 3) for rank in range(3)]
    finish = [each[2] for each in ranks]
    for _, step, _ in ranks:
        step(bytes=4)
    assert [finish[0](), finish[1]()] == [None, None]
    store.forget()
    assert finish[1]() is None
    assert store.made.total() <= 3
    assert finish[2]() is None  # all have ended
    assert [finish[1](), finish[0]()] == [None, Verdict("", "", [])]
    assert finish[1]() == finish[2]() == Verdict("", "", [])


def test_a_rank_that_ends_without_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 names it, after few requests; if rank 0 itself does so, the others name that."""
    store = Counted(torch_dist.HashStore())
    finish = [compared(store, rank, [0], monkeypatch)[2] for rank in range(2)]
    for rank in RANKS[2:]:
        if rank != 7:
            store.store.set(f"calls-end/{rank}", "{}")
    assert [finish[0](), finish[1]()] == [None, None]
    store.forget()
    assert finish[0]() is None
    assert store.made.total() <= 3
    store.store.set(f"{ENDED}/7", "{}")
    store.store.add(ENDINGS, 1)
    assert finish[0]() == finish[1]() == Verdict("", "", [7])
    assert store.made.total() <= 40
    alone = torch_dist.HashStore()
    finish = [compared(alone, 1, [0], monkeypatch)[2]]
    assert finish[0]() is None
    alone.set(f"{ENDED}/0", "{}")
    assert finish[0]() == Verdict("", "", [0])
