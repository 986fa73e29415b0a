# SPDX-License-Identifier: Apache-2.0
"""A model, optimizers and training loops, each of which is run with DistributedDataParallel and with ByteScheduler."""

from __future__ import annotations

import copy
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

from mcr_dl.schedule import ByteScheduler
from mcr_dl.schedule.bytescheduler.gradients import Piece

STEPS = 50  # of the plain loop
LONG = 540  # of all plans that a search compares
FEWER = 12  # of the others; the plan is made after four

Model = DistributedDataParallel | ByteScheduler
Optimizers = Callable[[nn.Module], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Optimizers] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.003),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.003),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.01),
    "adadelta": lambda model: torch.optim.Adadelta(model.parameters(), lr=0.1),
    "adafactor": lambda model: torch.optim.Adafactor(model.parameters(), lr=0.01),
    "adamax": lambda model: torch.optim.Adamax(model.parameters(), lr=0.003),
    "asgd": lambda model: torch.optim.ASGD(model.parameters(), lr=0.02),
    "nadam": lambda model: torch.optim.NAdam(model.parameters(), lr=0.003),
    "radam": lambda model: torch.optim.RAdam(model.parameters(), lr=0.003),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.003),
    "rprop": lambda model: torch.optim.Rprop(model.parameters(), lr=0.003),
    "fused": lambda model: torch.optim.AdamW(model.parameters(), lr=0.003, fused=True),
    "groups": lambda model: torch.optim.AdamW(
        [
            {"params": [value for value in model.parameters() if value.dim() > 1], "weight_decay": 0.1},
            {"params": [value for value in model.parameters() if value.dim() == 1], "lr": 0.01},
        ],
        lr=0.003,
    ),
}


class Side(nn.Module):
    """A small parameter that nothing uses, declared before a large one."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(1))
        self.weight = nn.Parameter(torch.randn(160, 160) / 13)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Network(nn.Module):
    """A shared weight, parameters of a module with children, a layer that only some steps use, large and small ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 160)
        self.scale = nn.Parameter(torch.ones(160))
        self.inner = nn.Sequential(nn.Linear(160, 160), nn.ReLU(), nn.LayerNorm(160))
        self.tied = nn.Linear(160, 160, bias=False)
        self.tied.weight = self.inner[0].weight
        self.side = Side()
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


def loss_of(model: nn.Module, step: int, **given: Any) -> torch.Tensor:
    x, y = batch(step)
    return nn.functional.mse_loss(model(x, **given), y)


# ---- training loops


