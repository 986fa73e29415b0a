# SPDX-License-Identifier: Apache-2.0
"""What the backend shm does beyond the table of operations."""

from __future__ import annotations

import os
import threading
import time

import torch

import mcr_dl
from mcr_dl.testing.expect import expect
from ranks import session


def several_sizes() -> None:
    """Reductions, exchanges and messages of sizes around the bounds of slots, pieces and packets."""
    session.start("shm")
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    for count in (1, 7, 8, 512, 513, 2048, 9001, 70_001):
        x = torch.arange(count) + rank
        mcr_dl.all_reduce(x)
        assert torch.equal(x, torch.arange(count) * size + sum(range(size)))
        given = torch.arange(count * size) * size + rank
        taken = torch.empty_like(given)
        work = mcr_dl.all_to_all_single(taken, given, async_op=rank % 2 == 0)
        if work is not None:
            work.wait()
        want = [torch.arange(rank * count, (rank + 1) * count) * size + peer for peer in range(size)]
        assert torch.equal(taken, torch.cat(want))
        y = torch.empty(count, dtype=torch.int64)
        sent = mcr_dl.isend(x + rank, (rank + 1) % size)
        assert mcr_dl.recv(y, (rank - 1) % size) == (rank - 1) % size
        assert torch.equal(y, x + (rank - 1) % size)
        sent.wait()


def forms_that_differ() -> None:
    """Blocking calls match asynchronous ones on other ranks."""
    session.start("shm")
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    for turn in range(60):
        x = torch.full((1 << turn % 18,), float(rank))
        work = mcr_dl.all_reduce(x, async_op=(turn + rank) % 2 == 0)
        if work is not None:
            work.wait()
        assert (x == sum(range(size))).all()


def other_threads_run() -> None:
    """Small calls wait for a rank that waits for another thread of this process: they release Python's lock."""
    session.start("shm")
    rank = mcr_dl.get_rank()
    for asynchronous in (False, True):
        x, y = torch.full((3,), float(rank)), torch.zeros(1)

        def give(value: int = int(asynchronous)) -> None:
            time.sleep(0.05)
            mcr_dl.send(torch.full((1,), float(value)), 1)

        thread = threading.Thread(target=give)
        if rank == 0:
            thread.start()
        else:
            mcr_dl.recv(y, 0)
            assert y.item() == asynchronous
        work = mcr_dl.all_reduce(x, async_op=asynchronous)
        if work is not None:
            work.wait()
        assert (x == 1).all()
        if rank == 0:
            thread.join()


def bounds(text: str, reason: str) -> None:
    """Make a group with this value of MCR_DL_SHM_BYTES on the first rank, and expect one error on all ranks."""
    session.start("shm")
    if mcr_dl.get_rank() == 0:
        os.environ["MCR_DL_SHM_BYTES"] = text
    try:
        expect(mcr_dl.InvalidArgumentError, mcr_dl.new_group, "MCR_DL_SHM_BYTES", reason, text)
    finally:
        os.environ.pop("MCR_DL_SHM_BYTES", None)
    mcr_dl.barrier()
