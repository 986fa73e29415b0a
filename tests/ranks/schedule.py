# SPDX-License-Identifier: Apache-2.0
"""ByteScheduler reaches the weights of DistributedDataParallel on gloo, whatever the program does."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from mcr_dl.base import launcher
from mcr_dl.base.errors import McrError
from mcr_dl.schedule import ByteScheduler, kept
from ranks.torch_training import life

STEPS = 50  # of the plain loop
LONG = 540  # of all plans that a search compares
FEWER = 12  # of the others; the plan is made after four

Model = DistributedDataParallel | ByteScheduler
Optimizers = Callable[[nn.Module], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Optimizers] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.003),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.003),
    "groups": lambda model: torch.optim.AdamW(
        [
            {"params": [value for value in model.parameters() if value.dim() > 1], "weight_decay": 0.1},
            {"params": [value for value in model.parameters() if value.dim() == 1], "lr": 0.01},
        ],
        lr=0.003,
    ),
}


class Network(nn.Module):
    """A shared weight, parameters of a module with children, a layer that only some steps use, large and small ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 160)
        self.scale = nn.Parameter(torch.ones(160))
        self.inner = nn.Sequential(nn.Linear(160, 160), nn.ReLU(), nn.LayerNorm(160))
        self.tied = nn.Linear(160, 160, bias=False)
        self.tied.weight = self.inner[0].weight
        self.side = nn.Linear(160, 160)
        self.never = nn.Linear(3, 3)
        self.last = nn.Linear(160, 4)

    def forward(self, x: torch.Tensor, side: bool = True) -> torch.Tensor:
        x = torch.relu(self.first(x)) * self.scale
        x = self.tied(self.inner(x))
        if side:
            x = x + self.side(x)
        out: torch.Tensor = self.last(x)
        return out


def network() -> Network:
    """With equal weights on all ranks and in both legs."""
    torch.manual_seed(7)
    return Network().to(torch.get_default_dtype())


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Different on every rank."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(6, 12, generator=generator), torch.randn(6, 4, generator=generator)


def _loss(model: nn.Module, step: int, **given: Any) -> torch.Tensor:
    x, y = batch(step)
    return nn.functional.mse_loss(model(x, **given), y)


# ---- training loops: each is run with DDP and with ByteScheduler


