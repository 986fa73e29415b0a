# SPDX-License-Identifier: Apache-2.0
"""The requests of a job of many ranks to the store, which one process serves: their number, the size of answers."""

from __future__ import annotations

import os
import resource
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as torch_dist

from harness.counted import SIZE, Counted
from mcr_dl.base import agreement, blocks, launcher, stores
from mcr_dl.base.errors import CollectiveTimeoutError, PeerLostError
from mcr_dl.groups import survivors
from mcr_dl.libraries import c10d, pmi
from mcr_dl.runtime import lives, meetings, rounds, startup, state
from mcr_dl.tables import choice
from mcr_dl.trace import _clock

MANY = 10_000
HOSTS = [f"host {rank // 8}" for rank in range(MANY)]


@pytest.fixture
def store() -> torch_dist.Store:
    """The store behind all of a job's ranks, which wait there for a moment only."""
    made = torch_dist.HashStore()
    made.set_timeout(timedelta(seconds=0.1))
    return made


# ---- an agreement


def test_an_agreement(store: torch_dist.Store) -> None:
    """Rank 0 reads all values in one request."""
    for rank in range(1, SIZE):
        store.set(f"key/{rank}", str(rank))
    first, last = Counted(store), Counted(store)
    assert agreement.agree(first, 0, SIZE, "key", 0, sum) == sum(range(SIZE))  # type: ignore[arg-type]
    assert agreement.agree(last, SIZE - 1, SIZE, "key", SIZE - 1, sum) == sum(range(SIZE))  # type: ignore[arg-type]
    assert first.requests <= 4
    assert last.requests <= 2


@pytest.mark.parametrize("absent", [[7, 500, 999], [0]])
def test_an_agreement_that_some_ranks_miss(store: torch_dist.Store, absent: list[int]) -> None:
    """One rank looks for them, with few requests, and the others repeat what it has found."""
    for rank in set(range(SIZE)) - set(absent):
        store.set(f"key/{rank}", str(rank))
    texts, requests = set(), []
    for rank in (1, 0, 2) if 0 not in absent else (1, 2):
        counting = Counted(store)
        with pytest.raises(CollectiveTimeoutError) as raised:
            agreement.agree(counting, rank, SIZE, "key", rank, sum)  # type: ignore[arg-type]
        texts.add(str(raised.value))
        requests.append(counting.requests)
    names = ", ".join(f"rank {rank}" for rank in absent)
    assert len(texts) == 1
    assert texts.pop().endswith(f"have not agreed on 'key' within 0.1 s. Not arrived: {names}.")
    assert requests[0] <= 80
    assert max(requests[1:]) <= 5


def test_an_agreement_without_rank_0s_answer(store: torch_dist.Store) -> None:
    """All have come, so it is rank 0 that does not go on."""
    for rank in range(SIZE):
        store.set(f"key/{rank}", str(rank))
    with pytest.raises(CollectiveTimeoutError, match=r"Not arrived: rank 0\.$"):
        agreement.agree(store, 1, SIZE, "key", 1, sum)


