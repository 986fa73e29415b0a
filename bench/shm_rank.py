# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/shm.py: calls of every candidate in turns."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import mcr_dl
from mcr_dl.bench.ranks import bind

BACKENDS = ("shm", "mpi", "gloo")
OPERATIONS = ("all_reduce", "broadcast", "all_gather", "all_to_all", "barrier")
SIZES = tuple(4**power for power in range(1, 13))  # 4 B to 16 MiB
MEMCPY = "memcpy"


def _calls(operation: str, nbytes: int) -> Callable[..., Any]:
    """The call of this operation; ``nbytes`` are those of the tensor, or of one rank's input."""
    size = mcr_dl.get_world_size()
    x = torch.zeros(max(nbytes // 4, 1))
    if operation == "all_reduce":
        return lambda **how: mcr_dl.all_reduce(x, **how)
    if operation == "broadcast":
        return lambda **how: mcr_dl.broadcast(x, 0, **how)
    if operation == "barrier":
        return mcr_dl.barrier
    if operation == "all_gather":
        y = torch.zeros(x.numel() * size)
        return lambda **how: mcr_dl.all_gather_into_tensor(y, x, **how)
    parts = torch.zeros(max(nbytes // 4 // size, 1) * size)
    output = torch.zeros_like(parts)
    return lambda **how: mcr_dl.all_to_all_single(output, parts, **how)


def _ways(operation: str, nbytes: int, candidates: list[str]) -> dict[str, Callable[[], Any]]:
    call = _calls(operation, nbytes)
    ways: dict[str, Callable[[], Any]] = {}
    for name in candidates:
        ways[name] = lambda name=name: call(backend=name)
    ways["shm async"] = lambda: call(backend="shm", async_op=True).wait()
    source, target = (torch.zeros(max(nbytes // 4, 1)) for _ in range(2))
    ways[MEMCPY] = lambda: target.copy_(source)
    return ways


def _measure(ways: dict[str, Callable[[], Any]], budget: float) -> dict[str, list[float]]:
    """Rounds in which each way makes the same number of calls; rank 0 decides when there are enough."""
    turns: dict[str, int] = {}
    plan = torch.zeros(len(ways), dtype=torch.int64)
    for index, way in enumerate(ways.values()):
        way()
        begin = time.perf_counter()
        way()
        plan[index] = max(1, min(500, int(budget / 20 / max(time.perf_counter() - begin, 1e-7))))
    mcr_dl.broadcast(plan, 0, backend="mpi")
    turns = dict(zip(ways, plan.tolist(), strict=True))
    times: dict[str, list[float]] = {name: [] for name in ways}
    more = torch.ones(1)
    begin = time.perf_counter()
    while more.item():
        for name, way in ways.items():
            mcr_dl.barrier(backend="mpi")
            before = time.perf_counter()
            for _ in range(turns[name]):
                way()
            times[name].append((time.perf_counter() - before) / turns[name] * 1e6)
        rounds = len(times[MEMCPY])
        more.fill_(rounds < 3 or (rounds < 30 and time.perf_counter() - begin < budget * len(ways)))
        mcr_dl.broadcast(more, 0, backend="mpi")
    return times


def measure(operations: list[str], sizes: list[int], budget: float, output: str) -> None:
    """All points; rank 0 writes the samples, in µs."""
    mcr_dl.init_process_group(list(BACKENDS), tuning_table="none")
    bind()
    candidates = [*BACKENDS, "mpi:p2p"]
    try:
        mcr_dl.barrier(backend="mpi:p2p")
    except mcr_dl.Error:  # MPICH without its shared-memory algorithms has no variants
        candidates.remove("mpi:p2p")
    found = []
    for operation in operations:
        for nbytes in sizes if operation != "barrier" else [0]:
            times = _measure(_ways(operation, nbytes, candidates), budget)
            found.append({"operation": operation, "nbytes": nbytes, "times": times})
    if mcr_dl.get_rank() == 0:
        Path(output).write_text(json.dumps({"ranks": mcr_dl.get_world_size(), "points": found}))
    mcr_dl.finalize()
