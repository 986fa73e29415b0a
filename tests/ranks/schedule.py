# SPDX-License-Identifier: Apache-2.0
"""ByteScheduler reaches the weights of DistributedDataParallel on gloo, whatever the program does."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import mcr_dl
from mcr_dl.base import launcher
from mcr_dl.base.errors import InvalidArgumentError, McrError
from mcr_dl.schedule import ByteScheduler
from mcr_dl.schedule.bytescheduler import kept
from ranks.schedule_loops import ALL, FEWER, LONG, OPTIMIZERS, PREPARED, Model, Network, loss_of, network
from ranks.torch_training import life


class Case(NamedTuple):
    """One training: its loop and optimizer, and ByteScheduler's options; None for a backend: the group's choice."""

    loop: str = "plain"
    optimizer: str = "sgd"
    limits: Any = 4096
    backend: str | None = "mpi"
    form: str = "all_reduce"
    tuning: str = "shortlist"
    order: str = "static"

    def wrapped(self, model: nn.Module, optimizer: torch.optim.Optimizer, group: Any = None) -> ByteScheduler:
        """The model with ByteScheduler's options."""
        given: Any = {"partition": self.limits, "credit": self.limits, "form": self.form, "tuning": self.tuning}
        return ByteScheduler(model, optimizer, **given, order=self.order, group=group, backend=self.backend)


Wrap = Callable[[nn.Module, torch.optim.Optimizer], Model]


def _as_it_is(_: Network) -> None:
    """Prepare nothing."""


def _trained(case: Case, wrap: Wrap) -> Any:
    model = network()
    PREPARED.get(case.loop, _as_it_is)(model)
    optimizer = OPTIMIZERS[case.optimizer](model)
    wrapped = wrap(model, optimizer)
    ALL[case.loop](wrapped, optimizer)
    found = {name: value.clone() for name, value in wrapped.state_dict().items()}
    if isinstance(wrapped, ByteScheduler):
        wrapped.close()
    return found


def reach_weights_of_ddp(cases: list[Case], dtype: str = "float32") -> None:
    """Bit by bit with two ranks, where a sum does not depend on the order; else up to rounding errors."""
    cases = [Case(*case) for case in cases]
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with life("gloo"):
            reference: Wrap = lambda model, _: DistributedDataParallel(model, find_unused_parameters=True)  # noqa: E731
            kinds = {(case.loop, case.optimizer): case for case in cases}
            expected = {kind: _trained(case, reference) for kind, case in kinds.items()}
        with life("mcr"):
            for case in cases:
                found = _trained(case, case.wrapped)
                _compare(case, found, expected[case.loop, case.optimizer], dtype)
    finally:
        torch.set_default_dtype(before)


def _compare(case: Case, found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], dtype: str) -> None:
    assert list(found) == list(expected)
    if launcher.detect().size == 2:
        for name, value in expected.items():
            assert torch.equal(found[name], value), (case, name, (found[name] - value).abs().max())
        return
    difference = torch.cat([(found[name] - value).flatten() for name, value in expected.items()])
    error = difference.norm() / torch.cat([value.flatten() for value in expected.values()]).norm()
    assert error <= (1e-6 if dtype == "float32" else 1e-13), (case, error)


