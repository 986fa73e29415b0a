# SPDX-License-Identifier: Apache-2.0
"""Two ranks call torch.distributed on MPI in different forms, though their group's calls are uniform."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("mcr", timeout=timedelta(seconds=6))  # of the start, too
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, async_op=dist.get_rank() == 1)
    if work is not None:
        work.wait()
    dist.destroy_process_group()
