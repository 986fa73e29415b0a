# SPDX-License-Identifier: Apache-2.0
"""Programs under Syndicate: whatever the plan is, results are those without it, and no program waits forever."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import PrefixStore

import mcr_dl
from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError, UnsupportedError
from mcr_dl.planner import motifs, options
from mcr_dl.runtime import state
from mcr_dl.schedule import Syndicate, step
from mcr_dl.schedule.syndicate.execution import Document
from mcr_dl.schedule.syndicate.iteration import Iteration
from mcr_dl.testing.plans import Make, Planned, random_plan
from ranks import session

ROUNDS = 60  # iterations: enough to find them, to try a plan, and for some with it


def random_plans_of(seed: int) -> Make:
    """One random plan after another; the order need not be one that the program allows."""
    rng = random.Random(seed)
    return lambda iteration, most: [random_plan(iteration, rng, most)]


class Program:
    """An iteration with collectives of several kinds, started and blocking, on two groups; checks all results."""

    def __init__(self, delays: random.Random | None = None) -> None:
        self.rank, self.size = mcr_dl.get_rank(), mcr_dl.get_world_size()
        self.pair = mcr_dl.new_group(list(range(self.size)))
        self.delays = delays
        self.number = 0

    def _pause(self) -> None:
        if self.delays is not None:
            time.sleep(self.delays.random() * 0.001)

    def iterate(self, extra: bool = False) -> None:
        n, rank = self.size, self.rank
        self.number += 1
        salt = float(self.number % 17)
        large = torch.full((1000,), rank + salt)
        small = torch.full((5,), float(rank))
        mean = torch.full((6,), rank, dtype=torch.int32)
        average = mcr_dl.all_reduce(mean, op=mcr_dl.ReduceOp.AVG, async_op=True)
        first = mcr_dl.all_reduce(large, async_op=True)
        self._pause()
        sent, got = torch.arange(3.0 * n) + 100 * rank, torch.empty(3 * n)
        exchange = mcr_dl.all_to_all_single(got, sent, group=self.pair, async_op=True)
        if extra:
            mcr_dl.barrier()
        second = mcr_dl.all_reduce(small, group=self.pair, async_op=True)
        self._pause()
        own, everything = torch.full((2,), float(rank)), torch.empty(2 * n)
        mcr_dl.all_gather_into_tensor(everything, own)
        both = sent.clone()
        swap = mcr_dl.all_to_all_single(both, both, async_op=True)  # in place
        exchange.wait()
        blocks, mine = torch.arange(float(4 * n)), torch.empty(4)
        third = mcr_dl.reduce_scatter_tensor(mine, blocks, group=self.pair, async_op=True)
        self._pause()
        counts = [1 + (self.number + index) % 2 for index in range(n)]  # of a vectored call: they change
        vector = torch.full((counts[rank],), float(rank))
        gathered = torch.empty(sum(counts))
        mcr_dl.all_gatherv(gathered, vector, counts)
        root = torch.full((3,), salt if rank == n - 1 else -1.0)
        mcr_dl.broadcast(root, n - 1)
        second.wait()
        first.wait()
        third.wait()
        average.wait()
        swap.wait()
        rank_sum = n * (n - 1) // 2
        assert torch.equal(large, torch.full((1000,), n * salt + n * (n - 1) / 2))
        assert torch.equal(small, torch.full((5,), n * (n - 1) / 2))
        expected = torch.cat([torch.arange(3.0) + 3 * rank + 100 * other for other in range(n)])
        assert torch.equal(got, expected)
        assert torch.equal(both, expected)
        assert torch.equal(everything, torch.arange(float(n)).repeat_interleave(2))
        assert torch.equal(mine, n * (torch.arange(4.0) + 4 * rank))
        assert torch.equal(gathered, torch.cat([torch.full((c,), float(r)) for r, c in enumerate(counts)]))
        assert torch.equal(root, torch.full((3,), salt))
        assert torch.equal(mean, torch.full((6,), rank_sum // n, dtype=torch.int32))


def all_forms() -> int:
    """Every form of every call on every backend gives right results, also of averages; the number of planned calls."""
    names: list[str] = []

    def make(iteration: Iteration, _most: int) -> list[Document]:
        calls = [iteration.planned(index) for index in range(len(iteration.calls))]
        ways = [[] if call is None else list(options.expressions(call)) for call in calls]
        plans: list[Document] = []
        for place in range(max(map(len, ways))):
            rows: list[Any] = []
            for index, forms in enumerate(ways):
                name, form = forms[place % len(forms)] if forms else ("", None)
                channels = iteration.channels(iteration.of_call[index])
                motifs_of = [] if form is None else motifs.steps(form)
                chosen = [channels[(place + motif) % len(channels)] for motif in range(len(motifs_of))]
                rows.append([name, chosen, [0] * len(chosen)] if forms else None)
            order = [[call, motif, 0] for call, row in enumerate(rows) if row for motif in range(len(row[1]))]
            plans.append({"name": str(place), "calls": rows, "order": order})
        names.extend(sorted({name for forms in ways for name, _ in forms}))
        return plans

    session.start()
    with Planned(make, rounds=1) as planned:
        program = Program()
        for _ in range(8):
            program.iterate()
        while planned.phase in ("watching", "trying"):
            program.iterate()
        assert planned.phase == "steady", planned.events
        found = planned.statistics()
    if mcr_dl.get_rank() == 0:
        n = mcr_dl.get_world_size()
        wanted = {"whole", "segment 2", "segment 4"}
        wanted |= {"ring", "tree 2", "segment 2, ring", "segment 4, ring", f"spline {(n + 1) // 2}"} if n > 1 else set()
        wanted |= {"tree 4"} if n > 2 else set()
        assert wanted <= set(names), names
    return found["calls"]


def what_comes_first() -> None:
    """A wait that times out says what the plan issues before the call; afterwards the call still completes."""

    def make(iteration: Iteration, _most: int) -> list[Document]:
        channel = iteration.channels(iteration.of_call[0])[0]
        calls = [["ring", [channel, channel], [0, 0]], ["whole", [channel], [1]]]
        return [{"name": "the ring first", "calls": calls, "order": [[0, 0, 0], [0, 1, 0], [1, 0, 0]]}]

    session.start()
    rank = mcr_dl.get_rank()
    store = PrefixStore("what comes first", state.current().store)
    with Planned(make, rounds=1) as planned:
        tensors = torch.empty(1000), torch.empty(7)
        for number in range(ROUNDS):
            last = number == ROUNDS - 1
            step()
            if last and rank > 0:
                assert planned.phase == "steady", planned.events
                store.get("rank 0 has timed out")
            for tensor in tensors:
                tensor.fill_(rank + number)
            works = [mcr_dl.all_reduce(tensor, async_op=True) for tensor in tensors]
            if last and rank == 0:
                with pytest.raises(mcr_dl.CollectiveTimeoutError) as raised:
                    works[1].wait(timeout=timedelta(seconds=0.5))  # after a second, the order would break
                store.set("rank 0 has timed out", "")
                text = str(raised.value)
                assert "it is issued after motif 1 of all_reduce " in text, text
                assert " of group 'default'" in text, text
            for work in works:
                work.wait()
            wanted = sum(other + number for other in range(mcr_dl.get_world_size()))
            assert all(bool((tensor == wanted).all()) for tensor in tensors)


def traced(folder: str) -> list[dict[str, Any]]:
    """The trace of a block has every motif of every iteration, and waits; the trace of this rank."""
    session.start()
    path = Path(folder) / f"{mcr_dl.get_rank()}.json"
    with Planned(random_plans_of(3)) as planned:
        program = Program()
        with pytest.raises(mcr_dl.McrError, match="'watching'"), planned.traced(path):
            pass
        while planned.phase in ("watching", "trying"):
            program.iterate()
        assert planned.plan is not None
        motifs = sum(len(row[1]) for row in planned.plan["calls"] if row)
        with pytest.raises(InvalidArgumentError, match="expected a file"), planned.traced(path.parent):
            pytest.fail("the block has run")
        before = _C.log_made()
        with planned.traced(path) as found:
            with pytest.raises(mcr_dl.McrError, match="expected no other block"), planned.traced(path):
                pytest.fail("the inner block has run")
            for _ in range(5):
                program.iterate()
        made = _C.log_made() - before
        program.iterate()
    trace = json.loads(path.read_text())
    assert trace["otherData"]["plan"] == "random"
    assert trace["otherData"]["exposed_ms"] == found.exposed_ms
    events: list[dict[str, Any]] = trace["traceEvents"]
    began = [event for event in events if event["ph"] == "b" and "args" in event]
    assert sum(event["ph"] == "b" and event["pid"] == 1 for event in events) == made + len(began)  # the block's calls
    iterations = Counter(event["args"]["iteration"] for event in began)
    most = max(iterations.values())
    # Some motifs of trees have no message on some ranks.
    assert most == motifs or (mcr_dl.get_rank() > 0 and 0 < most < motifs), (motifs, iterations)
    assert sum(count == most for count in iterations.values()) >= 4, (motifs, iterations)
    assert len(found.exposed_ms) >= 3
    assert all(value > 0 for value in found.exposed_ms)
    return events


def random_plans(seed: int) -> tuple[int, int]:
    """Random plans give right results; (planned calls, digest)."""
    session.start()
    with Planned(random_plans_of(seed)) as planned:
        program = Program(random.Random(mcr_dl.get_rank()))
        for _ in range(ROUNDS):
            program.iterate()
        assert [event.what for event in planned.events] == ["planned", "kept"], planned.events
        assert planned.phase == "steady"
        assert planned.plan is not None
        found = planned.statistics()
        assert found["motifs"] >= found["calls"] > 0
    program.iterate()
    assert mcr_dl.get_passes() == []
    return found["calls"], found["breaks"]


def other_calls(seed: int) -> None:
    """Calls that a plan does not expect end it; later iterations are planned again, by the plan that is known."""
    session.start()
    with Planned(random_plans_of(seed)) as planned:
        program = Program()
        for _ in range(2):
            for _ in range(ROUNDS):
                program.iterate()
            assert planned.phase == "steady"
            program.iterate(extra=True)
            assert planned.phase == "watching"
            assert planned.plan is None
            for _ in range(3):
                mcr_dl.barrier()
        assert [event.what for event in planned.events] == ["planned", "kept", "left", "left"], planned.events


def different_programs() -> None:
    """Ranks whose calls differ get no plan, and their programs go on, also where timeouts are short."""
    session.start()
    with Planned(random_plans_of(0)) as planned:
        everyone, part = mcr_dl.new_group(timeout=4.5), mcr_dl.new_group([0, 1])
        value = torch.ones(4)
        for _ in range(200):
            mcr_dl.all_reduce(value, op=mcr_dl.ReduceOp.MAX, group=everyone)
            if mcr_dl.get_rank() < 2:
                mcr_dl.broadcast(value, 0, group=part)
        assert planned.plan is None
        assert [event.what for event in planned.events] == ["failed"] * 3, planned.events
        assert planned.phase == "off"
    assert torch.equal(value, torch.ones(4))


def without_gain() -> None:
    """The search plans a program only if the plan is faster; statistics and events say what has happened."""
    session.start()
    with Syndicate(budget=0.5) as found:
        program = Program()
        for _ in range(ROUNDS):
            program.iterate()
        assert found.phase == "steady"
        last = found.events[-1].what
        first = "none" if last == "none" else "planned"
        assert found.events[0].what == first, found.events
        assert last in ("none", "kept", "dropped"), found.events
        if mcr_dl.get_rank() == 0:
            assert found.graph is not None
            assert len(found.graph.calls) == 9
    assert (found.plan is None) == (last != "kept")


def runs_without_a_plan(found: Syndicate) -> None:
    """The iterations go on in program order, and are not looked at again."""
    program = Program()
    for _ in range(ROUNDS):
        program.iterate()
    assert [event.what for event in found.events] == ["none"], found.events
    assert found.phase == "steady"
    assert found.plan is None


def without_promise() -> None:
    """A plan that is not fast enough by simulation is not tried."""
    session.start()
    with Syndicate(budget=0.5, promising=0.99) as found:
        runs_without_a_plan(found)


def slower_iterations() -> list[str]:
    """Iterations that take longer for a while lead to a new plan."""
    session.start()
    with Planned(random_plans_of(0), again=True) as planned:
        program = Program()
        for _ in range(ROUNDS):
            program.iterate()
        longest = 1000  # iterations; a new plan comes sooner, but the busier the machine is, the later
        while longest > 0 and all(event.what != "slower" for event in planned.events):
            longest -= 1  # all ranks have the event in one iteration
            time.sleep(0.02)
            program.iterate()
        for _ in range(ROUNDS):
            program.iterate()
        return [event.what for event in planned.events]


def other_order() -> list[str]:
    """A rank that has issued other motifs than rank 0, as far as the guard can tell, ends the plan on all ranks."""
    session.start()
    rng = random.Random(0)

    def in_order(iteration: Iteration, most: int) -> list[Document]:  # so that no rank leaves the order
        return [random_plan(iteration, rng, most, may=lambda _one, _other: False)]

    with Planned(in_order) as planned:
        replanner: Any = planned._replanner
        read = replanner._read

        def tampered(keys: list[str]) -> Any:
            decision, kept = read(keys)
            return decision, kept and [kept[0], kept[1] ^ 1]

        if mcr_dl.get_rank() == 1:
            replanner._read = tampered
        program = Program()
        for _ in range(3 * ROUNDS):
            program.iterate()
        assert planned.plan is not None, planned.events  # no rank knows how far the others are
        return [planned.phase, *(event.what for event in planned.events)]


def marked() -> None:
    """Iterations of equal calls are known by the program's marks, also while a plan is followed."""
    session.start()

    def iterate(calls: int = 3) -> None:
        works = [mcr_dl.all_reduce(torch.ones(3), async_op=True) for _ in range(calls)]
        for work in works:
            work.wait()
        step()

    with Planned(random_plans_of(0)) as planned:
        for calls in (4, 2):  # one call that no mark precedes; then a mark that comes too early
            for _ in range(4 * ROUNDS):
                iterate()
            assert planned.phase == "steady"
            assert len(planned.plan["calls"]) == 3
            iterate(calls)
            iterate()
            assert (planned.phase, planned.events[-1].what) == ("watching", "left")


