# SPDX-License-Identifier: Apache-2.0
"""The ranks of simulated.py: native calls alone, and whole calls among them."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import mcr_dl
import script
from mcr_dl import _C

Call = Callable[[], Any]
CallRow = tuple[str, str, int]  # kind, name, bytes
PartRow = tuple[str, str, int, int]  # operation, backend, bytes; bytes of the whole call
TaskRow = tuple[str, str, str, int, int]  # kind, element type, codec, bytes; bytes of the whole call


def _part(op: str, backend: str, nbytes: int) -> Call:
    """A native call in the form that schedules issue: started, and polled by the waiting thread."""
    size = mcr_dl.get_world_size()
    if op == "all_reduce":
        tensor = torch.zeros(nbytes // 4)
        return lambda: mcr_dl.all_reduce(tensor, backend=backend, async_op=True).wait()
    each = torch.zeros(nbytes // size, dtype=torch.uint8)
    everyone = torch.zeros(nbytes // size * size, dtype=torch.uint8)
    if op == "all_gather":
        return lambda: mcr_dl.all_gather_into_tensor(everyone, each, backend=backend, async_op=True).wait()
    if op == "all_to_all":
        other = torch.zeros_like(everyone)
        return lambda: mcr_dl.all_to_all_single(everyone, other, backend=backend, async_op=True).wait()
    return _exchange(backend, torch.zeros(nbytes, dtype=torch.uint8))


def _exchange(backend: str, tensor: torch.Tensor) -> Call:
    """Ranks 0 and 1 send to each other at the same time, as emulated operations do."""
    other = torch.zeros_like(tensor)

    def both() -> None:
        rank = mcr_dl.get_rank()
        if rank < 2:
            works = [mcr_dl.irecv(other, 1 - rank, backend=backend), mcr_dl.isend(tensor, 1 - rank, backend=backend)]
            for work in works:
                work.wait()

    return both


def _whole(kind: str, name: str, nbytes: int) -> Call:
    size = mcr_dl.get_world_size()
    if kind == "striped":
        tensor = torch.zeros(nbytes // 4)
        return lambda: mcr_dl.all_reduce(tensor, backend=name)
    if kind == "compressed":
        backend, codec = name.split("|")
        tensor = torch.zeros(nbytes // 4)
        return lambda: mcr_dl.all_reduce(tensor, backend=backend, codec=codec)
    op, backend = name.split(" on ")
    if op == "all_reduce":
        half = torch.zeros(nbytes // 2, dtype=torch.bfloat16)
        return lambda: mcr_dl.all_reduce(half, mcr_dl.ReduceOp.MAX, backend=backend)
    each, everyone, counts = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4 * size), [nbytes // 4] * size
    if op == "all_gather":
        return lambda: mcr_dl.all_gatherv(everyone, each, counts, backend=backend)
    return lambda: mcr_dl.reduce_scatterv(each, everyone, counts, backend=backend)


class _Way:
    """One call and its samples on this rank: wall and processor seconds of one call."""

    def __init__(self, call: Call, nbytes: int) -> None:
        self.call = call
        self.repeats = max(1, min(10, (2 << 20) // max(nbytes, 1)))
        self.wall: list[float] = []
        self.processor: list[float] = []

    def sample(self, keep: bool) -> None:
        mcr_dl.barrier(backend="gloo")
        start, used = time.perf_counter(), time.process_time()
        for _ in range(self.repeats):
            self.call()
        wall, processor = time.perf_counter() - start, time.process_time() - used
        if keep:
            self.wall.append(wall / self.repeats)
            self.processor.append(processor / self.repeats)


class _Task(_Way):
    """A task of the host, which all ranks do at the same time."""

    def __init__(self, kind: str, dtype: str, codec: str, nbytes: int) -> None:
        count = max(1, nbytes // getattr(torch, dtype).itemsize)
        super().__init__(lambda: _C.time_task(kind, count, dtype, codec, 3), nbytes)

    def sample(self, keep: bool) -> None:
        mcr_dl.barrier(backend="gloo")
        seconds = statistics.median(self.call()) / 1e9
        if keep:
            self.wall.append(seconds)
            self.processor.append(seconds)


def measure(
    parts: list[PartRow], tasks: list[TaskRow], wholes: list[CallRow], rounds: int, backends: list[str], output: str
) -> None:
    """The measurement on each rank: all ways of one size in turn, in another order each round."""
    mcr_dl.init_process_group(backends, passes=["compress"])
    found: dict[str, Any] = {}
    for nbytes in sorted({row[-1] for row in wholes}):
        ways = {json.dumps(row[:-1]): _Way(_part(*row[:-1]), row[2]) for row in parts if row[-1] == nbytes}
        ways.update({json.dumps(row[:-1]): _Task(*row[:-1]) for row in tasks if row[-1] == nbytes})
        ways.update({json.dumps(row): _Way(_whole(*row), nbytes) for row in wholes if row[-1] == nbytes})
        order = random.Random(1)
        for turn in range(rounds + 1):
            for name in order.sample(sorted(ways), len(ways)):
                ways[name].sample(turn > 0)
        mine = {name: [way.wall, way.processor] for name, way in ways.items()}
        answers: list[Any] = [None] * mcr_dl.get_world_size()
        mcr_dl.all_gather_object(answers, mine)
        for name in ways:
            taking = range(2) if '"send"' in name else range(len(answers))
            slowest = [max(answers[rank][name][0][turn] for rank in taking) for turn in range(rounds)]
            share = [sum(answers[rank][name][1]) / sum(answers[rank][name][0]) for rank in taking]
            found[name] = {
                "ns": round(statistics.median(slowest) * 1e9),
                "least": round(min(slowest) * 1e9),
                "cores": statistics.median(share),
            }
    script.write_samples(output, found)
    mcr_dl.finalize()
