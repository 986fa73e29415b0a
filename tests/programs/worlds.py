# SPDX-License-Identifier: Apache-2.0
"""Processes that make jobs on MPI, one after another: worlds.py JOBS...

Each job is written as the numbers of its processes, in the order of its ranks: "21" has process 2 as rank 0.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as torch_dist

import mcr_dl as dist


def use(rank: int) -> None:
    """Communicate in the job, and end it."""
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [dist.get_world_size()] * 3
    print(f"STARTED {dist.get_backends()[0]} as rank {rank} of {dist.get_world_size()}", flush=True)
    dist.destroy_process_group()


def main(*jobs: str) -> None:
    """Make each job that this process is in; where MPI cannot serve it, on gloo."""
    process = os.environ["RANK"]
    store = torch_dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False)
    for number, job in enumerate(jobs):
        if process not in job:
            continue
        place: dict[str, Any] = {"rank": job.index(process), "world_size": len(job), "timeout": 20}
        try:
            dist.init_process_group("mpi", store=torch_dist.PrefixStore(f"job {number}", store), **place)
        except dist.BackendUnavailableError as error:
            print(f"RAISED {error}", flush=True)
            dist.init_process_group("gloo", store=torch_dist.PrefixStore(f"job {number} again", store), **place)
        use(place["rank"])
    store.set(f"done {process}", "")
    store.wait([f"done {each}" for each in range(int(os.environ["WORLD_SIZE"]))])  # MPI ends on all of them together


if __name__ == "__main__":
    main(*sys.argv[1:])
