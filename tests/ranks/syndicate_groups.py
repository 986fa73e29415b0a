# SPDX-License-Identifier: Apache-2.0
"""Syndicate with groups and calls that not all ranks have, on one rank."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import mcr_dl
from mcr_dl.passes import Log
from mcr_dl.schedule import Syndicate, step
from mcr_dl.testing.expect import expect
from mcr_dl.testing.plans import Planned
from ranks import session
from ranks.syndicate import ROUNDS, Program, random_plans_of

_MOST = 400  # iterations until a plan stays


class Parts:
    """An iteration with calls of all ranks and of the half that this rank is in; checks all results."""

    def __init__(self) -> None:
        self.rank, self.size = mcr_dl.get_rank(), mcr_dl.get_world_size()
        half = self.size // 2
        groups = [mcr_dl.new_group(list(range(half))), mcr_dl.new_group(list(range(half, self.size)))]
        self.half, self.part = half, groups[self.rank // half]

    def iterate(self, *, extra: bool = False, message: bool = False) -> None:
        """``extra``: a call of the half that no other iteration has; ``message``: one from rank 0 to rank 1."""
        mine, everyone = torch.full((500,), 1.0), torch.full((90,), float(self.rank))
        first = mcr_dl.all_reduce(mine, group=self.part, async_op=True)
        sent = mcr_dl.isend(torch.ones(7), 1) if message and self.rank == 0 else None
        second = mcr_dl.all_reduce(everyone, async_op=True)
        if extra:
            mcr_dl.barrier(group=self.part)
        if message and self.rank == 1:
            got = torch.zeros(7)
            mcr_dl.recv(got, 0)
            assert bool(got.eq(1).all())
        blocks, own = torch.empty(self.half * 3), torch.full((3,), float(self.rank))
        third = mcr_dl.all_gather_into_tensor(blocks, own, group=self.part, async_op=True)
        for work in (first, second, third, *([sent] if sent is not None else [])):
            work.wait()
        begin = self.rank // self.half * self.half
        assert bool(mine.eq(self.half).all())
        assert bool(everyone.eq(sum(range(self.size))).all())
        assert torch.equal(blocks, torch.arange(float(begin), float(begin + self.half)).repeat_interleave(3))


class Ring:
    """A call of all ranks, and calls of two groups: of the previous rank and this one, and of this one and the next.

    So a group is one rank's first and another rank's second. Checks all results.
    """

    def __init__(self) -> None:
        rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
        groups = [mcr_dl.new_group([each, (each + 1) % size], timeout=20) for each in range(size)]
        self.used = groups[rank - 1], groups[rank]

    def iterate(self) -> None:
        mcr_dl.all_reduce(torch.ones(7))
        sums = [torch.ones(300) for _ in self.used]
        calls = zip(sums, self.used, strict=True)
        works = [mcr_dl.all_reduce(each, group=group, async_op=True) for each, group in calls]
        for work, each in zip(works, sums, strict=True):
            work.wait()
            assert bool(each.eq(2).all())


class Simple:
    """An iteration of three collectives of a group, and of messages to the next rank; checks all results."""

    def __init__(self, group: mcr_dl.ProcessGroup | None = None, messages: int = 0) -> None:
        self.rank, self.size = mcr_dl.get_rank(), mcr_dl.get_world_size()
        self.group, self.messages = group, messages

    def iterate(self) -> None:
        sums = [torch.full((100 * number,), float(self.rank)) for number in (1, 2, 3)]
        works = [mcr_dl.all_reduce(each, group=self.group, async_op=True) for each in sums]
        for number in range(self.messages):
            got = torch.zeros(2)
            sent = mcr_dl.isend(torch.full((2,), float(number)), (self.rank + 1) % self.size)
            mcr_dl.recv(got, (self.rank - 1) % self.size)
            sent.wait()
            assert bool(got.eq(number).all())
        for work, each in zip(works, sums, strict=True):
            work.wait()
            assert bool(each.eq(sum(range(self.size))).all())


def until(planned: Planned, phase: str, program: Parts | Program | Ring | Simple, marked: bool = False) -> None:
    """Iterate until the ranks come to a phase."""
    for _ in range(_MOST):
        if planned.phase == phase:
            return
        program.iterate()
        if marked:
            step()
    raise AssertionError(planned.events)


def two_blocks() -> None:
    """One object in two blocks: the second one begins without a plan, and takes one again."""
    session.start()
    program = Program()
    planned = Planned(random_plans_of(5), rounds=1)
    for _ in range(2):
        with planned:
            assert planned.phase == "watching"
            assert planned.plan is None
            until(planned, "steady", program)
            for _ in range(ROUNDS):
                program.iterate()
            assert planned.plan is not None
        program.iterate()


def two_jobs() -> None:
    """The job ends inside a block: the next block is the next job's, and begins without a plan."""
    planned = Planned(random_plans_of(5), rounds=1)
    for _ in range(2):
        session.start()
        with planned:
            assert planned.phase == "watching"
            assert planned.plan is None
            until(planned, "steady", Program())
            session.stop()
    session.start()


def a_block_of_an_earlier_job() -> None:
    """An exception has ended it, and its group was kept, as those with a lost rank are: the next block works."""
    session.start()
    planned = Planned(random_plans_of(5), rounds=1)
    with contextlib.suppress(LookupError), planned:
        raise LookupError
    session.stop()
    session.start()
    kept: Any = SimpleNamespace(name=lambda: "default", _closed=False, _label="a group of another job")
    planned._groups = [kept]
    with Planned(random_plans_of(5), rounds=1) as planned:
        until(planned, "steady", Program())