def part_of_the_ranks(candidate: str) -> None:
    """A group of the last two ranks reaches their weights with DistributedDataParallel, in large partitions."""
    case, ranks = Case(limits=None, backend=candidate), [1, 2]
    with life("gloo"):
        part = dist.new_group(ranks)
        reference: Wrap = lambda model, _: DistributedDataParallel(  # noqa: E731
            model, process_group=part, find_unused_parameters=True
        )
        expected = _trained(case, reference) if dist.get_rank() in ranks else {}
    with life("mcr"):
        part = mcr_dl.new_group(ranks, backend="gloo,mpi,stripe(gloo,mpi)")
        found = _trained(case, partial(case.wrapped, group=part)) if dist.get_rank() in ranks else {}
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def _with_buffers() -> nn.Module:
    """Buffers of several types and shapes, which differ between the ranks."""
    torch.manual_seed(7)
    made = nn.Sequential(nn.Linear(12, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
    rank = float(dist.get_rank())
    made.register_buffer("flags", torch.tensor([rank == 0, True, False]))
    made.register_buffer("wide", torch.full((2, 3), rank, dtype=torch.float64).t())
    made.register_buffer("number", torch.tensor(rank, dtype=torch.bfloat16))
    made.register_buffer("none", torch.zeros(0, 3))
    return made


def buffers_are_those_of_ddp() -> None:
    """Each training step begins with the first rank's, also where the ranks' batches give others."""
    found: list[dict[str, torch.Tensor]] = []
    wraps: dict[str, Wrap] = {"gloo": lambda model, _: DistributedDataParallel(model), "mcr": ByteScheduler}
    for backend, wrap in wraps.items():
        with life(backend):
            model = _with_buffers()
            optimizer = OPTIMIZERS["sgd"](model)
            wrapped = wrap(model, optimizer)
            for step in range(FEWER):
                model[1].running_mean += dist.get_rank()
                loss_of(wrapped, step).backward()
                optimizer.step()
                optimizer.zero_grad()
            wrapped.state_dict()  # after all updates
            found.append({name: value.clone() for name, value in model.state_dict().items()})
            if isinstance(wrapped, ByteScheduler):
                wrapped.close()
    expected, own = found
    for name, value in expected.items():
        assert torch.allclose(own[name].double(), value.double(), rtol=1e-5, atol=1e-6), name
    assert own["flags"].tolist() == [True, True, False]
    assert own["wide"].abs().sum() == own["number"] == 0


def buffers_of_evaluation() -> None:
    """Are the rank's own, and all ranks' are the first one's after ``synchronize(broadcast_buffers=True)``."""
    with life("mcr"):
        model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
        scheduler = ByteScheduler(model, OPTIMIZERS["sgd"](model))
        scheduler(torch.full((4, 2), float(dist.get_rank()))).sum().backward()
        scheduler.eval()
        with torch.no_grad():
            scheduler(torch.zeros(1, 2))
            found: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(found, model[0].running_mean.tolist())
            assert found[0] != found[1]
            scheduler.synchronize(broadcast_buffers=True)
        assert model[0].running_mean.tolist() == found[0]
        scheduler.close()


def settings_are_kept(file: str) -> None:
    """By rank 0, and the later training compares no plans. A search does not take what a shortlist found."""
    kept.path = lambda: Path(file)  # the tests' jobs have no tuning table, and so no settings
    kept.key = lambda *_: "model"

    def trained(tuning: str, steps: int) -> ByteScheduler:
        model = network()
        optimizer = OPTIMIZERS["sgd"](model)
        scheduler = ByteScheduler(model, optimizer, tuning=tuning)
        for step in range(steps):
            loss_of(scheduler, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        return scheduler

    with life("mcr"):
        first = trained("shortlist", LONG // 3)
        assert first.trials
        assert not first.comparing
        again = trained("shortlist", 5)
        assert (again.trials, again.comparing) == ([], False)
        assert again.plan.settings == first.plan.settings
        assert trained("bayesian", 5).comparing


def steps_are_traced(folder: str) -> None:
    """The plan and all operations of the steps in the block, in the form of Chrome's traces."""
    with life("mcr"):
        model = network()
        optimizer = OPTIMIZERS["sgd"](model)
        scheduler = ByteScheduler(model, optimizer, partition=4096, credit=8192)
        path = Path(folder) / f"{dist.get_rank()}.json"

        def train(steps: int) -> None:
            for step in range(steps):
                loss_of(scheduler, step).backward()
                optimizer.step()
                optimizer.zero_grad()

        train(2)
        with pytest.raises(McrError, match="expected a plan"), scheduler.traced(path):
            pass
        train(LONG // 3)
        assert not scheduler.comparing
        text = r"ByteScheduler: traced\(\): expected a file that can be written, got .*no folder"
        with pytest.raises(InvalidArgumentError, match=text), scheduler.traced(Path(folder) / "no folder" / path.name):
            pytest.fail("the block has run")
        with scheduler.traced(path) as found:
            pass
        assert (found.exposed_ms, found.median_ms) == ([], 0)
        with scheduler.traced(path) as found:
            train(1)
            with pytest.raises(McrError, match="expected no other block"), scheduler.traced(path):
                pytest.fail("the inner block has run")
            train(3)
        assert len(found.exposed_ms) == 4
        assert min(found.exposed_ms) >= 0
        assert found.median_ms == statistics.median(found.exposed_ms)
        train(1)  # as before
        events = json.loads(path.read_text())["traceEvents"]
    begun = [[event for event in events if event["ph"] == "b" and event["pid"] == process] for process in (0, 1)]
    assert len(begun[0]) == len(scheduler.plan.order)
    assert len(begun[1]) == 4 * (len(scheduler.plan.order) + 1)  # and the use of parameters
    ends = {event["id"]: event["ts"] for event in events if event["ph"] == "e" and event["pid"] == 1}
    for event in begun[1]:
        assert event["args"]["ready_ms"] * 1000 <= event["ts"] + 0.01
        assert event["ts"] <= ends[event["id"]]
    spans = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 for event in spans)
    measured = [event["name"] for event in spans if event["pid"] == 1]
    assert (measured.count("forward"), measured.count("backward")) == (4, 4)


class _Through(nn.Module):
    def __init__(self, network: nn.Sequential, through: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.network, self.through = network, through

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.network:
            x = self.through(layer, x)
        return x


def checkpoints_with_reentrant_autograd() -> None:
    """They reach the weights of the model without checkpoints."""
    weights = []
    with life("mcr"):
        for through in (lambda layer, x: checkpoint(layer, x, use_reentrant=True), lambda layer, x: layer(x)):
            torch.manual_seed(5)
            network = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
            optimizer = OPTIMIZERS["sgd"](network)
            inputs = torch.ones(2, 8, requires_grad=True)
            model = ByteScheduler(_Through(network, through), optimizer, partition=1024)
            for _ in range(8):
                model(inputs * (dist.get_rank() + 1)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            model.close()
            weights.append(network[0].weight)
    assert torch.equal(*weights)
