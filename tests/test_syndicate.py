# SPDX-License-Identifier: Apache-2.0
"""Syndicate: lanes of plans; real programs with random plans, other calls, other ranks, slower iterations."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as torch_dist

from harness import Pools
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.planner import lanes
from mcr_dl.planner.plans import Planner
from mcr_dl.schedule import Syndicate
from mcr_dl.schedule.syndicate import known, measured, plan_trace, replanning
from mcr_dl.schedule.syndicate.iteration import Iteration, Seen
from mcr_dl.schedule.syndicate.slowdown import Slowdown
from mcr_dl.testing import plan_graphs
from ranks import syndicate, syndicate_groups, syndicate_known, syndicate_late

worlds = pytest.mark.parametrize("world", [1, 2, 3, 4])


def test_lanes_keep_program_order() -> None:
    """On each lane the motifs of a round, and those of the next one, are in program order; no fewer lanes suffice."""
    chosen = random.Random(0)
    for _ in range(300):
        motifs = [chosen.randint(1, 3) for _ in range(chosen.randint(1, 6))]
        order = [(call, motif, 0) for call, count in enumerate(motifs) for motif in range(count)]
        chosen.shuffle(order)
        order = [(call, motif, chosen.randint(0, 1)) for call, motif, _ in order]
        groups = {call: call % 2 for call in range(len(motifs))}
        found = lanes.assign(order, groups, len(order))
        assert found is not None
        assert found.keys() == {(call, motif) for call, motif, _ in order}
        for group, lane in itertools.product((0, 1), range(len(order))):
            keys = [
                (number + ahead, call, motif)
                for number in range(3)
                for call, motif, ahead in order
                if groups[call] == group and found[call, motif] == lane
            ]
            assert keys == sorted(keys)


def test_few_lanes() -> None:
    """A reversed order needs a lane for each call; program order needs one."""
    order = [(call, 0, 0) for call in range(5)]
    one_group = dict.fromkeys(range(5), 0)
    assert lanes.assign(order, one_group, 1) == {(call, 0): 0 for call in range(5)}
    assert lanes.assign(order[::-1], one_group, 4) is None
    assert lanes.assign(order[::-1], one_group, 5) == {(call, 0): 4 - call for call in range(5)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("budget", value) for value in (0, float("inf"), float("nan"), 1e300, 10**400, "2")),
        *((name, value) for name in ("lanes", "tries") for value in (0, 17, 2.0)),
        *(("rounds", value) for value in (0, 101)),
        *(("seed", value) for value in (-1, 2**64, 0.5)),
        *(("promising", value) for value in (1.0, float("nan"), None)),
        *(("gain", value) for value in (1.0, -0.1)),
    ],
)
def test_arguments(name: str, value: object) -> None:
    """A value out of range is refused."""
    with pytest.raises(InvalidArgumentError, match=f"Syndicate: {name}: expected .*, got "):
        Syndicate(**{name: value})  # type: ignore[arg-type]


def test_costs_of_all_ranks() -> None:
    """Medians; of a message, in which most ranks take no part, the longest time."""
    ranks = []
    for times in ((900, 30), (10, 50), (10, 40)):
        rows = [[0, op, "float32", "mpi", 8, time] for op, time in zip(("send", "all_reduce"), times, strict=True)]
        ranks.append({"rows": rows, "shared": []})
    assert [row[-1] for row in measured.medians(ranks)["rows"]] == [900, 40]


@worlds
@pytest.mark.parametrize("seed", range(4))
def test_random_plans(pools: Pools, world: int, seed: int) -> None:
    """All ranks plan equally many calls, with right results."""
    found = pools.get("processes", world).run(syndicate.random_plans, seed, limit=120)
    assert len({calls for calls, _ in found}) == 1


@worlds
def test_all_forms(pools: Pools, world: int) -> None:
    """Plans in turns, which together have all forms of all calls, on all backends."""
    found = pools.get("processes", world).run(syndicate.all_forms, limit=120)
    assert len(set(found)) == 1


@worlds
def test_other_calls(pools: Pools, world: int) -> None:
    """A call outside of the iterations ends the plan on all ranks, and it comes back."""
    pools.get("processes", world).run(syndicate.other_calls, 7, limit=120)


GROUPS = [
    (syndicate_groups.two_blocks, 3),
    (syndicate_groups.two_jobs, 2),
    (syndicate_groups.a_block_of_an_earlier_job, 2),
    (syndicate_groups.an_end_at_different_calls, 2),
    (syndicate_groups.messages, 4),
    (syndicate_groups.many_messages, 3),
    (syndicate_groups.log_of_some_operations, 4),
    (syndicate_groups.ring, 3),
    (syndicate_groups.other_candidates, 3),
    (syndicate_groups.a_backend_ends, 2),
    (syndicate_groups.a_half_leaves, 4),
    (syndicate_groups.a_half_leaves_that_counts, 4),
    (syndicate_groups.joined, 3),
    (syndicate_groups.no_growth, 2),
    (syndicate_known.planned_again, 3),
    (syndicate_known.several_threads, 3),
    (syndicate_known.equal_calls_in_a_row, 2),
    (syndicate_known.a_call_now_and_then, 3),
    (syndicate_known.gather_and_scatter, 3),
    (syndicate_known.a_search_that_fails, 2),
    (syndicate_known.errors_of_measurements, 2),
    (syndicate_known.too_little_memory, 3),
    (syndicate_known.with_bytescheduler, 2),
    (syndicate_known.rules, 2),
    (syndicate_known.a_call_that_is_not_sent, 2),
    (syndicate_known.groups_of_a_block, 2),
]


@pytest.mark.parametrize(("function", "world"), GROUPS, ids=[function.__name__ for function, _ in GROUPS])
def test_groups(pools: Pools, function: Callable[[], None], world: int) -> None:
    """See the function's docstring."""
    pools.get("processes", world).run(function, limit=120)


