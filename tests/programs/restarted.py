# SPDX-License-Identifier: Apache-2.0
"""A job that torchrun starts again: restarted.py BACKENDS LOSSES FOLDER.

BACKENDS is "mpi,gloo" or the like, or "torch", which initializes torch.distributed with the backend "mcr". LOSSES says,
for each life of the job, which rank is lost and how, as in "1:kill,0:raise": in the first life rank 1 is
killed, in the second one rank 0 raises. The state of the last complete step is in FOLDER.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

import mcr_dl as dist

STEPS, AT = 20, 5  # steps, and after how many of its own each life loses a rank


def lose(how: str) -> None:
    """End this process."""
    if how == "raise":
        raise ValueError("lost on purpose")
    if how == "exit":
        sys.exit(1)
    os.kill(os.getpid(), signal.SIGKILL)


def main(backends: str, losses: str, folder: str) -> None:
    """One life of one rank."""
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    loss = losses.split(",")[life] if life < len(losses.split(",")) else ""
    checkpoint = Path(folder, "checkpoint.pt")
    if backends == "torch":
        torch.distributed.init_process_group("mcr")
    else:
        dist.init_process_group(backends.split(",") if backends else None)
    rank, size = dist.get_rank(), dist.get_world_size()
    begin, total = torch.load(checkpoint) if checkpoint.exists() else (0, torch.zeros(3000))
    for step in range(begin, STEPS):
        if step == begin + AT and loss.startswith(f"{rank}:"):
            lose(loss.partition(":")[2])
        gradient = torch.full((3000,), float(rank + step))
        dist.all_reduce(gradient)
        total += gradient
        work = dist.all_gather_into_tensor(torch.empty(size), torch.tensor([float(rank)]), async_op=True)
        dist.barrier()
        work.wait()
        if rank == 0:
            torch.save((step + 1, total), checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").rename(checkpoint)
    want = sum(size * step + sum(range(size)) for step in range(STEPS))
    assert total.eq(want).all(), (life, total, want)
    dist.destroy_process_group()
    print(f"life {life}: rank {rank} of {size} has ended well, from step {begin}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
