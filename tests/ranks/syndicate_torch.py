# SPDX-License-Identifier: Apache-2.0
"""Training with torch.distributed on "mcr" under Syndicate: the weights are those without it, whatever the plan is."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import mcr_dl
from mcr_dl.base.errors import InvalidArgumentError, UnsupportedError
from mcr_dl.runtime import state
from mcr_dl.schedule import Syndicate
from mcr_dl.schedule.syndicate.execution import Document
from mcr_dl.schedule.syndicate.iteration import Iteration
from mcr_dl.testing.plans import Planned
from ranks import session, torch_fsdp
from ranks.syndicate import Program, random_plans_of
from ranks.torch_training import Results, batch, dtype, life, loss, same, weights

SEARCHED_STEPS = 80  # enough to find the iterations, for the turns of three plans and none, and for some steps after
FORCED_STEPS = 60  # one plan
WIDTHS = (12, 24, 40, 30, 50, 20, 4)
VARIABLE = "MCR_DL_SCHEDULE"

Training = tuple[nn.Module, Callable[[nn.Module], Results]]
Planning = Callable[[], AbstractContextManager[Any]]


class Interruption(Exception):
    """An error of the program in the middle of an iteration."""


# ---- programs


class _Gate(nn.Module):
    """The identity. Once armed, the backward pass ends here."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape."""

        def interrupt(_: torch.Tensor) -> None:
            raise Interruption

        if self.armed:
            x.register_hook(interrupt)  # type: ignore[no-untyped-call]
        return x


def _network() -> nn.Sequential:
    torch.manual_seed(11)
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(itertools.pairwise(WIDTHS)):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
        if number == 2:
            layers.append(_Gate())
    return nn.Sequential(*layers[:-1]).to(dtype())


def ddp() -> Training:
    """Buckets of a kilobyte: several all_reduces of different sizes in each step, awaited by their futures."""
    model = DistributedDataParallel(_network(), bucket_cap_mb=0.001)
    return model, lambda made: weights(made.module)


def fsdp() -> Training:
    """FSDP2: all_gathers and reduce_scatters of each layer."""
    on = torch_fsdp.mesh()
    network = _network()
    for layer in network:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=on)
    fully_shard(network, mesh=on)  # in place
    return network, torch_fsdp.whole


class _Reducing(nn.Module):
    """Reduces its own gradients, by asynchronous calls on two groups."""

    def __init__(self) -> None:
        super().__init__()
        self.network = _network()
        self.works: list[Any] = []
        groups = (None, dist.new_group(list(range(dist.get_world_size()))))

        def hook(given: torch.Tensor, group: Any) -> None:
            self.works.append(dist.all_reduce(given.grad, group=group, async_op=True))

        for index, parameter in enumerate(self.parameters()):
            given = partial(hook, group=groups[index % 2])
            parameter.register_post_accumulate_grad_hook(given)  # type: ignore[no-untyped-call]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape (batch, 12) to (batch, 4)."""
        output: torch.Tensor = self.network(x)
        return output


def direct() -> Training:
    """Gradients are reduced by the program."""
    return _Reducing(), weights


PROGRAMS: dict[str, Callable[[], Training]] = {"ddp": ddp, "fsdp": fsdp, "direct": direct}