def plain(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """The usual loop."""
    for step in range(STEPS):
        _loss(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def zeroed_first(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Gradients are set to zeros, and before the forward pass."""
    for step in range(FEWER):
        optimizer.zero_grad(set_to_none=False)
        _loss(model, step).backward()
        optimizer.step()


def scheduled(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """A learning rate that changes right after each step."""
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(FEWER):
        _loss(model, step).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def unused(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Ranks use different layers, and no rank uses one of them in some steps."""
    for step in range(FEWER):
        _loss(model, step, side=step % 3 != 0 and (step + dist.get_rank()) % 2 == 0).backward()
        optimizer.step()
        optimizer.zero_grad()


def accumulated(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Two backward passes per step, the first without a reduction."""
    for step in range(FEWER):
        for last in (False, True):
            with nullcontext() if last else model.no_sync():
                _loss(model, 2 * step + last).backward()
        optimizer.step()
        optimizer.zero_grad()


def twice(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Two backward passes per step, each with a reduction."""
    for step in range(FEWER):
        for part in (0, 1):
            _loss(model, 2 * step + part).backward()
        optimizer.step()
        optimizer.zero_grad()


def partly_unused(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """The layer is used in the first of two backward passes, and in the second on no rank, on one, or on all."""
    for step in range(FEWER):
        synchronized = step % 2 == 1
        with nullcontext() if synchronized else model.no_sync():
            _loss(model, 2 * step).backward()
        some = (False, step % 4 < 2 and dist.get_rank() == 0, True)
        _loss(model, 2 * step + 1, side=some[step % 3]).backward()
        optimizer.step()
        optimizer.zero_grad()


def discarded(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Gradients, of which those of a layer are of one rank alone, are cleared instead of used."""
    for step in range(FEWER):
        _loss(model, 2 * step, side=dist.get_rank() == 0).backward()
        if step % 3:
            optimizer.zero_grad(set_to_none=step % 3 == 1)
        if step % 2:
            _loss(model, 2 * step + 1, side=dist.get_rank() == 1).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()


def local_first(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Steps of local gradients come before the first that reduces any."""
    for step in range(FEWER):
        with nullcontext() if step > 5 else model.no_sync():
            _loss(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def clipped(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """All gradients are needed before the step."""
    for step in range(FEWER):
        _loss(model, step).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()


def scaled(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """GradScaler leaves out the steps whose gradients are not finite."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
    for step in range(FEWER):
        loss = _loss(model, step)
        if step % 7 == 3 and dist.get_rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def evaluated(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Evaluation and checkpoints between the steps."""
    for step in range(FEWER):
        _loss(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 2:
            with torch.no_grad():
                _loss(model, step)
            model.eval()
            _loss(model, step)
            model.train()
        if step % 10 == 4:
            weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
            model.load_state_dict(weights)
            optimizer.load_state_dict(state)


def averaged(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """The wrapped model's parameters are read after each step."""
    mean = [torch.zeros_like(value) for value in model.parameters()]
    for step in range(FEWER):
        _loss(model, step).backward()
        optimizer.step()
        model.zero_grad()
        for value, new in zip(mean, model.parameters(), strict=True):
            value.lerp_(new.detach(), 0.1)
    with torch.no_grad():
        for value, new in zip(mean, model.parameters(), strict=True):
            new.copy_(value)  # what is compared


def checkpointed(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Activations of the inner layers are computed again in the backward pass."""
    inner = model.module.inner
    forward = inner.forward
    inner.forward = lambda x: checkpoint(forward, x, use_reentrant=False)
    for step in range(FEWER):
        _loss(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    del inner.forward


def frozen(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """A layer does not need gradients for some steps."""
    for step in range(FEWER):
        model.module.side.requires_grad_(step not in (5, 6, 7))
        _loss(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def delayed(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Gradients become ready at random times, different on each rank."""
    generator = random.Random(dist.get_rank())
    hooks = [
        value.register_hook(lambda _: time.sleep(generator.random() * 0.003)) for value in model.module.parameters()
    ]
    for step in range(FEWER):
        _loss(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    for hook in hooks:
        hook.remove()


def paused(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """A rank is stopped for a second between two layers of a backward pass."""

    def pause(_: torch.Tensor) -> None:
        subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)

    for step in range(FEWER):
        here = step == 7 and dist.get_rank() == 1
        hook = model.module.inner[0].weight.register_hook(pause) if here else None
        _loss(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        if hook:
            hook.remove()


def long(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Steps for all plans that are compared."""
    for step in range(LONG):
        _loss(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    if isinstance(model, ByteScheduler):
        assert not model.comparing


_SIMPLE = (plain, zeroed_first, scheduled, unused, accumulated, twice, clipped, scaled, evaluated)
_UNUSED = (partly_unused, discarded, local_first)
_OTHER = (averaged, checkpointed, frozen, delayed, paused)
LOOPS = {each.__name__: each for each in (*_SIMPLE, *_UNUSED, *_OTHER)}
_ALL = {**LOOPS, "long": long}


class Case(NamedTuple):
    """One training: its loop and optimizer, and ByteScheduler's options; None for a backend: the group's choice."""

    loop: str = "plain"
    optimizer: str = "sgd"
    limits: Any = 4096
    backend: str | None = "mpi"
    form: str = "all_reduce"
    tuning: str = "shortlist"
    order: str = "static"

    def wrapped(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> ByteScheduler:
        """The model with ByteScheduler's options."""
        limits: Any = {"partition": self.limits, "credit": self.limits}
        return ByteScheduler(
            model, optimizer, **limits, form=self.form, backend=self.backend, tuning=self.tuning, order=self.order
        )


Wrap = Callable[[nn.Module, torch.optim.Optimizer], Model]


def _trained(case: Case, wrap: Wrap) -> Any:
    model = network()
    optimizer = OPTIMIZERS[case.optimizer](model)
    wrapped = wrap(model, optimizer)
    _ALL[case.loop](wrapped, optimizer)
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
                _loss(wrapped, step).backward()
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


def settings_are_kept(file: str) -> None:
    """By rank 0, and the later training compares no plans. A search does not take what a shortlist found."""
    kept.path = lambda: Path(file)  # the tests' jobs have no tuning table, and so no settings
    kept.key = lambda *_: "model"

    def trained(tuning: str, steps: int) -> ByteScheduler:
        model = network()
        optimizer = OPTIMIZERS["sgd"](model)
        scheduler = ByteScheduler(model, optimizer, tuning=tuning)
        for step in range(steps):
            _loss(scheduler, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        return scheduler

    def settings(model: ByteScheduler) -> kept.Kept:
        return kept.Kept.of(model.plan, "")

    with life("mcr"):
        first = trained("shortlist", LONG // 3)
        assert first.trials
        assert not first.comparing
        again = trained("shortlist", 5)
        assert (again.trials, again.comparing) == ([], False)
        assert settings(again) == settings(first)
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
                _loss(scheduler, step).backward()
                optimizer.step()
                optimizer.zero_grad()

        train(2)
        with pytest.raises(McrError, match="expected a plan"), scheduler.traced(path):
            pass
        train(LONG // 3)
        assert not scheduler.comparing
        with scheduler.traced(path) as found:
            train(4)
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
