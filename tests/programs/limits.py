# SPDX-License-Identifier: Apache-2.0
"""Jobs of two ranks whose calls reach limits, one function each: limits.py NAME [ARGUMENTS...]."""

from __future__ import annotations

import sys
import threading
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


FUNCTIONS: dict[str, Callable[..., None]] = {each.__name__: each for each in (waits,)}

if __name__ == "__main__":
    FUNCTIONS[sys.argv[1]](*sys.argv[2:])
