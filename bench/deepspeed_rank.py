# SPDX-License-Identifier: Apache-2.0
"""A rank of bench/deepspeed.py: ``deepspeed_rank.py WHO STEPS OUTPUT``; times of all cases on WHO's communication."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.remove(str(Path(__file__).parent))  # where bench/deepspeed.py hides the real one
import deepspeed
import deepspeed.comm as dist
import torch
from torch import nn

import mcr_dl

WARM_UP = 20
BATCH = 4
WIDTHS = {"small": 128, "large": 640}  # of six square layers: 0.1 and 2.5 million weights
MOE_WIDTH = 128


def config(stage: int) -> dict[str, Any]:
    """A configuration that has nothing to compile."""
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
            found[f"ZeRO {stage}, {name}"] = lambda stage=stage, width=width: (zero_engine(stage, width), width)
    found["MoE, ZeRO 1"] = lambda: (moe_engine(), MOE_WIDTH)
    return found


def step_times(engine: Any, width: int, steps: int) -> tuple[list[float], float]:
    """Milliseconds of each step after warming up, and the last loss."""
    numbers = torch.Generator().manual_seed(dist.get_rank())
    times, loss = [], torch.zeros(())
    for _ in range(WARM_UP + steps):
        inputs = torch.randn(BATCH, width, generator=numbers)
        begin = time.perf_counter()
        loss = engine(inputs).square().mean()
        engine.backward(loss)
        engine.step()
        times.append((time.perf_counter() - begin) * 1e3)
    return times[WARM_UP:], loss.item()


def main() -> None:
    """Measure every case on one way of communicating."""
    who, steps, output = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    if who == "gloo":
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]  # inference only
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    else:
        mcr_dl.deepspeed.install(who)
        deepspeed.init_distributed(verbose=False)
    table = mcr_dl.explain("all_reduce", 4).table if who == "auto" else ""
    found: dict[str, Any] = {"table": Path(table).name if table else "none", "cases": {}}
    for name, make in cases().items():
        engine, width = make()
        times, loss = step_times(engine, width, steps)
        found["cases"][name] = {"times": times, "loss": loss}
    if dist.get_rank() == 0:
        output.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    main()
