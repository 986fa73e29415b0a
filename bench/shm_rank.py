# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/shm.py: calls of every candidate in turns."""

from __future__ import annotations

import json
import sys
import time
from timeit import Timer
from typing import Any

import torch

import mcr_dl
import script
from mcr_dl.bench.ranks import bind

OPERATIONS = ("all_reduce", "broadcast", "all_gather", "all_to_all", "barrier")
SIZES = tuple(4**power for power in range(1, 13))  # 4 B to 16 MiB
ASYNC, SHARED, MEMCPY = "shm async", "shm shared", "memcpy"

# The function of each operation, and its arguments.
_CALLS = {
    "all_reduce": ("all_reduce", "x"),
    "broadcast": ("broadcast", "x, 0"),
    "all_gather": ("all_gather_into_tensor", "gathered, x"),
    "all_to_all": ("all_to_all_single", "received, parts"),
    "barrier": ("barrier", ""),
}


def _timers(operation: str, nbytes: int, candidates: list[str]) -> dict[str, Timer]:
    """A loop over the call for each candidate; ``nbytes`` are those of the tensor, or of one rank's input."""
    size = mcr_dl.get_world_size()
    function, arguments = _CALLS[operation]
    x = torch.zeros(max(nbytes // 4, 1))
    parts = torch.zeros(max(nbytes // 4 // size, 1) * size)
    names: dict[str, Any] = {
        "call": getattr(mcr_dl, function),
        "x": x,
        "gathered": torch.zeros(x.numel() * size),
        "parts": parts,
        "received": torch.zeros_like(parts),
        "source": torch.zeros_like(x),
        "target": torch.zeros_like(x),
    }
    start = f"call({arguments}{', ' if arguments else ''}backend="
    shared = {**names, **{name: mcr_dl.empty_shared(names[name].shape).zero_() for name in ("x", "parts")}}
    timers = {name: Timer(f"{start}'{name}')", globals=names) for name in candidates}
    timers[SHARED] = Timer(f"{start}'shm')", globals=shared)
    timers[ASYNC] = Timer(f"{start}'shm', async_op=True).wait()", globals=names)
    timers[MEMCPY] = Timer("target.copy_(source)", globals=names)
    return timers


def _measure(timers: dict[str, Timer], budget: float) -> dict[str, list[float]]:
    """Rounds in which each candidate makes the same number of calls; rank 0 decides when there are enough."""
    plan = torch.zeros(len(timers), dtype=torch.int64)
    for index, timer in enumerate(timers.values()):
        timer.timeit(1)
        plan[index] = max(1, min(500, int(budget / 20 / max(timer.timeit(1), 1e-7))))
    mcr_dl.broadcast(plan, 0, backend="mpi")
    turns = dict(zip(timers, plan.tolist(), strict=True))
    times: dict[str, list[float]] = {name: [] for name in timers}
    more = torch.ones(1)
    begin = time.perf_counter()
    while more.item():
        rounds = len(times[MEMCPY])
        names = [*timers][rounds % len(timers) :] + [*timers][: rounds % len(timers)]  # the first finds cold caches
        for name in names:
            mcr_dl.barrier(backend="mpi")
            times[name].append(timers[name].timeit(turns[name]) / turns[name] * 1e6)
        rounds += 1
        more.fill_(rounds < 3 or (rounds < 30 and time.perf_counter() - begin < budget * len(timers)))
        mcr_dl.broadcast(more, 0, backend="mpi")
    return times


def measure(backends: list[str], operations: list[str], sizes: list[int], budget: float, output: str) -> None:
    """All points on all backends, with the variants of MPI; rank 0 writes the samples, in µs."""
    mcr_dl.init_process_group(backends, tuning_table="none")
    bind()
    candidates = [*backends, "mpi:p2p"]
    try:
        mcr_dl.barrier(backend="mpi:p2p")
    except mcr_dl.InvalidArgumentError:  # only MPICH with its shared-memory algorithms has variants
        candidates.remove("mpi:p2p")
    found = []
    for operation in operations:
        for nbytes in sizes if operation != "barrier" else [0]:
            times = _measure(_timers(operation, nbytes, candidates), budget)
            found.append({"operation": operation, "nbytes": nbytes, "times": times})
    script.write_samples(output, {"ranks": mcr_dl.get_world_size(), "points": found})
    mcr_dl.finalize()


if __name__ == "__main__":  # under a launcher of MPI
    measure(*json.loads(sys.argv[1]))
