# SPDX-License-Identifier: Apache-2.0
"""Ranks that end at different times: apart.py [HOW].

One rank, 0 unless HOW needs another one, ends seconds after the others. These wait for it for half a second at most,
unless they must wait longer. HOW: ``mpi``, or ``gloo``, where MPI only tells the ranks where they meet.

``alone``: rank 0 makes a job of its own later, and rank 1 is late. ``pair``: ranks 0 and 1 do so together, and rank 2
is late. ``children``: the launcher's variables are removed, so that child programs can use MPI. ``mistake``: the next
start fails, as rank 1 gives a wrong argument. ``exit``: rank 1 ends with code 7, and rank 0 calls a collective.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as torch_dist

import mcr_dl as dist
from mcr_dl.runtime import exit_steps
from mcr_dl.watch import _watch


def without_variables() -> None:
    """Remove the launcher's variables, and make a group on MPI."""
    for name in [each for each in os.environ if each.startswith(("PMI", "OMPI_", "MPI_"))]:
        del os.environ[name]
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(3), group=group)


def meet_again(rank: int, size: int, store: torch_dist.Store) -> None:
    """Make a job of some ranks alone."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()


def start_wrongly(rank: int) -> None:
    """Fail to make a job."""
    try:
        dist.init_process_group("nonsense" if rank == 1 else "gloo")
    except dist.InvalidArgumentError:
        return
    raise AssertionError("a start with a wrong argument has ended well")


def main(how: str = "mpi") -> None:
    """One rank."""
    late = {"alone": 1, "pair": 2}.get(how, 0)
    dist.init_process_group("gloo" if how == "gloo" else "mpi")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(3))
    if how == "exit":
        if rank == 1:
            sys.exit(7)
        dist.all_reduce(torch.ones(3))
    if how == "children":
        without_variables()
    dist.destroy_process_group()
    if how == "alone" and rank == 0:
        meet_again(0, 1, torch_dist.HashStore())
    if how == "pair" and rank != late:
        exit_steps._LIMIT_SECONDS = 0.5
        meet_again(rank, 2, torch_dist.FileStore(str(Path("store").resolve()), 2))
    if how == "mistake":
        start_wrongly(rank)
    if rank == late:
        time.sleep(3)
    print(f"rank {rank} ends", flush=True)


_watch.FAREWELL = 0.5
main(*sys.argv[1:])
