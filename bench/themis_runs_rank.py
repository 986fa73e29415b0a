# SPDX-License-Identifier: Apache-2.0
"""One rank of themis_runs.py: calls of every candidate in turns; rank 0 writes the medians and the plans."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import mcr_dl
import script
from mcr_dl import _C
from mcr_dl.runtime import state

PLANNED, FIXED = "themis", "baseline"


def _topology(sizes: list[int]) -> None:
    """Name a topology of these sizes, outermost first, before the job starts."""
    rows = [{"name": f"level-{index}", "size": size} for index, size in enumerate(sizes)]
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump({"format": "mcr-dl topology", "version": 1, "dimensions": rows}, file)
    os.environ["MCR_DL_TOPOLOGY"] = file.name


def _call(operation: str, nbytes: int) -> Callable[[str], object]:
    """A call on a candidate; ``nbytes`` is the whole data of a rank."""
    size = mcr_dl.get_world_size()
    whole = torch.ones(nbytes // 4 // size * size)
    part = torch.ones(whole.numel() // size)
    if operation == "all_reduce":
        return lambda name: mcr_dl.all_reduce(whole, backend=name)
    if operation == "reduce_scatter":
        return lambda name: mcr_dl.reduce_scatter_tensor(part, whole, backend=name)
    return lambda name: mcr_dl.all_gather_into_tensor(whole, part, backend=name)


def _medians(names: dict[str, str], call: Callable[[str], object], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {key: [] for key in names}
    for turn in range(rounds + 1):
        for key in [*names][turn % len(names) :] + [*names][: turn % len(names)]:
            mcr_dl.barrier(backend="mpi")
            begin = time.perf_counter()
            call(names[key])
            times[key].append((time.perf_counter() - begin) * 1e3)
    slowest = torch.tensor([statistics.median(each[1:]) for each in times.values()])
    mcr_dl.all_reduce(slowest, mcr_dl.ReduceOp.MAX, backend="mpi")
    return dict(zip(names, slowest.tolist(), strict=True))


def measure(sizes: list[int], parts: list[str], points: list[tuple[str, int]], rounds: int, output: str) -> None:
    """All points on all candidates; times in ms."""
    _topology(sizes)
    inside = ",".join(parts)
    names = {"gloo": "gloo", "mpi": "mpi", "hier": f"hier({inside})"}
    names |= {PLANNED: f"themis({inside})", FIXED: f"themis({inside},{FIXED})"}
    mcr_dl.init_process_group(["gloo", "mpi", names["hier"], names[PLANNED]], tuning_table="none")
    network = state.current().of("default").networks[names[PLANNED]]
    rows: list[dict[str, Any]] = []
    for operation, nbytes in points:
        found = _medians(names, _call(operation, nbytes), rounds)
        plans = {
            key: plan
            for key in (PLANNED, FIXED)
            if (plan := _C.themis_plan([*network], operation, nbytes, key == FIXED))
        }
        rows.append(
            {
                "operation": operation,
                "nbytes": nbytes,
                "ms": {name: round(value, 3) for name, value in found.items()},
                "plan_ms": {key: round(plan.makespan / 1e9, 3) for key, plan in plans.items()},
                "policy": plans[PLANNED].policy,
                "chunks": plans[PLANNED].chunks,
            }
        )
    rates = [
        {"size": each.size, "mbit": each.bandwidth * 8 // 10**6, "latency_us": each.latency // 10**6}
        for each in network
    ]
    script.write_samples(output, {"measured": rates, "points": rows})
    mcr_dl.destroy_process_group()


if __name__ == "__main__":
    measure(*json.loads(sys.argv[1]))