def _step(network: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    x, y = batch(number)
    optimizer.zero_grad()
    loss(network(x), y).backward()  # type: ignore[no-untyped-call]
    works = network.works if isinstance(network, _Reducing) else []
    for work in works:
        work.wait()
    works.clear()
    optimizer.step()


def _train(program: str, steps: int, interrupt: bool = False) -> Callable[[], Results]:
    """Train from the first weights; the function that reads the weights. `interrupt`: in the step after these."""
    network, whole = PROGRAMS[program]()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for number in range(steps):
        _step(network, optimizer, number)
    if interrupt:
        (gate,) = (each for each in network.modules() if isinstance(each, _Gate))
        gate.armed = True
        _step(network, optimizer, steps)
    return lambda: whole(network)


# ---- with and without


def _trained(
    program: str, steps: int, planning: Planning, check: Callable[[Any], None], again: bool = False
) -> Results:
    """The weights. `again`: after an exception in the middle of an iteration, the program starts from the beginning."""
    with planning() as planned:
        if again:
            with pytest.raises(Interruption):
                _train(program, steps, interrupt=True)
        read = _train(program, steps)
        check(planned)
        return read()


def _digest(results: Results) -> str:
    found = hashlib.sha256()
    for value in results.values():
        found.update(value.contiguous().numpy().tobytes())
    return found.hexdigest()


def _compare(program: str, steps: int, planning: Planning, check: Callable[[Any], None], **others: Any) -> str:
    """The digest of the weights under Syndicate, which are those without."""
    again = others.pop("again", False)
    with life("mcr", **others):
        expected = _trained(program, steps, nullcontext, lambda _: None)
    with life("mcr", **others):
        found = _trained(program, steps, planning, check, again)
        same(found, expected, exact=dist.get_world_size() == 2)
    return _digest(found)


def searched(program: str) -> str:
    """Plans of a real search, also those that are slower by simulation, take turns."""

    def check(planned: Syndicate) -> None:
        found = [event.what for event in planned.events]
        assert found[0] == "planned", planned.events
        assert not {"failed", "left"} & set(found), planned.events
        assert planned.phase in ("trying", "steady")
        assert planned.statistics()["calls"] > 0

    return _compare(program, SEARCHED_STEPS, partial(Syndicate, budget=0.5, promising=-1.0), check)


def _steady(planned: Syndicate) -> None:
    """Some calls have followed a plan, and still do."""
    assert planned.phase == "steady"
    assert planned.plan is not None
    found = planned.statistics()
    assert found["motifs"] >= found["calls"] > 0, found


def _of_tests() -> Any:
    """Options for the backends of the tests, which random plans name."""
    return mcr_dl.Options(backends=list(session.BACKENDS))


def forced(program: str, seed: int) -> str:
    """A random plan does some of the calls, to the end."""

    def check(planned: Syndicate) -> None:
        assert [event.what for event in planned.events] == ["planned", "kept"], planned.events
        _steady(planned)

    return _compare(program, FORCED_STEPS, partial(Planned, random_plans_of(seed)), check, pg_options=_of_tests())


def trained_again(program: str, seed: int) -> str:
    """A backward pass that an exception ends half-way leaves calls without a wait; training anew is planned again."""

    def check(planned: Syndicate) -> None:
        found = [event.what for event in planned.events]
        assert found[:2] == ["planned", "kept"], planned.events
        assert "left" in found, planned.events
        assert "failed" not in found, planned.events
        _steady(planned)

    planning = partial(Planned, random_plans_of(seed))
    return _compare(program, FORCED_STEPS, planning, check, pg_options=_of_tests(), again=True)


# ---- how a program waits


def _swapped(iteration: Iteration, _most: int) -> list[Document]:
    """The second call of two before the first one, for which a program waits before it makes the second."""
    assert len(iteration.calls) == 2
    calls = [["whole", ["mpi"], [lane]] for lane in (1, 0)]
    return [{"name": "swapped", "calls": calls, "order": [[1, 0, 0], [0, 0, 0]]}]


def _wait(way: str, work: Any) -> None:
    if way == "wait":
        work.wait()
    elif way == "future":
        work.get_future().wait()
    else:
        deadline = time.monotonic() + 20
        while not work.is_completed():
            assert time.monotonic() < deadline, "never complete"


def waits(way: str) -> None:
    """However a program waits for a call, the plan cannot keep the call back for one that is not made."""
    session.start()
    with Planned(_swapped) as planned:
        for number in range(48):
            for count in (3, 7):
                value = torch.full((count,), float(number))
                _wait(way, mcr_dl.all_reduce(value, async_op=True))
                assert torch.equal(value, torch.full((count,), float(number * mcr_dl.get_world_size())))
        _steady(planned)
        assert planned.statistics()["breaks"] > 0


# ---- exceptions between calls


class Loop:
    """An iteration of six calls on two groups, most of them asynchronous; an exception may come before each."""

    CALLS = 6

    def __init__(self) -> None:
        self.rank, self.size = mcr_dl.get_rank(), mcr_dl.get_world_size()
        self.other = mcr_dl.new_group(list(range(self.size)))
        self.number = 0

    def _calls(self) -> Iterator[tuple[Any, torch.Tensor, torch.Tensor]]:
        """Make one call after the other: its work, its result and what that must be."""
        n, rank, salt = self.size, self.rank, float(self.number)
        ranks = n * (n - 1) / 2
        for group, count in ((None, 3000), (self.other, 40), (None, 5)):
            value = torch.full((count,), rank + salt)
            yield mcr_dl.all_reduce(value, group=group, async_op=True), value, torch.full((count,), n * salt + ranks)
        whole = torch.empty(2 * n)
        mcr_dl.all_gather_into_tensor(whole, torch.full((2,), rank + salt), group=self.other)
        yield None, whole, torch.arange(float(n)).repeat_interleave(2) + salt
        part = torch.empty(4)
        work = mcr_dl.reduce_scatter_tensor(part, torch.arange(4.0 * n) + salt, async_op=True)
        yield work, part, n * (torch.arange(4.0) + 4 * rank + salt)
        got = torch.empty(3 * n)
        sent = torch.arange(3.0 * n) + 100 * rank + salt
        work = mcr_dl.all_to_all_single(got, sent, group=self.other, async_op=True)
        yield work, got, torch.cat([torch.arange(3.0) + 3 * rank + 100 * other + salt for other in range(n)])

    def iterate(self, stop: int | None = None) -> None:
        """Raise Interruption after `stop` calls; None: check all results."""
        self.number = (self.number + 1) % 100
        made = []
        for index, call in enumerate(self._calls()):
            made.append(call)
            if index + 1 == stop:
                raise Interruption
        for work, result, expected in made:
            if work is not None:
                work.wait()
            assert torch.equal(result, expected)


def interrupted(seed: int) -> list[str]:
    """After an exception between any two calls, once or several times in a row, the loop starts again."""
    chosen = random.Random(seed)  # alike on all ranks
    session.start()
    with Planned(random_plans_of(seed)) as planned:
        loop = Loop()
        for _ in range(3):
            for _ in range(FORCED_STEPS):
                loop.iterate()
            _steady(planned)
            for _ in range(chosen.randint(1, 3)):
                with pytest.raises(Interruption):
                    loop.iterate(stop=chosen.randint(1, Loop.CALLS - 1))
        for _ in range(FORCED_STEPS):
            loop.iterate()
        _steady(planned)
        found = [event.what for event in planned.events]
        assert found == ["planned", "kept"] + (len(found) - 2) * ["left"], planned.events
    loop.iterate()
    assert mcr_dl.get_passes() == []
    return found


def interrupted_outside(seed: int) -> None:
    """An exception that leaves the block of a Syndicate; the program begins another one, and makes a group."""

    def leave() -> None:
        with Planned(random_plans_of(seed)):
            loop = Loop()
            for _ in range(FORCED_STEPS):
                loop.iterate()
            loop.iterate(stop=3)

    session.stop()
    session.start()
    with pytest.raises(Interruption):
        leave()
    with Planned(random_plans_of(seed)) as planned:
        loop = Loop()
        assert mcr_dl.get_passes().count("schedule") == 1
        assert mcr_dl.get_passes(loop.other).count("schedule") == 1
        for _ in range(FORCED_STEPS):
            loop.iterate()
        assert planned.phase == "steady"
    loop.iterate()
    session.stop()


# ---- the variable


@contextmanager
def _variables(**values: str) -> Iterator[None]:
    """These environment variables, in the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _running() -> Syndicate:
    """The Syndicate that the variable has started."""
    (found,) = (each for each in state.current().passes if isinstance(each, Syndicate))
    return found


def by_variable() -> None:
    """A program of mcr_dl, with its default group and another one."""
    session.stop()
    with _variables(MCR_DL_SCHEDULE="syndicate"):
        session.start()
        program = Program()
        for group in (None, program.pair):
            assert mcr_dl.get_passes(group) == ["log", "schedule"]
        for _ in range(SEARCHED_STEPS):
            program.iterate()
        found = _running()
        assert found.events[0].what in ("planned", "none"), found.events
        assert found.phase in ("trying", "steady")
        session.stop()
    session.start()
    assert mcr_dl.get_passes() == []


def twice() -> None:
    """A block in another one, or under the variable, is refused; groups stay usable, and new ones can be made."""
    session.stop()
    with _variables(MCR_DL_SCHEDULE="syndicate"):
        session.start()
        with pytest.raises(InvalidArgumentError, match="Syndicate: expected no other Syndicate"), Syndicate():
            pass
        loop = Loop()
        assert mcr_dl.get_passes(loop.other) == ["log", "schedule"]
        loop.iterate()
        session.stop()
    session.start()
    with Syndicate():
        with pytest.raises(InvalidArgumentError, match="Syndicate: expected no other Syndicate"), Syndicate():
            pass
        Loop().iterate()
    assert mcr_dl.get_passes() == []
    Loop().iterate()
    session.stop()


def by_variable_in_torch(program: str) -> str:
    """A program of torch.distributed, with its default group and another one."""

    @contextmanager
    def planning() -> Iterator[Syndicate]:
        for group in (dist.group.WORLD, dist.new_group(list(range(dist.get_world_size())))):
            assert mcr_dl.get_passes(group) == ["log", "schedule"]
        yield _running()

    def check(planned: Syndicate) -> None:
        assert planned.events[0].what in ("planned", "none"), planned.events

    with life("mcr"):
        assert mcr_dl.get_passes(dist.group.WORLD) == []
        expected = _trained(program, SEARCHED_STEPS, nullcontext, lambda _: None)
    with _variables(MCR_DL_SCHEDULE="syndicate"), life("mcr"):
        found = _trained(program, SEARCHED_STEPS, planning, check)
        same(found, expected, exact=dist.get_world_size() == 2)
    return _digest(found)


def mistakes() -> None:
    """An unknown scheduler, and one next to a pass that it excludes: neither mcr_dl nor torch's group starts."""
    unknown = r"MCR_DL_SCHEDULE: expected syndicate or none, got 'syndicat'"
    for error, text, variables in (
        (InvalidArgumentError, unknown, {VARIABLE: "syndicat"}),
        (UnsupportedError, "expected a group without the pass fuse", {VARIABLE: "syndicate", "MCR_DL_PASSES": "fuse"}),
    ):
        session.stop()
        with _variables(**variables):
            with pytest.raises(error, match=text):
                session.start()
            assert not mcr_dl.is_initialized()
            with pytest.raises(error, match=text), life("mcr"):
                pass
            assert not dist.is_initialized()
    with _variables(MCR_DL_SCHEDULE="none"):
        session.start()
        assert mcr_dl.get_passes() == []
        value = torch.ones(2)
        mcr_dl.all_reduce(value)
        assert torch.equal(value, torch.full((2,), float(mcr_dl.get_world_size())))
        session.stop()
