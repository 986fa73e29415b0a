# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/dropin.py: the same calls through mcr_dl, through torch.distributed, and on torch's gloo."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import mcr_dl
import script
from mcr_dl.measure.ranks import bind

SIZES = [4 << power for power in range(0, 23, 2)]
BACKEND = "mpi"
OPERATIONS = ("all_reduce", "broadcast", "all_gather_single", "all_to_all_single")
_WARM_UP = 5


def _arguments(operation: str, nbytes: int) -> tuple[Any, ...]:
    """The arguments, equal for torch's function and mcr_dl's."""
    mine = torch.zeros(nbytes // 4)
    everyones = torch.zeros(nbytes // 4 * dist.get_world_size())
    return {
        "all_reduce": (mine,),
        "broadcast": (mine, 0),
        "all_gather_single": (everyones, mine),
        "all_to_all_single": (torch.zeros_like(everyones), everyones),
    }[operation]


def _time(call: Callable[[], Any], count: int) -> float:
    """Microseconds per call over ``count`` calls."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count * 1e6


def _count(call: Callable[[], Any], seconds: float) -> int:
    """The number of calls that fit into the time; equal on all ranks."""
    _time(call, _WARM_UP)
    count = torch.tensor([max(3, min(5000, int(seconds * 1e6 / _time(call, _WARM_UP))))])
    dist.all_reduce(count, dist.ReduceOp.MIN)
    return int(count)


def measure_all(sizes: list[int], rounds: int, seconds: float, output: str) -> None:
    """Microseconds of a call in each round, by operation, size and way, on the slowest rank."""
    mcr_dl.init_process_group([BACKEND, "null"])
    mine, null, gloo = (
        mcr_dl.new_group(backend=BACKEND),
        mcr_dl.new_group(backend="null"),
        dist.new_group(backend="gloo"),
    )
    any_form = dist.new_group(backend="mcr", pg_options=mcr_dl.Options([BACKEND], uniform=False))
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers the backend
    fake = dist.new_group(backend="fake")
    dist.barrier(gloo)
    bind()  # after gloo has made its threads, which stay free
    ways = {
        "ours": (mcr_dl, mine),
        "torch": (dist, mine),
        "torch, any form": (dist, any_form),
        "gloo": (dist, gloo),
        "ours, null": (mcr_dl, null),
        "torch, null": (dist, null),
        "torch, fake": (dist, fake),
    }
    times: dict[str, dict[int, dict[str, list[float]]]] = {}
    for operation in OPERATIONS:
        for nbytes in sizes:
            arguments = _arguments(operation, nbytes)
            calls = {
                way: partial(getattr(module, operation), *arguments, group=group)
                for way, (module, group) in ways.items()
            }
            counts = {way: _count(call, seconds) for way, call in calls.items()}
            point: dict[str, list[float]] = {way: [] for way in ways}
            for turn in range(rounds):
                for way in calls if turn % 2 else reversed(calls):
                    point[way].append(_time(calls[way], counts[way]))
            times.setdefault(operation, {})[nbytes] = script.of_slowest(point, BACKEND)
        if dist.get_rank() == 0:
            print(f"  {operation}", flush=True)
    script.write_samples(output, times)
    mcr_dl.finalize()
