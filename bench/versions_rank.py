# SPDX-License-Identifier: Apache-2.0
"""One rank of versions.py: times the calls and prints the medians. It uses only features of every version of mcr_dl."""

from __future__ import annotations

import json
import os
import statistics
import sys
import timeit
from collections.abc import Callable

import torch
import torch.distributed

import mcr_dl

KIB = 1024
STRIPED = "gloo+mpi"  # the spelling of stripe(gloo,mpi) that every version reads


def floats(nbytes: int) -> torch.Tensor:
    """A tensor of that many bytes."""
    return torch.ones(nbytes // 4)


def calls() -> dict[str, Callable[[], object]]:
    """The calls by name, as all ranks make them."""
    compressing, fusing, idle = mcr_dl.new_group(), mcr_dl.new_group(), mcr_dl.new_group(backend="null")
    mcr_dl.set_passes(["compress"], compressing)
    mcr_dl.set_passes(["fuse"], fusing)
    tiny, small, middle, large, huge = (floats(size) for size in (8, KIB, 64 * KIB, 1024 * KIB, 16 * 1024 * KIB))
    pieces = [floats(64) for _ in range(16)]
    outputs, inputs = [floats(64 * KIB) for _ in range(2)], [floats(64 * KIB) for _ in range(2)]

    def fused() -> None:
        for work in [mcr_dl.all_reduce(piece, group=fusing, backend="mpi", async_op=True) for piece in pieces]:
            work.wait()

    def compressed(tensor: torch.Tensor) -> Callable[[], object]:
        return lambda: mcr_dl.all_reduce(tensor, group=compressing, backend="mpi", codec="bf16", async_op=True).wait()

    named = mcr_dl.all_reduce
    return {
        "null: blocking": lambda: named(tiny, group=idle),
        "null: asynchronous + wait": lambda: named(tiny, group=idle, async_op=True).wait(),
        "mpi: blocking, 8 B": lambda: named(tiny, backend="mpi"),
        "mpi: blocking, 1 KiB": lambda: named(small, backend="mpi"),
        "mpi: asynchronous + wait, 8 B": lambda: named(tiny, backend="mpi", async_op=True).wait(),
        "gloo: emulated all_to_all, 64 KiB blocks": lambda: mcr_dl.all_to_all(outputs, inputs, backend="gloo"),
        "mpi: compressed (bf16), 1 KiB": compressed(small),
        "mpi: compressed (bf16), 64 KiB": compressed(middle),
        "mpi: compressed (bf16), 1 MiB": compressed(large),
        "stripe(gloo,mpi): 1 MiB": lambda: named(large, backend=STRIPED),
        "mpi: 16 fused calls of 64 B": fused,
        "torch: blocking, 8 B": lambda: torch.distributed.all_reduce(tiny),
        "torch: broadcast, 16 MiB": lambda: torch.distributed.broadcast(huge, 0),
        "mpi: broadcast, 16 MiB": lambda: mcr_dl.broadcast(huge, 0, backend="mpi"),
    }


def measure(seconds: float) -> dict[str, float]:
    """Median microseconds per call of each way, over 7 batches that together take about ``seconds``."""
    taken: dict[str, float] = {}
    for name, call in calls().items():
        mcr_dl.barrier(backend="mpi")
        once = torch.tensor([min(timeit.repeat(call, number=3, repeat=3)) / 3])
        mcr_dl.all_reduce(once, op=mcr_dl.ReduceOp.MAX, backend="mpi")  # all ranks make equally many calls
        number = max(1, int(seconds / 7 / float(once)))
        batches = torch.tensor(timeit.repeat(call, number=number, repeat=7), dtype=torch.float64)
        mcr_dl.all_reduce(batches, op=mcr_dl.ReduceOp.MAX, backend="mpi")  # a broadcast's root leaves it first
        taken[name] = statistics.median(batches.tolist()) / number * 1e6
    return taken


if __name__ == "__main__":
    mcr_dl.init_process_group(["mpi", "gloo", STRIPED, "null"])
    result = measure(float(sys.argv[1]))
    if os.environ["RANK"] == "0":
        print(json.dumps(result))
    mcr_dl.destroy_process_group()