def an_end_at_different_calls() -> None:
    """The ranks cannot agree on the end of a block: the groups keep the pass until the next block, which works."""
    session.start()
    program, total = Program(), torch.ones(8)
    works = []

    def end() -> None:
        with Planned(random_plans_of(15)):
            if mcr_dl.get_rank() == 0:
                works.append(mcr_dl.all_reduce(total, async_op=True))

    expect(mcr_dl.InvalidArgumentError, end, "after the same collective")
    if mcr_dl.get_rank() != 0:
        works.append(mcr_dl.all_reduce(total, async_op=True))
    works[0].wait()
    assert bool(total.eq(mcr_dl.get_world_size()).all())
    assert "schedule" in mcr_dl.get_passes()
    with Planned(random_plans_of(15), rounds=1) as planned:
        until(planned, "steady", program)
        assert planned.plan is not None
    assert "schedule" not in mcr_dl.get_passes()


def messages() -> None:
    """Messages between two ranks, in some iterations, change no plan."""
    session.start()
    with Planned(random_plans_of(6), rounds=1) as planned:
        program = Parts()
        for number in range(3 * ROUNDS):
            program.iterate(message=number % 3 == 0)
        assert [event.what for event in planned.events] == ["planned", "kept"], planned.events
        assert planned.plan is not None


def many_messages() -> None:
    """More messages than collectives."""
    session.start()
    with Planned(random_plans_of(10), rounds=1) as planned:
        until(planned, "steady", Simple(messages=10))
        assert planned.plan is not None


def log_of_some_operations() -> None:
    """One rank's log leaves out some calls of the iterations: no rank takes those that it has for others."""
    session.start()
    program = Parts()
    mcr_dl.set_passes([Log(ops=["all_reduce"] if program.rank == 0 else None)], program.part)
    with Planned(random_plans_of(12), rounds=1) as planned:
        until(planned, "off", program)
        assert {event.what for event in planned.events} == {"failed"}


def ring() -> None:
    """Ranks use their groups in different orders: the program runs as it is, and no measurement waits in a circle."""
    session.start()
    with Planned(random_plans_of(14), rounds=1) as planned:
        until(planned, "off", Ring())
        assert {event.what for event in planned.events} == {"failed"}, planned.events
        meetings = planned._replanner._meetings
        assert meetings is not None
        assert "expected one order of an iteration's groups" in meetings.problem


def a_backend_ends() -> None:
    """While a plan uses it: the plan ends, and the next one has the backends that are left."""
    session.stop()
    session.start("gloo", "shm")
    with Planned(random_plans_of(13), rounds=1) as planned:
        program = Simple()
        until(planned, "steady", program)
        assert "shm" in str(planned.plan)
        mcr_dl.finalize(["shm"])
        assert planned.phase == "watching"
        until(planned, "steady", program)
        assert planned.plan is not None
        assert "shm" not in str(planned.plan)
    session.stop()


def other_candidates() -> None:
    """The same calls on a group of other candidates get another plan."""
    session.start()
    planned = Planned(random_plans_of(11), rounds=1)
    for backend in (None, "gloo"):
        program = Simple(mcr_dl.new_group(backend=backend))
        with planned:
            until(planned, "steady", program)
            for _ in range(ROUNDS):
                program.iterate()
            assert planned.plan is not None


def a_half_leaves() -> None:
    """One half makes another call while plans are tried: the plans of the group of all ranks go on."""
    session.start()
    with Planned(random_plans_of(7)) as planned:
        program = Parts()
        until(planned, "trying", program)
        program.iterate(extra=program.rank >= program.half)
        for _ in range(2 * ROUNDS):
            program.iterate()
        assert [event.what for event in planned.events] == ["planned", "kept"], planned.events
        assert planned.phase == "steady"


def a_half_leaves_that_counts() -> None:
    """The same if the half's calls begin the iterations: its ranks count no more, so that no rank changes its plan."""
    session.start()
    with Planned(random_plans_of(8)) as planned:
        program = Parts()
        until(planned, "trying", program, marked=True)
        program.iterate(extra=program.rank >= program.half)
        for _ in range(2 * ROUNDS):
            step()
            program.iterate()
        mcr_dl.barrier()  # a call of all ranks that no iteration has
        assert planned.phase == "watching", planned.events
        assert planned.plan is None
        step()
        until(planned, "steady", program, marked=True)


def no_growth() -> None:
    """grow refuses a job with a scheduler, and the group goes on."""
    session.start()
    with Syndicate():
        expect(mcr_dl.UnsupportedError, mcr_dl.grow, "grow: expected a job without a scheduler")
        values = torch.ones(10)
        mcr_dl.all_reduce(values)
        assert bool(values.eq(mcr_dl.get_world_size()).all())


def joined() -> None:
    """Ranks with different numbers of inputs, under torch's Join."""
    session.start()
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(20, 20) for _ in range(3))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Planned(random_plans_of(9), rounds=1) as planned:
        for epoch in range(2):
            with Join([model]):
                for _ in range(2 * ROUNDS + 7 * mcr_dl.get_rank() * (1 - epoch)):
                    model(torch.ones(4, 20)).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
        assert planned.statistics()["calls"] > 0, planned.events
    for value in model.parameters():
        theirs = value.detach().clone()
        mcr_dl.broadcast(theirs, 0)
        assert torch.equal(theirs, value)
