# SPDX-License-Identifier: Apache-2.0
"""Makes calls that the tuning table does not cover, in the way that the argument names, and prints what comes of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as torch_dist

import mcr_dl
from mcr_dl.measure.cases import Case, Prepared
from mcr_dl.measure.ended_trials import end_trials
from mcr_dl.measure.timing import TorchControl

SMALL, LARGE = 64, 2 << 20  # bytes


def _sum(reduce: Callable[[torch.Tensor], Any], nbytes: int, size: int, times: int, place: int) -> None:
    """Calls of one size that are waited for at once."""
    for index in range(times):
        values = torch.full((nbytes // 4,), place + index, dtype=torch.int32)
        work = reduce(values)
        if work is not None:
            work.wait()
        assert int(values[-1]) == size * index + size * (size - 1) // 2


def _explained(nbytes: int, async_op: bool, group: Any = None) -> dict[str, Any]:
    found = mcr_dl.explain("all_reduce", nbytes, dtype=torch.int32, async_op=async_op, group=group)
    return {"candidate": found.candidate, "text": str(found)}


def _all_reduce(nbytes: int, times: int, *, async_op: bool, group: Any = None) -> dict[str, Any]:
    size = mcr_dl.get_world_size(group)
    rank = mcr_dl.get_rank(group)
    _sum(lambda values: mcr_dl.all_reduce(values, async_op=async_op, group=group), nbytes, size, times, rank)
    return _explained(nbytes, async_op, group)


def blocking() -> dict[str, Any]:
    """Blocking calls, then the same with refinement on, which takes the results over."""
    found = _all_reduce(SMALL, 5000, async_op=False)
    mcr_dl.refine(0.1)
    return {**found, "later": _all_reduce(SMALL, 100, async_op=False)["text"]}


def many() -> dict[str, Any]:
    """Blocking calls until the trials are over."""
    return _all_reduce(SMALL, 5000, async_op=False)


def ended() -> dict[str, Any]:
    """As many calls as the trials of mcr-bench's need; none of a send, or where not all ranks know the size."""
    world, control = mcr_dl._C.world(), TorchControl()
    assert world is not None
    for case in (Case("all_reduce", SMALL, "int32"), Case("send", SMALL, "int32"), Case("all_to_allv", SMALL, "int32")):
        end_trials(Prepared(case, "auto", world), control)
    return _explained(SMALL, False)


def few() -> dict[str, Any]:
    """Fewer calls than the trials need."""
    return _all_reduce(SMALL, 10, async_op=False)


def asynchronous() -> dict[str, Any]:
    """Asynchronous calls, which have trials of their own."""
    found = _all_reduce(SMALL, 8000, async_op=True)
    return {**found, "later": _explained(SMALL, False)["text"]}


def through_torch() -> dict[str, Any]:
    """Asynchronous calls of torch.distributed."""
    _sum(lambda values: torch_dist.all_reduce(values, async_op=True), LARGE, torch_dist.get_world_size(), 200, RANK)
    return _explained(LARGE, True)


def subgroup() -> dict[str, Any]:
    """A group whose shape the table does not have."""
    group = mcr_dl.new_group([0, 1])
    found = {}
    if RANK < 2:
        found = _all_reduce(SMALL, 5000, async_op=False, group=group)
        mcr_dl.refine(0.1, group)
        found["later"] = _all_reduce(SMALL, 100, async_op=False, group=group)["text"]
    mcr_dl.barrier()
    return found


def measured_subgroup() -> dict[str, Any]:
    """Calls in such a group that the table has for the shape of the job."""
    group, values = mcr_dl.new_group([0, 1]), torch.zeros(SMALL // 4)
    for _ in range(5000 if RANK < 2 else 0):
        mcr_dl.broadcast(values, 0, group=group)
    mcr_dl.barrier()
    if RANK > 1:
        return {}
    found = mcr_dl.explain("broadcast", SMALL, group=group)
    return {"candidate": found.candidate, "text": str(found)}


def logged() -> dict[str, Any]:
    """Calls that go through passes are not tried."""
    mcr_dl.set_passes(["log"])
    return _all_reduce(SMALL, 5000, async_op=False)


def ahead() -> dict[str, Any]:
    """Rank 1 makes none of its calls before rank 0 has made all of its own, which need an agreement on the way."""
    token = torch.zeros(1)
    if RANK == 1:
        mcr_dl.recv(token, 0)
    values = [torch.full((LARGE // 4,), RANK, dtype=torch.int32) for _ in range(200)]
    works = [mcr_dl.all_reduce(each, async_op=True) for each in values]
    if RANK == 0:
        mcr_dl.send(token, 1)
    for work in works:
        work.wait()
    assert all(int(each[-1]) == 1 for each in values)
    return _explained(LARGE, True)


def left_alone() -> dict[str, Any]:
    """Rank 1 ends while rank 0 waits for an agreement, or for its calls."""
    if RANK == 1:
        os._exit(0)
    try:
        works = [mcr_dl.all_reduce(torch.zeros(LARGE // 4), async_op=True) for _ in range(100)]
        for work in works:
            work.wait()
    except mcr_dl.PeerLostError as error:
        print(f"facts 0 {json.dumps({'text': str(error)})}", flush=True)
        os._exit(0)
    return {"text": "no error"}


if sys.argv[1] == "through_torch":
    torch_dist.init_process_group("mcr")
else:
    mcr_dl.init_process_group(["gloo", "shm"])
RANK = torch_dist.get_rank()
facts = globals()[sys.argv[1]]()
sys.stdout.write(f"facts {RANK} {json.dumps(facts)}\n")  # one write, as ranks share the output
mcr_dl.destroy_process_group()
