# SPDX-License-Identifier: Apache-2.0
"""Rank 2 is lost; the others abort a group and destroy torch's groups: aborting.py default|new FILE.

FILE is for torch, which starts again with the ranks that are left.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import mcr_dl

LIMIT = timedelta(seconds=30)


def main(which: str, file: str) -> None:
    """One rank of three."""
    mcr_dl.init_process_group(["mpi", "gloo"], timeout=LIMIT)
    group = dist.group.WORLD if which == "default" else dist.new_group(backend="mcr")
    assert group is not None
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1), group=group)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        mcr_dl.all_reduce(torch.ones(1), group=group, async_op=True).wait()
    except mcr_dl.PeerLostError:
        print("lost", flush=True)
    for _ in range(2):
        group.abort()
    dist.destroy_process_group()
    assert not dist.is_initialized()
    assert not mcr_dl.is_initialized()
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=LIMIT)
    x = torch.ones(1)
    dist.all_reduce(x)
    print("again", x.item(), flush=True)
    os._exit(0)  # the end of MPI would wait for rank 2


if __name__ == "__main__":
    main(*sys.argv[1:])
