# SPDX-License-Identifier: Apache-2.0
"""Syndicate in programs whose iterations are not simple, and where something it needs fails, on one rank."""

from __future__ import annotations

import math
import os
import threading
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as torch_dist

import mcr_dl
from mcr_dl.base.errors import InvalidArgumentError, UnsupportedError
from mcr_dl.measure import memory
from mcr_dl.schedule import ByteScheduler, Syndicate
from mcr_dl.schedule.syndicate import captured, measured, replanning
from mcr_dl.schedule.syndicate.execution import Document
from mcr_dl.schedule.syndicate.iteration import Iteration
from mcr_dl.testing.plans import Planned
from ranks import session
from ranks.syndicate import ROUNDS, Program, random_plans_of, runs_without_a_plan
from ranks.syndicate_groups import Simple, until


def planned_again() -> None:
    """A second search gets the candidates that calls use without a plan, though the log has the plan's."""
    searches: list[tuple[list[str], list[str | None]]] = []

    def make(iteration: Iteration, _most: int) -> list[Document]:
        searches.append((list(iteration.used), [record.backend for record in iteration.calls]))
        other = next(name for name in iteration.channels(0) if name != iteration.used[0])
        moved = ["whole", [other], [0]]
        return [{"name": f"{len(searches)}", "calls": [moved, None, None], "order": [[0, 0, 0]]}]

    session.start()
    with Planned(make, again=True, rounds=1) as planned:
        replanner: Any = planned._replanner
        replanner.slower = lambda _window, _held: len(searches) < 2
        program = Simple()
        until(planned, "steady", program)
        for _ in range(20 * ROUNDS):
            if sum(event.what == "planned" for event in planned.events) == 2:
                break
            program.iterate()
        assert [event.what for event in planned.events] == ["planned", "kept", "slower", "planned"], planned.events
    if mcr_dl.get_rank() == 0:
        (used, made), (again, planned_calls) = searches
        assert used == made == again
        assert planned_calls[0] != used[0]


def several_threads() -> None:
    """Iterations of two threads get no plan: it would not begin at the same call of both on all ranks."""
    session.start()
    other = mcr_dl.new_group()
    with Planned(random_plans_of(0)) as planned:
        value = torch.ones(4)
        for _ in range(4 * ROUNDS):
            mcr_dl.all_reduce(value, op=mcr_dl.ReduceOp.MAX)
            thread = threading.Thread(target=mcr_dl.broadcast, args=(value, 0), kwargs={"group": other})
            thread.start()
            thread.join()
        assert [event.what for event in planned.events] == ["failed"] * 3, planned.events
        assert planned.phase == "off"


class _Ended:
    """A store whose process has ended."""

    def __getattr__(self, name: str) -> Any:
        raise torch_dist.DistNetworkError(f"{name}: the connection has been closed")


def without_a_store(phase: str) -> None:
    """When the store ends, planning ends on all ranks, and the program continues with right results."""
    session.start()
    with Planned(random_plans_of(4)) as planned:
        program = Program()
        until(planned, phase, program)
        replanner: Any = planned._replanner
        replanner._meetings._store = _Ended()
        for _ in range(5 * ROUNDS):  # rank 0 comes to the end of planning first
            program.iterate()
        assert planned.phase == "off"


def equal_calls_in_a_row() -> None:
    """So many equal calls look like iterations: after some mistakes, the iteration around them is found."""
    session.start()
    with mock.patch.object(replanning, "_WORTHWHILE", 10**9), Planned(random_plans_of(1), rounds=1) as planned:
        value = torch.ones(2)
        for _ in range(60):
            for _ in range(40):
                mcr_dl.all_reduce(value, op=mcr_dl.ReduceOp.MAX)
            mcr_dl.broadcast(value, 0)
        found = [event.what for event in planned.events]
        assert found[0] == "planned"
        assert 0 < found.count("left") < 15, found
        assert planned.phase == "steady"
        assert planned.plan is not None
        assert len(planned.plan["calls"]) == 41


def a_call_now_and_then() -> None:
    """Turns go on after an iteration with another call, so that a plan stays although none lasts for all turns."""
    session.start()
    with mock.patch.object(replanning, "_WORTHWHILE", 0), Planned(random_plans_of(2)) as planned:
        program = Program()
        for number in range(1, 8 * 20):
            program.iterate(extra=number % 20 == 0)
        found = [event.what for event in planned.events]
        assert found.count("planned") == 1, found
        assert "kept" in found, found


