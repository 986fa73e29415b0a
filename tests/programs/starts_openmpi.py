# SPDX-License-Identifier: Apache-2.0
"""A job on mpi alone, started without an MPI launcher: starts_openmpi.py [destroy].

The last words of each rank are DONE, its library, and the variables of PMIx that are left in the environment.
"""

from __future__ import annotations

import os
import sys

import torch

import mcr_dl as dist


def main() -> None:
    """All kinds of calls, on the whole group and on smaller ones."""
    dist.init_process_group(["mpi"])
    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) / 2
    for count in (3, 1 << 18):
        x = torch.full((count,), float(rank + 1))
        dist.all_reduce(x)
        assert x.eq(total).all()
    x = torch.full((5,), float(rank + 1))
    dist.all_reduce(x, async_op=True).wait()
    assert x.eq(total).all()
    for group in [dist.new_group([0, size - 1]), dist.new_group(list(range(size)))]:
        if rank in (0, size - 1) or dist.get_world_size(group) == size:
            x = torch.ones(2)
            dist.all_reduce(x, group=group)
            assert x.eq(dist.get_world_size(group)).all()
    if rank == 0:
        dist.send(torch.arange(4.0), 1)
    if rank == 1:
        x = torch.empty(4)
        dist.recv(x, 0)
        assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
    print(f"DONE {dist.available_backends()['mpi']} {[name for name in os.environ if 'PMIX' in name]}", flush=True)
    if "destroy" in sys.argv:
        dist.destroy_process_group()


main()
