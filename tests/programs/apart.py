# SPDX-License-Identifier: Apache-2.0
"""Ranks that end at different times: apart.py [HOW].

One rank, 0 unless HOW needs another one, ends seconds after the others. These wait for it for half a second at most,
unless they must wait longer. HOW: ``mpi``, or ``gloo``, where MPI only tells the ranks where they meet.
"""

from __future__ import annotations

import sys
import time

import torch

import mcr_dl as dist
from mcr_dl.watch import _watch


def main(how: str = "mpi") -> None:
    """One rank."""
    late = 0
    dist.init_process_group("gloo" if how == "gloo" else "mpi")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
    if rank == late:
        time.sleep(3)
    print(f"rank {rank} ends", flush=True)


_watch._FAREWELL = 0.5
main(*sys.argv[1:])
