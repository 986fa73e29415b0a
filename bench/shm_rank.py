# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/shm.py: calls of every candidate in turns."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from timeit import Timer
from typing import Any

import torch

import mcr_dl
import script
from mcr_dl.measure.ranks import bind

OPERATIONS = ("all_reduce", "broadcast", "all_gather", "all_to_all", "barrier")
SIZES = tuple(4**power for power in range(1, 13))  # 4 B to 16 MiB
ASYNC, SHARED, MEMCPY, COPIES, DEEPSPEED = "shm async", "shm shared", "memcpy", "copies", "deepspeed"
WARM_UP = 40  # calls, in which shm compares its ways to do large all_gathers and all_to_alls

# The function of each operation, and its arguments.
_CALLS = {
    "all_reduce": ("all_reduce", "x"),
    "broadcast": ("broadcast", "x, 0"),
    "all_gather": ("all_gather_into_tensor", "gathered, x"),
    "all_to_all": ("all_to_all_single", "received, parts"),
    "barrier": ("barrier", ""),
}


def _visible_memory() -> list[torch.Tensor]:
    """For each rank, memory of the largest size that all ranks map. It has no name, and goes with rank 0."""
    size, nbytes = mcr_dl.get_world_size(), max(SIZES)
    where: list[Any] = [None]
    if mcr_dl.get_rank() == 0:
        descriptor = os.memfd_create("copies")
        os.truncate(descriptor, nbytes * size)
        where = [f"/proc/{os.getpid()}/fd/{descriptor}"]
    mcr_dl.broadcast_object_list(where, 0)
    return list(torch.from_file(where[0], shared=True, size=nbytes * size // 4).chunk(size))


def _copies(operation: str, visible: list[torch.Tensor], names: dict[str, Any]) -> Callable[[], None] | None:
    """The copies between ranks that no algorithm of this operation avoids, from memory that all ranks see.

    For all_reduce they are those of a reduce_scatter and an all_gather, without the additions. The ranks do not wait
    for each other. None for parts below one element.
    """
    rank, size, count = mcr_dl.get_rank(), mcr_dl.get_world_size(), names["x"].numel()
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    if operation == "all_reduce":
        slices = [memory[:count].tensor_split(size) for memory in visible]
        for peer in range(size):
            if peer != rank:
                pairs += [(slices[rank][part], slices[peer][part]) for part in (rank, peer)]
    elif operation == "broadcast":
        pairs = [(names["target"], visible[0 if rank else 1][:count])]
    elif operation == "all_gather":
        pairs = [(names["gathered"].chunk(size)[peer], visible[peer][:count]) for peer in range(size)]
    elif operation == "all_to_all":
        parts = names["received"].chunk(size)
        pairs = [(parts[peer], visible[peer][: parts[0].numel() * size].chunk(size)[rank]) for peer in range(size)]
    if any(target.numel() == 0 for target, _ in pairs) or not pairs:
        return None

    def copy() -> None:
        for target, source in pairs:
            target.copy_(source)

    return copy


def _deepspeed() -> Any:
    """DeepSpeed's all_reduce in shared memory; None where DeepSpeed is not installed."""
    try:
        from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder
    except ImportError:
        return None
    os.environ["LOCAL_SIZE"] = str(mcr_dl.get_world_size())  # it serves ranks of one host alone
    ShareMemCommBuilder().load().initialize(mcr_dl.get_world_size(), mcr_dl.get_rank())
    mine = torch.full((5,), float(mcr_dl.get_rank() + 1))
    torch.ops.deepspeed.inference_all_reduce_(mine)
    expected = mcr_dl.get_world_size() * (mcr_dl.get_world_size() + 1) / 2
    if not torch.equal(mine, torch.full((5,), expected)):
        raise RuntimeError(f"DeepSpeed's all_reduce returned {mine.tolist()}, expected {expected}")
    for left in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{os.environ['MASTER_PORT']}_{mcr_dl.get_rank()}"):
        left.unlink()  # DeepSpeed does not; all ranks have mapped it by now
    return torch.ops.deepspeed.inference_all_reduce_


def _timers(
    operation: str, nbytes: int, candidates: list[str], visible: list[torch.Tensor], deepspeed: Any
) -> dict[str, Timer]:
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
    if (copies := _copies(operation, visible, names)) is not None:
        timers[COPIES] = Timer("copies()", globals={"copies": copies})
    if deepspeed is not None and operation == "all_reduce":
        timers[DEEPSPEED] = Timer("call(x)", globals={**names, "call": deepspeed})
    return timers


def _measure(timers: dict[str, Timer], budget: float) -> dict[str, list[float]]:
    """Rounds in which each candidate makes the same number of calls; rank 0 decides when there are enough."""
    plan = torch.zeros(len(timers), dtype=torch.int64)
    for index, timer in enumerate(timers.values()):
        timer.timeit(WARM_UP)
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
    return script.of_slowest(times, "mpi")


def measure(backends: list[str], operations: list[str], sizes: list[int], budget: float, output: str) -> None:
    """All points on all backends, with the variants of MPI; rank 0 writes the samples of the slowest rank, in µs."""
    mcr_dl.init_process_group(backends, tuning_table="none")
    bind()
    candidates = [*backends, "mpi:p2p"]
    try:
        mcr_dl.barrier(backend="mpi:p2p")
    except mcr_dl.InvalidArgumentError:  # only MPICH with its shared-memory algorithms has variants
        candidates.remove("mpi:p2p")
    visible = _visible_memory()
    deepspeed = _deepspeed() if "gloo" in backends else None  # not in Open MPI's job
    found = []
    for operation in operations:
        for nbytes in sizes if operation != "barrier" else [0]:
            times = _measure(_timers(operation, nbytes, candidates, visible, deepspeed), budget)
            found.append({"operation": operation, "nbytes": nbytes, "times": times})
    script.write_samples(output, {"ranks": mcr_dl.get_world_size(), "points": found})
    mcr_dl.finalize()


if __name__ == "__main__":  # under a launcher of MPI
    measure(*json.loads(sys.argv[1]))
