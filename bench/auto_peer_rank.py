# SPDX-License-Identifier: Apache-2.0
"""One way to make an all_reduce, in its own ranks, as its users start it: for auto.py.

    mpiexec -n 2 python auto_peer_rank.py auto|mpi4py|gloo TABLE STORE BYTES...

Rank 0 prints a JSON object of medians in µs by bytes. Calls run back to back on one buffer, each way alone in its
processes: nothing that another way leaves in the caches or sets in the MPI library disturbs it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

_BATCH_SECONDS = 200e-6
_POINT_SECONDS = 0.4
_ROUNDS = (7, 200)


Way = tuple[Callable[[torch.Tensor], Callable[[], object]], Callable[[float], float], int]


def way(name: str, table: str, store: str) -> Way:
    """A function that prepares an all_reduce of a tensor, the maximum of a number over ranks, and this rank."""
    if name == "mpi4py":
        from mpi4py import MPI

        comm, place, add = MPI.COMM_WORLD, MPI.IN_PLACE, MPI.SUM
        return (
            lambda tensor: partial(comm.Allreduce, place, tensor.numpy(), add),
            lambda value: comm.allreduce(value, MPI.MAX),
            comm.Get_rank(),
        )
    box = torch.zeros(1, dtype=torch.float64)
    if name == "auto":
        import mcr_dl as dist

        dist.init_process_group("auto", tuning_table=table or None)
    else:
        import torch.distributed as dist  # type: ignore[no-redef]

        rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
        dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)

    def maximum(value: float) -> float:
        box.fill_(value)
        dist.all_reduce(box, dist.ReduceOp.MAX)
        return float(box)

    return lambda tensor: partial(dist.all_reduce, tensor), maximum, dist.get_rank()


def batch(call: Callable[[], object], calls: int) -> float:
    """Seconds per call; an extra call before them synchronizes the ranks."""
    call()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def main() -> None:
    """Measure the sizes given in bytes."""
    name, table, store = sys.argv[1:4]
    ready, maximum, rank = way(name, table, store)
    result = {}
    for nbytes in map(int, sys.argv[4:]):
        one = ready(torch.ones(max(1, nbytes // 4)))
        trial = maximum(min(batch(one, 3) for _ in range(3)))
        calls = max(1, int(_BATCH_SECONDS / trial))
        least, most = _ROUNDS
        rounds = max(least, min(most, int(_POINT_SECONDS / (trial * (calls + 1)))))
        result[nbytes] = statistics.median([maximum(batch(one, calls)) for _ in range(rounds)]) * 1e6
    maximum(0.0)
    if rank == 0:
        print(json.dumps(result), flush=True)
    os._exit(0)  # gloo ends a process whose peer leaves first


main()