def plain(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """The usual loop."""
    for step in range(STEPS):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def zeroed_first(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Gradients are set to zeros, and before the forward pass."""
    for step in range(FEWER):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, step).backward()
        optimizer.step()


def scheduled(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """A learning rate that changes right after each step."""
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(FEWER):
        loss_of(model, step).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def unused(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Ranks use different layers, and no rank uses one of them in some steps."""
    for step in range(FEWER):
        loss_of(model, step, side=step % 3 != 0 and (step + dist.get_rank()) % 2 == 0).backward()
        optimizer.step()
        optimizer.zero_grad()


def accumulated(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Two backward passes per step, the first without a reduction."""
    for step in range(FEWER):
        for last in (False, True):
            with nullcontext() if last else model.no_sync():
                loss_of(model, 2 * step + last).backward()
        optimizer.step()
        optimizer.zero_grad()


def accumulated_forward(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """The place of the forward pass counts, and not that of the backward pass: inside ``no_sync()`` or outside."""
    for step in range(FEWER):
        with model.no_sync():
            local = loss_of(model, 2 * step)
        local.backward()
        reduced = loss_of(model, 2 * step + 1)
        with model.no_sync():
            reduced.backward()
        optimizer.step()
        optimizer.zero_grad()


def local_inside(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """A forward pass in ``no_sync()`` follows one outside: the next backward pass reduces, through either of them."""
    for step in range(FEWER):
        outside = loss_of(model, 2 * step)
        with model.no_sync():
            inside = loss_of(model, 2 * step + 1)
        (outside if step % 3 else inside).backward()
        if step % 2:
            with model.no_sync():
                loss_of(model, 3 * step).backward()
            loss_of(model, 3 * step + 1).backward()
        optimizer.step()
        optimizer.zero_grad()


def twice(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Two backward passes per step, each with a reduction."""
    for step in range(FEWER):
        for part in (0, 1):
            loss_of(model, 2 * step + part).backward()
        optimizer.step()
        optimizer.zero_grad()


def partly_unused(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """The layer is used in the first of two backward passes, and in the second on no rank, on one, or on all."""
    for step in range(FEWER):
        synchronized = step % 2 == 1
        with nullcontext() if synchronized else model.no_sync():
            loss_of(model, 2 * step).backward()
        some = (False, step % 4 < 2 and dist.get_rank() == 0, True)
        loss_of(model, 2 * step + 1, side=some[step % 3]).backward()
        optimizer.step()
        optimizer.zero_grad()


def discarded(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Gradients, of which those of a layer are of one rank alone, are cleared instead of used."""
    for step in range(FEWER):
        loss_of(model, 2 * step, side=dist.get_rank() == 0).backward()
        if step % 3:
            optimizer.zero_grad(set_to_none=step % 3 == 1)
        if step % 2:
            loss_of(model, 2 * step + 1, side=dist.get_rank() == 1).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()


def local_first(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Steps of local gradients come before the first that reduces any."""
    for step in range(FEWER):
        with nullcontext() if step > 5 else model.no_sync():
            loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def clipped(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """All gradients are needed before the step."""
    for step in range(FEWER):
        loss_of(model, step).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()


def clipped_inside(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """The gradients of the wrapped model are used, and copied, before the step."""
    for step in range(FEWER):
        loss_of(model, step).backward()
        kept = copy.deepcopy(model.module.last.weight.grad)
        nn.utils.clip_grad_norm_(model.module.parameters(), 0.5)
        assert kept is not None
        model.module.last.weight.grad.add_(kept, alpha=0.1)
        optimizer.step()
        optimizer.zero_grad()


def scaled(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """GradScaler leaves out the steps whose gradients are not finite."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
    for step in range(FEWER):
        loss = loss_of(model, step)
        if step % 7 == 3 and dist.get_rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def evaluated(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Evaluation and checkpoints between the steps."""
    for step in range(FEWER):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 2:
            with torch.no_grad():
                loss_of(model, step)
            model.eval()
            loss_of(model, step)
            model.train()
        if step % 10 == 4:
            weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
            model.load_state_dict(weights)
            optimizer.load_state_dict(state)


def inferred(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Evaluation in inference mode, while updates wait that make the optimizer's state."""
    for step in range(FEWER):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            with torch.inference_mode():
                model.eval()
                loss_of(model, step)
                model.train()


def mixed(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Forward passes in mixed precision; steps are outside."""
    for step in range(FEWER):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def replaced(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Gradients are replaced after each step."""
    for step in range(FEWER):
        loss_of(model, step).backward()
        optimizer.step()
        for value in model.module.parameters():
            value.grad = torch.zeros_like(value)


def hooked(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Functions that run once at each step: one of the optimizer, which clips the new weights, and those of all."""
    calls = []
    with torch.no_grad():
        hooks = [
            optimizer.register_step_post_hook(lambda *_: [value.clamp_(-0.1, 0.1) for value in model.parameters()]),
            register_optimizer_step_pre_hook(lambda *_: calls.append("pre")),
            register_optimizer_step_post_hook(lambda *_: calls.append("post")),
        ]
        for step in range(FEWER):
            with torch.enable_grad():
                loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
    for hook in hooks:
        hook.remove()
    assert calls == ["pre", "post"] * FEWER


def averaged(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """The wrapped model's parameters are read after each step."""
    mean = [torch.zeros_like(value) for value in model.parameters()]
    for step in range(FEWER):
        loss_of(model, step).backward()
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
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    del inner.forward


def pruned(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """A module computes its weight from a parameter, in a hook that it had before; no update is made early."""
    with patch.object(Piece, "complete", lambda _: False):
        plain(model, optimizer)


def normalized(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """As ``pruned``, from two parameters."""
    pruned(model, optimizer)


def frozen(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """A layer does not need gradients for some steps."""
    for step in range(FEWER):
        model.module.side.requires_grad_(step not in (5, 6, 7))
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def delayed(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Gradients become ready at random times, different on each rank."""
    generator = random.Random(dist.get_rank())
    hooks = [
        value.register_hook(lambda _: time.sleep(generator.random() * 0.003)) for value in model.module.parameters()
    ]
    for step in range(FEWER):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    for hook in hooks:
        hook.remove()


def paused(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """A rank is stopped for two seconds between two layers of a backward pass."""

    def pause(_: torch.Tensor) -> None:
        subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)

    for step in range(FEWER):
        here = step == 7 and dist.get_rank() == 1
        hook = model.module.inner[0].weight.register_hook(pause) if here else None
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        if hook:
            hook.remove()


def long(model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Steps for all plans that are compared."""
    for step in range(LONG):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    if isinstance(model, ByteScheduler):
        assert not model.comparing


_SIMPLE = (plain, zeroed_first, scheduled, unused, accumulated, twice, clipped, clipped_inside, scaled, evaluated)
_UNUSED = (partly_unused, discarded, local_first)
_OTHER = (accumulated_forward, local_inside, averaged, checkpointed, frozen, delayed, paused, pruned, normalized)
_AROUND = (inferred, mixed, replaced, hooked)  # updates at other times and places than the step
LOOPS = {each.__name__: each for each in (*_SIMPLE, *_UNUSED, *_OTHER, *_AROUND)}
ALL = {**LOOPS, "long": long}
# Changes of the model before it is wrapped.
PREPARED: dict[str, Callable[[Network], object]] = {
    "pruned": lambda model: prune.random_unstructured(model.side, "weight", 0.5),
    "normalized": lambda model: nn.utils.weight_norm(model.side),
}