def test_the_rank_that_looks_ends_before_it_answers(store: torch_dist.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_PATIENCE", timedelta(seconds=0.1))
    store.add("key/looks", 1)
    with pytest.raises(CollectiveTimeoutError, match="The rank that looks for the missing ones has not answered"):
        agreement.agree(store, 1, SIZE, "key", 1, sum)


def test_an_agreement_in_a_file(tmp_path: Path) -> None:
    """Such a store has errors of its own for waits that last too long."""
    store = torch_dist.FileStore(str(tmp_path / "store"), 3)
    store.set_timeout(timedelta(seconds=0.1))
    store.set("key/0", "0")
    with pytest.raises(CollectiveTimeoutError, match=r"within 0\.1 s\. Not arrived: rank 2\.$"):
        agreement.agree(store, 1, 3, "key", 1, sum)


@pytest.mark.parametrize("missing", [[], [0], [999], [3, 4, 500], list(range(SIZE))])
def test_keys_that_are_not_there(store: torch_dist.Store, missing: list[int]) -> None:
    """They are found in order."""
    for place in set(range(SIZE)) - set(missing):
        store.set(str(place), "")
    counting = Counted(store)
    found = list(stores.absent(counting, [str(place) for place in range(SIZE)], 5))  # type: ignore[arg-type]
    assert found == [place + 5 for place in missing]
    assert counting.requests <= min(1 + 20 * len(missing), 2 * SIZE)


# ---- what all ranks read


@pytest.mark.parametrize("numbers", [[], [3], [0, 0, 1, 1, 2, 2], [0, 1, 0, 1], [0, 0, 1], [5, 4, 4, 9, 10], [2, 2, 2]])
def test_blocks(numbers: list[int]) -> None:
    """They hold the same numbers."""
    assert blocks.unpack(blocks.pack(numbers)) == numbers


def test_equal_hosts_take_one_block() -> None:
    assert blocks.pack(blocks.numbered(HOSTS)) == [[0, MANY // 8, 8]]
    assert blocks.pack(range(MANY)) == [[0, MANY, 1]]
    assert blocks.pack([False, False, True]) == [[0, 1, 2], [1, 1, 1]]


def test_the_backends_of_a_start() -> None:
    """The answer does not grow with the number of hosts."""
    here = {"library": "one", "problem": "", "absent": False, "asked": False, "running": ""}
    values = [
        {
            "problem": "",
            "named": "auto",
            "networks": 1,
            "conditions": {"gloo": {**here, "domain": ""}, "shm": {**here, "domain": f"{host} {'x' * 70}"}},
        }
        for host in HOSTS
    ]
    answer = startup._decide(values)
    assert answer["local"] == {"shm": [[0, MANY // 8, 8]]}
    assert len(stores.encode(answer)) < 200


def test_the_facts_of_a_start() -> None:
    """The same, and every rank has its node from the answer."""
    each = {"libraries": {"gloo": "1"}, "debug": "off", "cores": "ff", "table": None, "rules": ""}
    answer = choice.decider("none", ["gloo"])([{**each, "node": host} for host in HOSTS])
    assert len(stores.encode(answer)) < 200
    known = choice.knowledge_of(answer, ["gloo"])
    assert known.nodes == [rank // 8 for rank in range(MANY)]
    assert known.crowded == [False] * MANY
    assert str(known.shape(list(range(20)))) == "20 ranks on 3 nodes"
    assert known.shape(list(range(20))).ranks_per_node == 8
    assert choice.knowledge_of(choice.answer_of(known), ["gloo"]) == known


# ---- survivors


def _steps(store: object, rank: int) -> survivors._Steps:
    return survivors._Steps("shrink", store, rank, timedelta(seconds=20))  # type: ignore[arg-type]


def test_survivors_meet(store: torch_dist.Store) -> None:
    """The first one reads all words in one request, and no rank reads equal words twice."""
    members = [rank for rank in range(SIZE) if rank != 3]
    for rank in members[1:]:
        problem = "no disk" if rank == 7 else ""
        store.set(f"left/{rank}", stores.encode([problem, ["mpi"], "shrink", False]))
    first, other = Counted(store), Counted(store)
    outcome = _steps(first, 0).meet("left", members, wish=["mpi"])
    assert outcome.ranks == members
    assert outcome.problems == ["no disk" if rank == 7 else "" for rank in members]
    assert outcome.wishes == [["mpi"]] * len(members)
    assert first.requests <= 9
    assert len(store.get("left/outcome")) < 200
    assert _steps(other, 500).meet("left", members, wish=["mpi"]) == outcome
    assert other.requests <= 4


def test_survivors_that_one_rank_takes_for_lost(store: torch_dist.Store) -> None:
    """Rank 1 has concluded without rank 0, and reads the values of all after rank 2 has gone on with an outcome."""
    steps = [_steps(store, rank) for rank in range(3)]
    store.set("left/1", stores.encode(["", None, "shrink", False]))
    store.set("left/2", stores.encode(["", None, "shrink", False]))
    assert steps[0].meet("left", [0, 1, 2]).ranks == [0, 1, 2]
    assert steps[2].meet("left", [0, 1, 2]).ranks == [0, 1, 2]
    assert store.check([f"left/{rank}" for rank in range(3)])
    for rank in (1, 2):
        store.set(f"made/{rank}", stores.encode(["", None, "shrink", False]))
    steps[0].meet("made", [0, 1, 2])
    assert [store.check([f"left/{rank}"]) for rank in range(3)] == [False, True, True]


# ---- lives, clocks, rounds


def test_rank_0_begins_a_life(store: torch_dist.Store) -> None:
    """It asks about all ranks at once. Here the ranks come as soon as it has given the name."""

    class Prompt(Counted):
        def __getattr__(self, name: str) -> Callable[..., Any]:
            def act(key: Any, *arguments: Any) -> Any:
                if name == "set" and key.startswith("name/"):
                    rank = key.removeprefix("name/word ")
                    store.set(f"{arguments[0]}/{rank}", "here")
                    return store.set(key, *arguments)  # one message for each rank, without an answer
                self.made[name] += 1
                return getattr(store, name)(key, *arguments)

            return act

    for rank in range(1, SIZE):
        store.set(f"join/{rank}", f"word {rank}")
    prompt = Prompt(store)
    lives._lead(prompt, SIZE, timedelta(seconds=20))  # type: ignore[arg-type]
    assert prompt.requests <= 7


def test_ranks_of_one_host_share_a_comparison_of_clocks() -> None:
    """Its first rank compares, and the others take its offset."""
    store, found = torch_dist.HashStore(), dict[int, tuple[int, int, str]]()
    counting = [Counted(store) for _ in range(6)]

    def rank(number: int) -> None:
        domain = f"host {number // 2}".__str__
        found[number] = _clock.measure(counting[number], number, 6, timedelta(seconds=20), domain=domain)  # type: ignore[arg-type]

    threads = [threading.Thread(target=rank, args=(each,)) for each in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found[0] == found[1] == (0, 0, _clock.SAME)
    for first, other in ((2, 3), (4, 5)):
        assert found[first] == found[other]
        assert found[first][2] == _clock.PING
        assert abs(found[first][0]) <= found[first][1]
    assert [counting[each].requests for each in (1, 3, 5)] == [4, 5, 5]  # two of them set the timeout


def test_many_ranks_look_less_often() -> None:
    """All of them together look up to ten thousand times a second."""
    assert rounds.pause(10.0, 2) == rounds.pause(10.0) == 0.01
    assert rounds.pause(0.0, 2) == 0.0001
    assert rounds.pause(100.0, MANY) == 1.0
    assert rounds.pause(0.0, MANY) == 0.01


def test_a_rank_is_lost_after_the_timeout(store: torch_dist.Store) -> None:
    """While another one looks for the missing ones: its loss is the error."""

    def lose(*_: object) -> None:
        raise PeerLostError("lost rank 0")

    store.set("key/looks", "1")  # the other one looks
    watched: Any = SimpleNamespace(
        set=store.set, add=store.add, timeout=timedelta(seconds=0.1), get=store.get, wait=lose
    )
    with pytest.raises(PeerLostError, match="lost rank 0"):
        agreement.agree(watched, 1, 2, "key", 0, sum)


@pytest.mark.parametrize("length", [4, 5 << 20])
def test_a_round_leaves_no_keys(store: torch_dist.Store, length: int) -> None:
    """Also if a rank comes late, to a round that another one has closed, and none of texts that are in pieces."""
    here, late = "x" * length, "y" * length
    parts = [rounds.Round(store, "5", rank, 3, values="value/5") for rank in range(3)]
    assert [part.arrive(here) for part in parts[:2]] == [False, False]
    assert parts[0].close()
    parts[0].answer(late)
    for part in parts[:2]:
        assert part.result() == late
        part.leave()
    parts[2].arrive(here)
    assert parts[2].result() == late
    parts[2].leave()
    assert store.num_keys() == 0
    for part in [rounds.Round(store, "6", rank, 3, values="value/6") for rank in range(2)]:  # the third never arrives
        assert not part.arrive("here")
        part.withdraw()
    assert store.num_keys() == 0


def test_a_rank_that_goes_on_to_the_next_meeting(store: torch_dist.Store) -> None:
    """One that was interrupted while it waited: the others do not take its next value for this one."""
    mine = meetings.Meetings(store, "name", 0, 2)
    for turn in ("0", "1"):
        rounds.Round(mine._store, turn, 1, 2).arrive({"what": "call", "value": 1})
    assert mine.meet("call", 1, sum, 10.0) is None
    assert mine.problem == "expected all ranks to wait for the others, got another call on rank 1"
    assert mine.meet("call", 1, sum, 10.0) == 2


def test_a_late_rank_waits_for_the_next_meeting(store: torch_dist.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the call says, whatever the calls before it have said, and not for a lost rank."""
    current = SimpleNamespace(launch=SimpleNamespace(rank=0, size=2), store=store, meetings=None)
    monkeypatch.setattr(state, "current", lambda: current)
    waits = []

    def poll(condition: Callable[[], bool], limit: float, check: Callable[[], object], **_: object) -> bool:
        waits.append((limit, check()))
        return condition()

    monkeypatch.setattr(rounds, "poll", poll)
    for turn, seconds in enumerate((1800, 10)):
        rounds.Round(torch_dist.PrefixStore("all", store), str(turn), 1, 2).close()
        with pytest.raises(CollectiveTimeoutError, match="this rank came too late"):
            meetings.meet_all("trace.save", timedelta(seconds=seconds))
    assert waits == [(1800, {}), (10, {})]


def test_a_meeting_deletes_what_earlier_ones_have_left(store: torch_dist.Store) -> None:
    """Also those that were given up, of which the last rank reads nothing."""
    mine = meetings.Meetings(store, "name", 0, 2)
    for turn in range(6):
        if complete := turn in (1, 5):
            rounds.Round(mine._store, str(turn), 1, 2).arrive({"what": "call", "value": 1})
        assert mine.meet("call", 1, sum, 0.0) == (2 if complete else None)
    keys = [f"name/{key}/{turn}" for turn in range(6) for key in ("come", "answer")]
    assert [key for key in keys if store.check([key])] == ["name/come/5", "name/answer/5"]


def test_a_value_that_is_too_long(store: torch_dist.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks of a meeting learn it, and not only the one that reads the values; they meet again."""
    monkeypatch.setattr(stores, "_PIECE", 500)
    monkeypatch.setattr(stores, "_LARGEST", 1000)
    ranks = [meetings.Meetings(store, "name", rank, 2) for rank in range(2)]

    def meet(rank: int) -> list[Any]:
        values = ["x" * 2000 if rank == 1 else "", ""]
        return [(ranks[rank].meet("call", value, len, 10.0), ranks[rank].problem) for value in values]

    with ThreadPoolExecutor() as threads:
        found = list(threads.map(meet, range(2)))
    for first, second in found:
        assert first[0] is None
        assert "value/1: expected at most 1000 bytes, got 20" in first[1]
        assert second[0] == 2


def test_a_value_of_all_ranks_for_mpi(store: torch_dist.Store) -> None:
    """The last rank reads all, and each rank one."""
    requests = []
    for rank in range(SIZE):
        counting = Counted(store)
        pmi.give(counting, "host", rank, SIZE, f"host {rank // 8}", pmi.process_mapping)  # type: ignore[arg-type]
        requests.append(counting.requests)
    assert max(requests) <= 4
    assert pmi.result(store, "host", timedelta(seconds=1)) == "(vector,(0,125,8))"


# ---- limits of a process


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The soft and the hard limit of open files."""
    found = [1024, 4096]

    def change(_: int, both: tuple[int, int]) -> None:
        found[:] = both

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(found))
    monkeypatch.setattr(resource, "setrlimit", change)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    return found


@pytest.mark.parametrize(
    ("rank", "size", "soft"),
    [(0, 64, 1024), (0, 65, 1032), (0, 448, 4096), (0, 449, 4096), (1, 10_000, 1024)],
)
def test_files_of_the_rank_that_serves_the_store(limits: list[int], rank: int, size: int, soft: int) -> None:
    """It may have those that all ranks need, or else the program is warned."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        launcher.make_room(launcher.Launch("srun", rank, size))
    assert limits == [soft, 4096]
    told = "rank 0 may have 4096 open files, but serves the store of 449 ranks, with up to 4104: raise the limit"
    assert [str(each.message) for each in caught] == ([f"{told} (ulimit -n)"] if size == 449 else [])


def test_files_where_the_launcher_serves_the_store(limits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    launcher.make_room(launcher.Launch("torchrun", 0, 1000))
    assert limits == [1024, 4096]


def test_gloo_connects_many_ranks_when_they_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In groups of many ranks, whatever groups the process has made before, unless the user decides."""
    made: list[tuple[int, str | None]] = []

    def make(_store: object, _rank: int, size: int, _limit: timedelta) -> None:
        made.append((size, os.environ.get(c10d._LATE)))

    monkeypatch.setattr("torch._C._distributed_c10d.ProcessGroupGloo", make)
    cases: list[tuple[str | None, dict[int, str | None]]] = [
        (None, {2: None, 64: None, 65: "1"}),
        ("1", {2: "1", 64: "1", 65: "1"}),
        ("0", {2: "0", 64: "0", 65: "0"}),
    ]
    for user, expected in cases:
        if user is None:
            monkeypatch.delenv(c10d._LATE, raising=False)
        else:
            monkeypatch.setenv(c10d._LATE, user)
        for size in (2, 64, 65, 2):
            assert c10d.GLOO.reads_later(size) == (expected[size] == "1")
            c10d.GLOO.create(torch_dist.HashStore(), 0, size, timedelta(seconds=1))
            assert os.environ.get(c10d._LATE) == user
        assert made == [(size, expected[size]) for size in (2, 64, 65, 2)]
        made.clear()