def refused() -> None:
    """A group whose passes issue calls by themselves cannot be planned; it stays usable."""
    session.start()
    for name in ("fuse", "compress"):
        mcr_dl.set_passes([name])
        with pytest.raises(UnsupportedError, match=f"expected a group without the pass {name}"), Syndicate():
            pass
        assert mcr_dl.get_passes() == [name]
    mcr_dl.set_passes([])
    group = mcr_dl.new_group()
    mcr_dl.set_passes(["fuse"], group)
    with pytest.raises(UnsupportedError, match="expected a group without the pass fuse"), Syndicate():
        pass
    assert (mcr_dl.get_passes(), mcr_dl.get_passes(group)) == ([], ["fuse"])
    mcr_dl.destroy_process_group(group)
    value = torch.ones(2)
    mcr_dl.all_reduce(value)
    assert torch.equal(value, torch.full((2,), float(mcr_dl.get_world_size())))
    mcr_dl.set_passes([])


def refused_on_one_rank() -> None:
    """One rank has a group that cannot be planned: every rank gets an error that names it, and none waits."""
    session.start()
    group = mcr_dl.new_group([0])
    first = mcr_dl.get_rank() == 0
    if first:
        mcr_dl.set_passes(["fuse"], group)
    text = "expected a group without the pass fuse"
    with pytest.raises(UnsupportedError, match=text if first else f"rank 0: .*{text}"), Syndicate():
        pass
    assert mcr_dl.get_passes() == []
    if first:
        mcr_dl.destroy_process_group(group)
    with Syndicate():
        assert "schedule" in mcr_dl.get_passes()
    assert mcr_dl.get_passes() == []