@pytest.mark.parametrize("ahead", [False, True], ids=["blocking", "ahead"])
def test_late_ranks(pools: Pools, ahead: bool) -> None:
    """Ranks that miss some agreements go on with right results, and the same happens on all of them."""
    found = pools.get("processes", 3).run(syndicate_late.late, 3, 400 if ahead else 200, ahead, limit=120)
    assert found[0] == found[1] == found[2]
    assert {"planned", "kept", "failed"} <= set(found[0]), found[0]


@pytest.mark.parametrize("phase", ["watching", "trying", "steady"])
def test_the_store_ends(pools: Pools, phase: str) -> None:
    """See the function's docstring."""
    pools.get("processes", 3).run(syndicate_known.without_a_store, phase, limit=120)


def test_old_decisions_are_deleted() -> None:
    """The store does not grow."""
    store = torch_dist.HashStore()
    replanner = replanning.Replanner(known.Settings(1.0, 4, 3, 2, 0.02, 0.01, 0))
    replanner.start(store, 0, 1)
    for number in range(1000):
        replanner._post(str(number), ["go", None])
    assert store.num_keys() <= replanning._KEPT_POSTS + 1


PRICE = 4.0  # of making a plan
WINDOWS = {  # the time of each of 10 iterations and for how long the order holds motifs back in it, in each window
    "equal": ([(100, 0)] * 9, False),
    "a little slower": ([(100, 0), *[(104, 0)] * 9], False),
    "twice slower": ([(100, 0), *[(200, 0)] * 2], False),
    "slower": ([(100, 0), *[(106, 0)] * 3], True),
    "faster, then as before": ([(100, 0), *[(50, 0)] * 3, *[(100, 0)] * 9], False),
    "slower with interruptions": ([(100, 0), *[(200, 0), (200, 0), (100, 0)] * 5], False),
    "held back as before": ([(100, 50)] * 9, False),
    "held back for longer": ([(100, 50), *[(100, 56)] * 3], True),
    "held back for a little longer": ([(100, 50), *[(100, 54)] * 9], False),
    "slower again": ([(100, 0), (200, 0), (100, 0), *[(102, 7)] * 3], True),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_when_iterations_are_slower(case: str) -> None:
    """Three windows in a row, by more than 5 % of an iteration of the first one."""
    windows, expected = WINDOWS[case]
    slowdown = Slowdown()
    for time, held in windows:
        slowdown.add([time] * 9 + [20 * time], 10 * held)  # one disturbed iteration does not matter
    assert slowdown.calls_for_a_plan(PRICE) is expected
    assert not slowdown.calls_for_a_plan(1000 * PRICE)  # not worth it


def test_a_search_begins_with_the_present_plan() -> None:
    """Also in another graph, whose options have other places."""
    planner = Planner(plan_graphs.paper())
    plan = planner.search(evaluations=50).plan
    replanner = replanning.Replanner(known.Settings(1.0, 4, 3, 2, 0.02, 0.01, 0))
    assert replanner._start(planner) is None
    replanner.plan = {"name": "search"}
    replanner._simulated = [({"name": "search"}, planner, plan)]
    other = Planner(plan_graphs.paper())
    other.options = tuple(options[::-1] for options in planner.options)
    found = replanner._start(other)
    assert found is not None
    assert any(plan.chosen)
    for before, after, place, chosen in zip(planner.options, other.options, plan.chosen, found.chosen, strict=True):
        assert not before or before[place].name == after[chosen].name


def test_candidates_that_measurements_left_out() -> None:
    """They take no part in the operation, unless the program's calls use them for it."""
    group: Any = SimpleNamespace(
        backends=["mpi", "gloo", "shm"],
        _streams=lambda _: None,
        _explain=lambda op, *_: {"excluded": ["gloo", "shm"] if op == "all_reduce" else []},
    )
    common = {"vectored": False, "peer": False, "dtype": "float32", "root": 0, "nbytes": 32}
    common |= {"group": SimpleNamespace(ranks=(0, 1)), "in_count": 8, "out_count": 8}
    calls: Any = [SimpleNamespace(op=op, **common) for op in ("all_reduce", "broadcast")]
    seen = [Seen("group", 0, named, False) for named in ("shm", "")]
    iteration = Iteration([calls], seen, [group], [0, 0], ["shm", "mpi"])
    assert iteration.candidates(0, "all_reduce", "float32") == ["mpi", "shm"]
    assert iteration.candidates(0, "broadcast", "float32") == ["mpi", "gloo", "shm"]


@pytest.mark.parametrize(
    ("first", "largest", "repetitions"),
    [
        ([10**6] * 10, [10**7] * 5, 3),
        ([10**7] * 10, [10**8] * 5, 1),
        ([10**8] * 10, [10**9] * 5, 0),
        ([], [], 3),
    ],
)
def test_slow_operations_are_measured_less(first: list[int], largest: list[int], repetitions: int) -> None:
    """All sizes three times, once, or only the smaller sizes as they were made first."""
    assert measured.affordable(first, largest, 1) == repetitions


@pytest.mark.parametrize(("time", "check"), [(10**9, 5), (4 * 10**6, 5), (10**6, 20), (100_000, 200), (1000, 200)])
def test_checks_are_rare_where_iterations_are_short(time: int, check: int) -> None:
    """Every 20 ms at most, and every 5 to 200 iterations."""
    assert known.Known([], time).check == check


def test_different_programs(pools: Pools) -> None:
    """No rank waits forever for another one's iterations."""
    pools.get("processes", 3).run(syndicate.different_programs, limit=120)


@worlds
def test_search(pools: Pools, world: int) -> None:
    """A real search on measured costs."""
    pools.get("processes", world).run(syndicate.without_gain, limit=120)


def test_promise(pools: Pools) -> None:
    """A real search, whose plans are not tried."""
    pools.get("processes", 2).run(syndicate.without_promise, limit=120)


@pytest.mark.parametrize(
    ("turns", "kept"),
    [
        ((1000, 980, 1001, 1003, 985, 999), 1),  # two plans and program order, twice
        ((980, 1000, 1001, 985, 1003, 999), 0),
        ((1000, 991, 1001, 1003, 992, 999), None),  # less than 1 %
        ((1000, 989, 1001, 1003, 989, 999), 1),
        ((1200, 1100, 1001, 1210, 1090, 999), None),
    ],
)
def test_the_plan_that_stays(turns: tuple[int, ...], kept: int | None) -> None:
    """The fastest, if it gains 1 %."""
    plans = [{"name": "first"}, {"name": "second"}]
    found = known.Known(plans, 0, turns=list(turns))
    assert found.choose(3, 0.01) is None  # a third round is to come
    chosen = found.choose(2, 0.01)
    assert chosen is not None
    assert chosen[0] == (kept is not None)
    assert found.plans == ([] if kept is None else [plans[kept]])
    assert found.time == (chosen[1] if kept is None else chosen[2])


@worlds
def test_marks(pools: Pools, world: int) -> None:
    """``step()``: equal calls on three asynchronous works."""
    pools.get("processes", world).run(syndicate.marked, limit=60)


def test_what_comes_first(pools: Pools) -> None:
    """The error of a wait names the motif for which the order waits."""
    pools.get("processes", 2).run(syndicate.what_comes_first, limit=60)


def test_traced(pools: Pools, tmp_path: Path) -> None:
    """Every rank writes its own timeline."""
    for rank, events in enumerate(pools.get("processes", 3).run(syndicate.traced, str(tmp_path), limit=60)):
        names = {event["args"]["name"] for event in events if event["ph"] == "M"}
        assert names == {f"rank {rank}", "iterations", "waiting for calls"}
        ends = {event["id"]: event["ts"] for event in events if event["ph"] == "e"}
        assert all(event["ts"] < ends[event["id"]] for event in events if event["ph"] == "b")
        assert any("all_to_all" in event["name"] and "motif" in event["name"] for event in events if event["ph"] == "b")


def test_the_plan_in_a_trace() -> None:
    """An iteration of the simulated plan, and how long communication is exposed in it."""
    planner = Planner(plan_graphs.paper())
    plan = planner.program_order()
    events, exposed = plan_trace._planned(SimpleNamespace(simulated=(planner, plan)))
    computed = sum(node.time or 0 for node in planner.graph.nodes)
    assert exposed == plan.iteration - computed > 0
    spans = [event for event in events if event["ph"] == "X"]
    assert sum(event["dur"] for event in spans) * 1000 == pytest.approx(computed)
    begun = {event["id"] for event in events if event["ph"] == "b"}
    assert len(begun) >= len(planner.graph.calls)
    assert plan_trace._planned(SimpleNamespace(simulated=None)) == ([], 0)


def test_a_rank_with_another_order(pools: Pools) -> None:
    """The digests of orders are compared."""
    found = pools.get("processes", 3).run(syndicate.other_order, limit=60)
    assert found == 3 * [["off", "planned", "kept"]]


def test_slower_iterations(pools: Pools) -> None:
    """All ranks make a new plan at the same point."""
    found = pools.get("processes", 3).run(syndicate.slower_iterations, limit=120)
    assert found[0] == found[1] == found[2]
    assert found[0][:5] == ["planned", "kept", "slower", "planned", "kept"]


def test_refused(pools: Pools) -> None:
    """Passes that issue calls by themselves."""
    pools.get("processes", 2).run(syndicate.refused, limit=60)


def test_refused_on_one_rank(pools: Pools) -> None:
    """One error on all ranks."""
    pools.get("processes", 2).run(syndicate.refused_on_one_rank, limit=60)
