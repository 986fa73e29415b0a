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
# Operation, backend, bytes; bytes that the whole call's host tasks touch before it, 0: none comes before; bytes of the
# whole call.
PartRow = tuple[str, str, int, int, int]
# Kind, element type, codec, bytes; bytes that the whole call's host tasks touch; bytes of the whole call.
TaskRow = tuple[str, str, str, int, int, int]


def _part(op: str, backend: str, nbytes: int) -> tuple[torch.Tensor, Call]:
    """A native call in the form that schedules issue, started and polled by the waiting thread; and its input."""
    size = mcr_dl.get_world_size()
    if op == "all_reduce":
        tensor = torch.zeros(nbytes // 4)
        return tensor, lambda: mcr_dl.all_reduce(tensor, backend=backend, async_op=True).wait()
    each = torch.zeros(nbytes // size, dtype=torch.uint8)
    everyone = torch.zeros(nbytes // size * size, dtype=torch.uint8)
    if op == "all_gather":
        return each, lambda: mcr_dl.all_gather_into_tensor(everyone, each, backend=backend, async_op=True).wait()
    if op == "all_to_all":
        other = torch.zeros_like(everyone)
        return other, lambda: mcr_dl.all_to_all_single(everyone, other, backend=backend, async_op=True).wait()
    tensor = torch.zeros(nbytes, dtype=torch.uint8)
    return tensor, _exchange(backend, tensor)


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
    """One call and its repetitions on this rank: when each began and ended, and its processor seconds."""

    def __init__(self, call: Call, nbytes: int) -> None:
        self.call = call
        self.repeats = max(4, min(64, (8 << 20) // max(nbytes, 1)))
        self.times: list[tuple[float, float, float]] = []

    def prepare(self) -> None:
        """Before each repetition, outside its time."""

    def sample(self, keep: bool) -> None:
        mcr_dl.barrier(backend="gloo")
        found = []
        for _ in range(self.repeats):
            self.prepare()
            used, start = time.process_time(), time.perf_counter()
            self.call()
            found.append((start, time.perf_counter(), time.process_time() - used))
        if keep:
            self.times += found


class _Part(_Way):
    """A native call; its input is fresh from the core that computed it if a host task comes before it."""

    def __init__(self, op: str, backend: str, nbytes: int, before: int) -> None:
        self.input, call = _part(op, backend, nbytes)
        self.others = torch.zeros(before, dtype=torch.uint8)
        super().__init__(call, nbytes)

    def prepare(self) -> None:
        if len(self.others):
            self.others.add_(1)
            self.input.fill_(0)


class _Task(_Way):
    """A task of the host, which all ranks do at the same time."""

    def __init__(self, kind: str, dtype: str, codec: str, nbytes: int, between: int) -> None:
        count = max(1, nbytes // getattr(torch, dtype).itemsize)
        super().__init__(lambda: _C.time_task(kind, count, dtype, codec, self.repeats, between), nbytes)

    def sample(self, keep: bool) -> None:
        mcr_dl.barrier(backend="gloo")
        found = [nanoseconds / 1e9 for nanoseconds in self.call()]
        if keep:
            self.times += [(0.0, seconds, seconds) for seconds in found]


def _summary(ranks: list[list[tuple[float, float, float]]], rounds: int) -> dict[str, Any]:
    """A call begins when the last rank begins it, and ends when the last one has ended it. Of means over each round."""
    taken = [
        max(end for _, end, _ in repetition) - max(start for start, _, _ in repetition)
        for repetition in zip(*ranks, strict=True)
    ]
    each = len(taken) // rounds
    means = [statistics.mean(taken[turn * each : (turn + 1) * each]) for turn in range(rounds)]
    shares = [sum(used for _, _, used in times) / sum(end - start for start, end, _ in times) for times in ranks]
    return {
        "ns": round(statistics.median(means) * 1e9),
        "least": round(min(means) * 1e9),
        "cores": statistics.median(shares),
    }


def measure(
    parts: list[PartRow], tasks: list[TaskRow], wholes: list[CallRow], rounds: int, backends: list[str], output: str
) -> None:
    """The measurement on each rank: all ways of one size in turn, in another order each round."""
    mcr_dl.init_process_group(backends, passes=["compress"])
    found: dict[str, Any] = {}
    for nbytes in sorted({row[-1] for row in wholes}):
        ways: dict[str, _Way] = {json.dumps(row[:-1]): _Part(*row[:-1]) for row in parts if row[-1] == nbytes}
        ways.update({json.dumps(row[:-1]): _Task(*row[:-1]) for row in tasks if row[-1] == nbytes})
        ways.update({json.dumps(row): _Way(_whole(*row), nbytes) for row in wholes if row[-1] == nbytes})
        order = random.Random(1)
        for turn in range(rounds + 1):
            for name in order.sample(sorted(ways), len(ways)):
                ways[name].sample(turn > 0)
        answers: list[Any] = [None] * mcr_dl.get_world_size()
        mcr_dl.all_gather_object(answers, {name: way.times for name, way in ways.items()})
        for name in ways:
            taking = answers[:2] if '"send"' in name else answers
            found[name] = _summary([answer[name] for answer in taking], rounds)
    script.write_samples(output, found)
    mcr_dl.finalize()