def gather_and_scatter() -> None:
    """Calls in which the root has other tensors than the others."""
    session.start()
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    with Planned(random_plans_of(3), rounds=1) as planned:
        for _ in range(2 * ROUNDS):
            value, own, mine = torch.full((100,), float(rank)), torch.full((3,), float(rank)), torch.empty(2)
            work = mcr_dl.all_reduce(value, async_op=True)
            everything = [torch.empty(3) for _ in range(size)] if rank == size - 1 else None
            mcr_dl.gather(own, everything, size - 1)
            parts = [torch.full((2,), float(other)) for other in range(size)] if rank == 0 else None
            mcr_dl.scatter(mine, parts, 0)
            work.wait()
            assert bool(value.eq(sum(range(size))).all())
            assert bool(mine.eq(rank).all())
            for other, each in enumerate(everything or []):
                assert bool(each.eq(other).all())
        assert planned.phase == "steady", planned.events
        assert planned.plan is not None


def a_search_that_fails() -> None:
    """Whatever a search raises on rank 0, there is no plan on any rank, and the program goes on."""

    def make(_iteration: Iteration, _most: int) -> list[Document]:
        raise TypeError("no plan")

    session.start()
    with Planned(make) as planned:
        program = Program()
        for _ in range(ROUNDS):
            program.iterate()
        assert [event.what for event in planned.events] == ["failed"] * 3, planned.events
        assert planned.phase == "off"


def errors_of_measurements() -> None:
    """No error ends the program: one rank cannot read its log, then no rank has memory for its measurements."""
    session.start()
    program = Program()
    wrong = ValueError("an unreadable record") if mcr_dl.get_rank() == 1 else None
    reading = mock.patch.object(captured, "_whole", side_effect=wrong, return_value=True)
    with reading, Planned(random_plans_of(2)) as one:
        until(one, "off", program)
        assert [event.what for event in one.events] == ["failed"] * 3, one.events
    with mock.patch.object(measured, "_prepared", side_effect=MemoryError), Planned(random_plans_of(2)) as other:
        until(other, "off", program)
        assert other.events == []
        program.iterate()


def too_little_memory() -> None:
    """For the measurements on one rank's host: no plan on any rank, and the iterations are not looked at again."""
    session.start()
    left = 100.0 if mcr_dl.get_rank() == 1 else math.inf
    with mock.patch.object(memory, "available", return_value=left), Planned(random_plans_of(2)) as planned:
        runs_without_a_plan(planned)


def with_bytescheduler() -> None:
    """Both order calls: whichever comes second is refused."""
    session.start()
    network = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with Syndicate(), pytest.raises(UnsupportedError, match="expected a group without Syndicate"):
        ByteScheduler(network, optimizer)
    with Syndicate():
        mcr_dl.set_passes([])
        with pytest.raises(UnsupportedError, match="expected a group without Syndicate"):  # of its own groups
            ByteScheduler(network, optimizer)
    model = ByteScheduler(network, optimizer)
    with pytest.raises(UnsupportedError, match="expected no living ByteScheduler"), Syndicate():
        pass
    model.close()
    with Syndicate():
        mcr_dl.barrier()


def rules() -> None:
    """A rule names the candidate of a planned call, as the program could."""
    named: list[list[str]] = []

    def make(iteration: Iteration, most: int) -> list[Document]:
        named.append(sorted(seen.named for seen in iteration.seen))
        return random_plans_of(3)(iteration, most)

    session.stop()
    with mock.patch.dict(os.environ, MCR_DL_TUNE="all_reduce:0-1k:gloo"):
        session.start()
    with Planned(make, rounds=1) as planned:
        until(planned, "steady", Simple())
    first = mcr_dl.get_rank() == 0
    session.stop()
    assert named[:1] == ([["", "gloo", "gloo"]] if first else [])


def a_call_that_is_not_sent() -> None:
    """It fails on one rank, and counts neither in the iterations nor in the plan: the program makes it again."""
    all_reduce = mcr_dl.all_reduce

    def twice(value: torch.Tensor, **options: Any) -> Any:
        if mcr_dl.get_rank() == 0:
            with pytest.raises(InvalidArgumentError, match="expected the pass"):
                all_reduce(value, codec="bf16", **options)
        return all_reduce(value, **options)

    session.start()
    as_it_is: Document = {"name": "as it is", "calls": [None] * 3, "order": []}
    twice_on_one_rank = mock.patch.object(mcr_dl, "all_reduce", twice)
    with Planned(lambda _iteration, _most: [as_it_is], rounds=1) as planned, twice_on_one_rank:
        program = Simple()
        until(planned, "steady", program)
        for _ in range(ROUNDS):
            program.iterate()
        found = [event.what for event in planned.events]
        assert planned.phase == "steady", found
        assert found[0] == "planned", found
        assert not {"failed", "left"} & set(found), found


def groups_of_a_block() -> None:
    """A group that was made in a block has no passes after it; one that has ended in it is forgotten."""
    session.start()
    with Planned(random_plans_of(0)) as planned:
        group = mcr_dl.new_group()
        for _ in range(3):
            mcr_dl.destroy_process_group(mcr_dl.new_group())
        assert mcr_dl.get_passes(group) == ["log", "schedule"]
        assert len(planned._replanner.lanes) <= 3 + len(planned._added)
    assert mcr_dl.get_passes(group) == mcr_dl.get_passes() == []
