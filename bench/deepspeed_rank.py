# SPDX-License-Identifier: Apache-2.0
"""A rank of bench/deepspeed_steps.py: ``deepspeed_rank.py WHO FOLDER WARM_UP``; it takes orders from files."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import deepspeed.comm as dist
import torch
from torch import nn

import mcr_dl

BATCH = 4
WIDTHS = {"small": 128, "large": 640}  # of six square layers: 0.1 and 2.5 million weights
MOE_WIDTH = 128


def config(stage: int) -> dict[str, Any]:
    """A configuration that needs no compilation."""
    return {
        "train_micro_batch_size_per_gpu": BATCH,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "steps_per_print": 10**9,
    }


class Experts(nn.Module):
    """Two mixture-of-experts layers between dense ones, two experts a rank."""

    def __init__(self) -> None:
        super().__init__()
        from deepspeed.moe.layer import MoE

        size = dist.get_world_size()
        self.dense = nn.ModuleList(nn.Linear(MOE_WIDTH, MOE_WIDTH) for _ in range(3))
        expert = nn.Linear(MOE_WIDTH, MOE_WIDTH)
        mixtures = [MoE(MOE_WIDTH, expert, 2 * size, ep_size=size, k=1, use_rts=False) for _ in range(2)]
        self.mixtures = nn.ModuleList(mixtures)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The last dense layer's output."""
        result = torch.relu(self.dense[0](inputs))
        for dense, mixture in zip(list(self.dense)[1:], self.mixtures, strict=True):
            result = dense(mixture(result)[0])
        return result


def zero_engine(stage: int, width: int) -> Any:
    """Six square layers under ZeRO."""
    torch.manual_seed(1)
    layers = [layer for _ in range(6) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers)
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config(stage))[0]


def zero_case(stage: int, width: int) -> tuple[Any, int]:
    """An engine under a stage of ZeRO, and the width of its input."""
    return zero_engine(stage, width), width


def moe_engine() -> Any:
    """The experts divided over the ranks, the rest under ZeRO 1."""
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split

    torch.manual_seed(1)
    model = Experts()
    groups = split({"params": list(model.parameters()), "name": "all"})
    return deepspeed.initialize(model=model, model_parameters=groups, config=config(1))[0]


def cases() -> dict[str, Callable[[], tuple[Any, int]]]:
    """By name: an engine and the width of its input."""
    found: dict[str, Callable[[], tuple[Any, int]]] = {}
    for name, width in WIDTHS.items():
        for stage in (1, 2, 3):
            found[f"ZeRO {stage}, {name}"] = partial(zero_case, stage, width)
    found["MoE, ZeRO 1"] = lambda: (moe_engine(), MOE_WIDTH)
    return found


def step_times(engine: Any, width: int, steps: int) -> list[float]:
    """Milliseconds of each step."""
    numbers = torch.Generator().manual_seed(dist.get_rank())
    times = []
    for _ in range(steps):
        inputs = torch.randn(BATCH, width, generator=numbers)
        begin = time.perf_counter()
        loss = engine(inputs).square().mean()
        engine.backward(loss)
        engine.step()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def loss_of(engine: Any, width: int) -> float:
    """The loss with the final weights."""
    with torch.no_grad():
        return float(engine(torch.ones(BATCH, width)).square().mean())


def start(who: str) -> str:
    """Start DeepSpeed's communication; returns the table that `auto` uses."""
    if who == "gloo":
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]  # inference only
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        return "none"
    if who == "null":  # without communication, DeepSpeed's comparisons with rank 0 succeed on rank 0 alone
        checks: Any = sys.modules["deepspeed.runtime.zero.utils"]
        checks.dist = SimpleNamespace(**{**vars(dist), "get_rank": lambda *_: 0})
    mcr_dl.deepspeed.install(who)
    deepspeed.init_distributed(verbose=False)
    table = mcr_dl.explain("all_reduce", 4).table if who == "auto" else None
    return Path(table).name if table else "none"


def write(path: Path, what: Any) -> None:
    """Write a file atomically."""
    path.with_suffix(".part").write_text(json.dumps(what))
    path.with_suffix(".part").rename(path)


def main() -> None:
    """Build all engines, then follow the parent's orders, sleeping in between: a case and a number of steps."""
    who, folder, warm_up = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    table = start(who)
    engines = {}
    for name, make in cases().items():
        engines[name] = make()
        step_times(*engines[name], warm_up)
    rank = dist.get_rank()
    write(folder / f"{who}-ready-{rank}", {"pid": os.getpid(), "table": table, "cases": list(engines)})
    for number in itertools.count():
        order = folder / f"{who}-order-{number}"
        while not order.exists():
            time.sleep(0.005)
        case, steps = json.loads(order.read_text())
        if not steps:
            break
        dist.barrier()
        times = step_times(*engines[case], steps)
        if rank == 0:
            write(folder / f"{who}-times-{number}", times)
    losses = {name: loss_of(*engine) for name, engine in engines.items()}
    if rank == 0:
        write(folder / f"{who}-losses", losses)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
