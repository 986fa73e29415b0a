# SPDX-License-Identifier: Apache-2.0
"""A job on two MPI libraries: two_mpi.py BACKENDS [destroy | mpi4py | LIBRARY].

The last words of each rank are DONE and both libraries. A LIBRARY is loaded first, with global symbols.
"""

from __future__ import annotations

import ctypes
import os
import sys

import mpi4py
import torch

import mcr_dl as dist

VARIABLES = ("PMIX", "PMI_")  # that a library starts by


def _calls(backends: list[str], group: dist.Group | None = None) -> None:
    """Calls on all libraries in turn, and on all at the same time."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    total = size * (size + 1) / 2
    for count in (1, 1000, 1 << 18):
        inputs = {name: torch.full((count,), float(rank + 1)) for name in backends}
        for name, x in inputs.items():
            dist.all_reduce(name, x, group=group)
            assert x.eq(total).all(), name
        works = []
        for name, x in inputs.items():
            x.fill_(rank + 1)
            works.append(dist.all_reduce(name, x, async_op=True, group=group))
        for work in works:
            work.wait()
        for name, x in inputs.items():
            assert x.eq(total).all(), name
    half = torch.full((5,), 0.5, dtype=torch.bfloat16)  # reductions of mcr_dl, which each library calls
    for name in backends:
        x = half.clone()
        dist.all_reduce(name, x, group=group)
        assert x.eq(size / 2).all(), name
        parts = [torch.empty(3) for _ in range(size)]
        dist.all_gather(name, parts, torch.full((3,), float(rank)), group=group)
        assert [part[0].item() for part in parts] == list(range(size)), name


def _messages(backends: list[str]) -> None:
    """A ring over each library, all started before the first is awaited."""
    rank, size = dist.get_rank(), dist.get_world_size()
    works, received = [], []
    for name in backends:
        x = torch.empty(4)
        works += [
            dist.irecv(name, x, (rank - 1) % size),
            dist.isend(name, torch.full((4,), float(rank)), (rank + 1) % size),
        ]
        received.append(x)
    for work in works:
        work.wait()
    for x in received:
        assert x.eq((rank - 1) % size).all()


def main(names: str, how: str = "") -> None:
    """All kinds of calls, on the whole group and on a smaller one."""
    if how == "mpi4py":
        mpi4py.rc.initialize = False
        from mpi4py import MPI
    elif how.startswith("/"):
        ctypes.CDLL(how, mode=os.RTLD_GLOBAL)
    backends = names.split("+")
    dist.init_process_group(backends)
    _calls(backends)
    _messages(backends)
    size = dist.get_world_size()
    if how == "mpi4py":
        assert MPI.COMM_WORLD.allreduce(1) == size
    members = [0, size - 1]
    group = dist.new_group(members)
    if dist.get_rank() in members:
        _calls(backends, group)
    for x in (torch.ones(3), torch.ones(1 << 16)):
        dist.all_reduce(x)  # the candidate that auto chooses
        assert x.eq(size).all()
    libraries = [dist.available_backends()[name] for name in backends]
    left = [name for name in os.environ if name.startswith(VARIABLES)]
    print(f"DONE {libraries} {left if 'RANK' in os.environ else []}", flush=True)
    if how == "destroy":
        dist.destroy_process_group()


main(*sys.argv[1:])
