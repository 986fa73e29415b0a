# SPDX-License-Identifier: Apache-2.0
"""Rank 0 of two ends seconds after rank 1, which waits for it for half a second at most, unless it must wait longer."""

from __future__ import annotations

import time

import torch

import mcr_dl as dist
from mcr_dl.watch import _watch

_watch._FAREWELL = 0.5
dist.init_process_group("mpi")
rank = dist.get_rank()
dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
if rank == 0:
    time.sleep(3)
print(f"rank {rank} ends", flush=True)
