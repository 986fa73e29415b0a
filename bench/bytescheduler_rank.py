# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/bytescheduler.py: step times of models in several ways of training, which take turns.

Usage: bytescheduler_rank.py BACKEND MODEL STEPS. Rank 0 prints one line of JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mcr_dl
from mcr_dl.schedule import ByteScheduler

TURN = 5  # steps
WARM_UP = 6  # steps of each way that are not measured; ByteScheduler makes its plan after four


def vgg() -> tuple[nn.Module, tuple[int, ...]]:
    """Small convolutions, and large linear layers at the end."""
    layers: list[nn.Module] = []
    for given, made in ((3, 32), (32, 64), (64, 96)):
        layers += [nn.Conv2d(given, made, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(96 * 16, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 10)]
    return nn.Sequential(*layers, *head), (12, 3, 32, 32)


def resnet() -> tuple[nn.Module, tuple[int, ...]]:
    """Convolutions of equal sizes."""
    layers: list[nn.Module] = [nn.Conv2d(3, 128, 3, stride=4, padding=1), nn.ReLU()]
    for _ in range(9):
        layers += [nn.Conv2d(128, 128, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)), (6, 3, 32, 32)


def transformer() -> tuple[nn.Module, tuple[int, ...]]:
    """A large table that the forward pass needs first, and whose gradient comes last."""
    block = nn.TransformerEncoderLayer(192, 4, 512, dropout=0.0, batch_first=True)
    blocks = nn.TransformerEncoder(block, 3, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(2048, 192), blocks, nn.Linear(192, 10)), (4, 24, 2048)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "vgg": vgg,
    "resnet": resnet,
    "transformer": transformer,
}

Wrap = Callable[[nn.Module, torch.optim.Optimizer], Any]


def ways(backend: str) -> dict[str, Wrap]:
    """The ways to train; "compute" leaves the gradients of each rank as they are."""
    plain: dict[str, Any] = {"backend": backend}
    return {
        "compute": lambda model, _: model,
        "DDP": lambda model, _: DistributedDataParallel(model),
        "DDP, 1 MB buckets": lambda model, _: DistributedDataParallel(model, bucket_cap_mb=1),
        "program order": lambda model, made: ByteScheduler(model, made, partition=None, credit=None, **plain),
        "ByteScheduler": lambda model, made: ByteScheduler(model, made, **plain),
    }


class Trainer:
    """One way of training, with its own model."""

    def __init__(self, model: str, wrap: Wrap) -> None:
        torch.manual_seed(1)
        network, self.shape = MODELS[model]()
        self.bytes = sum(value.nbytes for value in network.parameters())
        self.optimizer = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9)
        self.model = wrap(network, self.optimizer)
        self.batch = torch.randn(self.shape)

    def step(self) -> None:
        """One training step."""
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def turn(self, steps: int) -> float:
        """Mean seconds of some steps, which end when all updates are made."""
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        if isinstance(self.model, ByteScheduler):
            self.model.synchronize()
        dist.barrier()
        return (time.perf_counter() - begin) / steps


def main() -> None:
    """Run one rank."""
    backend, model, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("mcr", pg_options=mcr_dl.Options(backends=[backend]))
    trainers = {name: Trainer(model, wrap) for name, wrap in ways(backend).items()}
    for trainer in trainers.values():
        trainer.turn(WARM_UP)
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(max(1, steps // TURN)):
        for name, trainer in trainers.items():
            times[name].append(trainer.turn(TURN))
    gradient = torch.zeros(trainers["DDP"].bytes // 4)
    transfers = []
    for _ in range(5):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(gradient)
        transfers.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        scheduler = trainers["ByteScheduler"].model
        print(
            json.dumps(
                {
                    "model": model,
                    "backend": backend,
                    "ranks": dist.get_world_size(),
                    "bytes": trainers["DDP"].bytes,
                    "plan": str(scheduler.plan),
                    "communication_ms": 1e3 * statistics.median(transfers),
                    "turns": {name: [round(1e3 * value, 3) for value in values] for name, values in times.items()},
                }
            ),
            flush=True,
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
