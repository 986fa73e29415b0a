# SPDX-License-Identifier: Apache-2.0
"""Models of three kinds, small enough for one machine, and the ways to train them on several ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mcr_dl as dist
from mcr_dl.examples import bytescheduler_emulated as emulated

COMPUTE, HOOKS, DDP, BUCKETS = "no communication", "program order", "DDP", "DDP, 1 MB buckets"
DEAR, WHOLE, SIMULATED = "reduce_scatter form", "whole gradients", "simulated plan"
SCHEDULED, SEARCHED = "ByteScheduler", "Bayesian search"
WARM_UP = 8  # steps of each way that are not measured; ByteScheduler takes as many as it needs to choose its plan


def vgg() -> tuple[nn.Module, tuple[int, ...]]:
    """Small convolutions, and large linear layers at the end, as VGG-16: 95 % of the bytes are in two of six layers."""
    layers: list[nn.Module] = []
    for given, made in ((3, 32), (32, 64), (64, 96)):
        layers += [nn.Conv2d(given, made, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(96 * 16, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 10)]
    return nn.Sequential(*layers, *head), (12, 3, 32, 32)


def resnet() -> tuple[nn.Module, tuple[int, ...]]:
    """Convolutions of equal sizes, with much computation for each byte, as ResNet-50."""
    layers: list[nn.Module] = [nn.Conv2d(3, 128, 3, stride=4, padding=1), nn.ReLU()]
    for _ in range(9):
        layers += [nn.Conv2d(128, 128, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)), (6, 3, 32, 32)


def transformer() -> tuple[nn.Module, tuple[int, ...]]:
    """A large first layer, whose gradient is ready last and is needed first, and three blocks."""
    block = nn.TransformerEncoderLayer(192, 4, 512, dropout=0.0, batch_first=True)
    blocks = nn.TransformerEncoder(block, 3, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(2048, 192), blocks, nn.Linear(192, 10)), (4, 24, 2048)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "vgg": vgg,
    "resnet": resnet,
    "transformer": transformer,
    **emulated.MODELS,
}
COMPUTED = tuple(name for name in MODELS if name not in emulated.MODELS)


class Hooks(nn.Module):
    """Each gradient is reduced as soon as it is ready, and ``synchronize`` waits for all: nothing else."""

    def __init__(self, module: nn.Module, group: Any) -> None:
        super().__init__()
        self.module = module
        self._group = group
        self._share = 1.0 / dist.get_world_size(group)
        self._works: list[Any] = []
        for each in module.parameters():
            value: Any = each  # torch's functions that set hooks have no types
            value.register_post_accumulate_grad_hook(self._start)

    def _start(self, value: torch.Tensor) -> None:
        assert value.grad is not None
        value.grad.mul_(self._share)
        self._works.append(dist.all_reduce(value.grad, group=self._group, async_op=True))

    def forward(self, x: torch.Tensor) -> Any:
        """The model's forward pass."""
        return self.module(x)

    def synchronize(self) -> None:
        """Wait for all gradients."""
        for work in self._works:
            work.wait()
        self._works.clear()


Wrap = Callable[[nn.Module, torch.optim.Optimizer], nn.Module]


def ways(group: Any, search: bool = False) -> dict[str, Wrap]:
    """The ways to train on a group; ``search``: with the one that takes about 500 steps to choose its plan."""

    def scheduled(**given: Any) -> Wrap:
        return lambda model, optimizer: dist.schedule.ByteScheduler(model, optimizer, group=group, **given)

    return {
        COMPUTE: lambda model, _: model,
        HOOKS: lambda model, _: Hooks(model, group),
        DDP: lambda model, _: DistributedDataParallel(model, process_group=group),
        BUCKETS: lambda model, _: DistributedDataParallel(model, process_group=group, bucket_cap_mb=1),
        DEAR: scheduled(form="reduce_scatter"),
        WHOLE: scheduled(partition=None, credit=None, tuning="simulation"),
        SIMULATED: scheduled(tuning="simulation"),
        SCHEDULED: scheduled(),
        **({SEARCHED: scheduled(tuning="bayesian")} if search else {}),
    }


class Trainer:
    """One way of training, with its own model."""

    def __init__(self, model: str, wrap: Wrap, group: Any) -> None:
        torch.manual_seed(1)
        network, self.shape = MODELS[model]()
        self.nbytes = sum(value.nbytes for value in network.parameters())
        self.optimizer = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9)
        self.model = wrap(network, self.optimizer)
        self.batch = torch.randn(self.shape, generator=torch.Generator().manual_seed(dist.get_rank()))
        self._group = group

    def step(self) -> None:
        """One training step."""
        self.model(self.batch).square().mean().backward()
        if isinstance(self.model, Hooks):
            self.model.synchronize()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def warm_up(self) -> None:
        """Steps until the speed is that of later ones."""
        self.turn(WARM_UP)
        while isinstance(self.model, dist.schedule.ByteScheduler) and self.model.comparing:
            self.step()

    def turn(self, steps: int) -> float:
        """Mean seconds of some steps after another one, from the end of that one to the end of the last.

        At both moments as much communication is in flight, as in a long training.
        """
        dist.barrier(self._group)
        self.step()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        seconds = (time.perf_counter() - begin) / steps
        if isinstance(self.model, dist.schedule.ByteScheduler):
            self.model.synchronize()
        return seconds
