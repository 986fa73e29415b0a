# SPDX-License-Identifier: Apache-2.0
"""Trains with DeepSpeed: ``deepspeed_job.py HOW CASES FOLDER``; HOW is gloo (DeepSpeed's own), mcr or install.

Every case is a function; its result goes to FOLDER/<rank>.json together with the library that carried its calls.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import deepspeed
import deepspeed.comm as dist
import torch
from torch import nn

import counting
import mcr_dl

HOW, CASES, FOLDER = sys.argv[1], sys.argv[2].split(","), Path(sys.argv[3])
STEPS, BATCH, WIDTH, CLASSES = 6, 4, 32, 8


def config(**extra: Any) -> dict[str, Any]:
    """DeepSpeed's configuration, without parts that it would have to compile."""
    adam = {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}}
    size = int(os.environ["WORLD_SIZE"])
    base = {"train_batch_size": BATCH * size, "train_micro_batch_size_per_gpu": BATCH, "steps_per_print": 10**9}
    return {**base, "optimizer": adam, "wall_clock_breakdown": False, **extra}


def batches(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's part of the data."""
    numbers = torch.Generator().manual_seed(100 + rank)
    inputs = [torch.randn(BATCH, WIDTH, generator=numbers) for _ in range(STEPS)]
    return [(each, torch.randint(0, CLASSES, (BATCH,), generator=numbers)) for each in inputs]


def train(engine: Any) -> list[float]:
    """This rank's loss in each step, exactly."""
    losses = []
    for inputs, wanted in batches(engine.global_rank):
        loss = nn.functional.cross_entropy(engine(inputs), wanted)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def perceptron() -> nn.Module:
    """A model of a few thousand weights, equal on all ranks."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def zero(stage: int, **extra: Any) -> dict[str, Any]:
    """ZeRO; in stage 3 no parameter is too small to be partitioned."""
    settings = {"stage": stage, "stage3_param_persistence_threshold": 0}
    model = perceptron()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config(zero_optimization=settings, **extra)
    )
    return {"losses": train(engine)}


class Experts(nn.Module):
    """Dense, mixture of experts, dense; the experts are divided over the ranks."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        from deepspeed.moe.layer import MoE

        self.first = nn.Linear(WIDTH, WIDTH)
        self.mixture = MoE(WIDTH, nn.Linear(WIDTH, WIDTH), 2 * ranks, ep_size=ranks, k=1, use_rts=False)
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        mixed, _, _ = self.mixture(torch.relu(self.first(inputs)))
        scores: torch.Tensor = self.last(mixed)
        return scores


def moe() -> dict[str, Any]:
    """Expert parallelism over all ranks, with ZeRO 1 for the dense part."""
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split

    torch.manual_seed(1 + dist.get_rank())  # DeepSpeed broadcasts everything except experts
    model = Experts(dist.get_world_size())
    groups = split({"params": list(model.parameters()), "name": "all"})
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=groups, config=config(zero_optimization={"stage": 1})
    )
    return {"losses": train(engine)}


def pipeline() -> dict[str, Any]:
    """Two stages, each half of the ranks, with several micro-batches in flight."""
    from deepspeed.pipe import PipelineModule

    torch.manual_seed(1)
    layers = [nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES)]
    module = PipelineModule(layers, num_stages=2, loss_fn=nn.functional.cross_entropy)
    pieces = 3
    settings = config(train_batch_size=BATCH * pieces * dist.get_world_size() // 2)
    engine, *_ = deepspeed.initialize(model=module, model_parameters=module.parameters(), config=settings)
    data = batches(0)
    feed = iter(data * pieces)
    return {"losses": [engine.train_batch(feed).item() for _ in range(STEPS)]}


def logger() -> dict[str, Any]:
    """DeepSpeed's comms logger: how often each operation ran, at which sizes."""
    settings = {"enabled": True, "verbose": False, "prof_all": True, "debug": False}
    deepspeed.comm.reset_log()
    try:
        result = zero(2, comms_logger=settings)
        summary = deepspeed.comm.log_summary(show_straggler=True, return_dict=True)
    finally:
        deepspeed.comm.configure(enabled=False)
    counts = {name: {size: row["count"] for size, row in rows.items()} for name, rows in summary["summary"].items()}
    times = [row["total_latency_ms"] for rows in summary["summary"].values() for row in rows.values()]
    return {**result, "counts": counts, "slowest": max(times), "straggler": summary["straggler_analysis"] is not None}


def again() -> dict[str, Any]:
    """Everything ends, and starts again."""
    deepspeed.comm.destroy_process_group()
    ended = not deepspeed.comm.is_initialized()
    start()
    return {"ended": ended, **zero(1)}


def start() -> None:
    """deepspeed.init_distributed as a user of HOW calls it."""
    deepspeed.init_distributed(dist_backend={"gloo": "gloo", "mcr": "mcr"}.get(HOW), verbose=False)


def measured(case: str) -> dict[str, Any]:
    """The case's result, the library that carried it, and its time."""
    begin = time.monotonic()
    counting.torch_calls.clear()
    mcr_dl.reset_log()
    functions = {"moe": moe, "pipeline": pipeline, "logger": logger, "again": again, "direct": direct}
    result = functions[case]() if case in functions else zero(int(case.removeprefix("zero")))
    result["torch"] = dict(counting.torch_calls)
    result["ours"] = counting.ours()
    result["seconds"] = time.monotonic() - begin
    return result


def direct() -> dict[str, Any]:
    """Every function of deepspeed.comm, with its result checked."""
    import deepspeed_calls

    return {"done": deepspeed_calls.check_all()}


if HOW == "gloo":  # its own kernel, used only for inference, would compile for minutes
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
if HOW == "install":
    mcr_dl.deepspeed.install(os.environ.get("INSTALL_BACKENDS"))
counting.watch_torch()
counting.log_ours()
start()
cdb = deepspeed.comm.comm.cdb
found = {"backend": cdb.name, "attributes": sorted(vars(cdb)), **{case: measured(case) for case in CASES}}
(FOLDER / f"{dist.get_rank()}.json").write_text(json.dumps(found))
dist.destroy_process_group()
