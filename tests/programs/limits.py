# SPDX-License-Identifier: Apache-2.0
"""Jobs of two ranks whose calls reach limits, one function each: limits.py NAME [ARGUMENTS...]."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist

import mcr_dl as dist

LIMIT = timedelta(seconds=1)
LONG = timedelta(seconds=60)


def waits(backend: str, module: str) -> None:
    """Rank 1 is late: a thread waits for longer than the call's timeout, another one does not."""
    dist.init_process_group(backend, timeout=LONG)
    group = dist.new_group(timeout=LIMIT)
    calls: Any = torch_dist if module == "torch" else dist
    x, y = torch.ones(4), torch.ones(5)
    late = dist.get_rank() == 1
    if late:
        dist.barrier(async_op=True).wait()
    waited_for = [calls.all_reduce(each, group=group, async_op=True) for each in (x, y)]
    patient = threading.Thread(target=waited_for[0].wait, args=(LONG,))
    patient.start()
    try:
        waited_for[1].wait()
    except RuntimeError as error:
        print("RAISED", type(error).__name__, error, flush=True)
    if not late:
        dist.barrier(async_op=True).wait()
    patient.join()
    waited_for[0].wait()
    assert x.eq(2).all(), x
    print("DONE", flush=True)


def ends(backend: str, chain: str) -> None:
    """Groups end with a pending call: the other rank joins one call late, and never the other one."""
    dist.init_process_group(backend, timeout=LONG)
    rank = dist.get_rank()
    joined, not_joined = dist.new_group(), dist.new_group()
    for group in (joined, not_joined):
        dist.set_passes(chain.split(), group)
    x, y = torch.ones(4), torch.ones(5)
    pending = dist.all_reduce(y, group=not_joined, async_op=True) if rank == 0 else None
    work = dist.all_reduce(x, group=joined, async_op=True) if rank == 0 else None
    dist.barrier(async_op=True).wait()
    if work is None:
        work = dist.all_reduce(x, group=joined, async_op=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.destroy_process_group(joined)
        assert work.is_success()
        assert x.eq(2).all(), x
        assert not caught, caught
        dist.destroy_process_group(not_joined)
    print("WARNED", [str(each.message) for each in caught], flush=True)
    if pending is not None:
        try:
            pending.wait()
        except dist.NotInitializedError as error:
            print("RAISED", error, flush=True)
    for group in (joined, not_joined):
        try:
            dist.destroy_process_group(group)
        except dist.NotInitializedError:
            print("ENDED", flush=True)
    dist.barrier(async_op=True).wait()


FUNCTIONS: dict[str, Callable[..., None]] = {each.__name__: each for each in (waits, ends)}

if __name__ == "__main__":
    FUNCTIONS[sys.argv[1]](*sys.argv[2:])
