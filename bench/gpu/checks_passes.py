# SPDX-License-Identifier: Apache-2.0
"""Checks of passes, `auto` and schedulers on device tensors; see checks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import mcr_dl
from gpu.checks import LATE_MS, Setting, check, same, same_parts

_SMALL = 251  # elements, so that calls are joined


def _calls(at: Setting, group: Any) -> None:
    """Small asynchronous all_reduces behind a late producer, and a large one; all waited for in reverse."""
    at.device.sleep(LATE_MS / 4)
    tensors = [at.full(_SMALL + turn, (at.rank + 1.0) * (turn + 1)) for turn in range(12)]
    tensors.append(at.full(1 << 20, (at.rank + 1.0) * (len(tensors) + 1)))
    works = [mcr_dl.all_reduce(each, group=group, backend=at.backend, async_op=True) for each in tensors]
    for work in reversed(works):
        work.wait()
    results = [each.clone() for each in tensors]
    for turn, each in enumerate(results):
        same(each, at.total * (turn + 1), f"all_reduce number {turn}")


@check
def passes(at: Setting) -> dict[str, Any]:
    """Fused, logged and compressed groups compute the same: codecs leave device tensors as they are."""
    chains: list[list[Any]] = [["fuse"], ["log"], ["log", "fuse"]]
    if at.device.real:  # host tensors would be compressed
        chains.append([mcr_dl.passes.Compress("bf16")])
    seen = {}
    for chain in chains:
        group = mcr_dl.new_group(group_desc="passes")
        mcr_dl.set_passes(chain, group)
        for _ in range(3):
            _calls(at, group)
        at.device.synchronize()
        seen[", ".join(each if isinstance(each, str) else type(each).__name__ for each in chain)] = "ok"
        mcr_dl.destroy_process_group(group)
    return seen


@check
def auto(at: Setting) -> dict[str, Any]:
    """`auto` sends calls on device tensors to a backend that works on the device, and their values are right."""
    chosen = {}
    for count in (4, 1001, 1 << 20):
        x, target = at.full(count, at.rank + 1.0), at.full(count * at.ranks, -1.0)
        mcr_dl.all_reduce(x, backend="auto")
        same(x, at.total, f"all_reduce of {count} elements on auto")
        mcr_dl.all_gather_single(target, at.full(count, at.rank + 1.0), backend="auto")
        same_parts(at, target, lambda rank: rank + 1.0, f"all_gather of {count} elements on auto")
        chosen[str(count)] = mcr_dl.explain("all_reduce", x.nbytes, device=at.device.kind).candidate
    return chosen


@check
def syndicate(at: Setting) -> None:
    """Calls of a Syndicate on device tensors are left as they are, and compute the same."""
    at.need_real()  # calls on host tensors would be planned
    with mcr_dl.schedule.Syndicate():
        for _ in range(12):
            _calls(at, mcr_dl.group.WORLD)


@check
def byte_scheduler(at: Setting) -> dict[str, Any]:
    """ByteScheduler refuses a model on the device with an error, and the group stays usable."""
    at.need_real()
    model = nn.Linear(64, 64).to(at.device.kind)
    try:
        mcr_dl.schedule.ByteScheduler(model, torch.optim.SGD(model.parameters(), lr=0.1))
    except mcr_dl.McrError as error:
        x = at.full(4, at.rank + 1.0)
        mcr_dl.all_reduce(at.backend, x)
        same(x, at.total, "all_reduce after the refusal")
        return {"refused": str(error)}
    raise AssertionError("ByteScheduler took a model on the device")
