# SPDX-License-Identifier: Apache-2.0
"""Counts beyond 2**31 elements, with data that is actually transferred, on two ranks."""

from __future__ import annotations

import torch

import mcr_dl
from mcr_dl.testing.expect import expect
from mcr_dl.testing.position import note
from ranks import errors, session

COUNT = 2**31 + 12_345
# The ends, both sides of 2**31 and of 2**30 (where messages are cut), and the middle of the last part.
PLACES = [0, 1, 2**30 - 1, 2**30, 2**31 - 1, 2**31, 2**31 + 1, 2**31 + 6000, COUNT - 1]


def _pattern(salt: int) -> torch.Tensor:
    return torch.tensor([(place * 7 + salt * 31) % 200 + 1 for place in PLACES], dtype=torch.uint8)


def _marked(salt: int) -> torch.Tensor:
    """A buffer of COUNT bytes, 0 but at PLACES."""
    tensor = torch.zeros(COUNT, dtype=torch.uint8)
    tensor[PLACES] = _pattern(salt)
    return tensor


def _check(tensor: torch.Tensor, want: torch.Tensor, what: str) -> None:
    got = tensor[PLACES]
    assert torch.equal(got, want), f"{what}: expected {want.tolist()} at {PLACES}, got {got.tolist()}"
    assert int(torch.count_nonzero(tensor)) == len(PLACES), f"{what}: data elsewhere"


def broadcast(backend: str = "mpi") -> None:
    session.start()
    note("big broadcast")
    tensor = _marked(3) if mcr_dl.get_rank() == 0 else torch.zeros(COUNT, dtype=torch.uint8)
    mcr_dl.broadcast(tensor, 0, backend=backend)
    _check(tensor, _pattern(3), "broadcast")


def messages(backend: str = "mpi") -> None:
    session.start()
    note("big send and recv")
    if mcr_dl.get_rank() == 0:
        mcr_dl.send(_marked(5), 1, backend=backend)
    else:
        tensor = torch.zeros(COUNT, dtype=torch.uint8)
        mcr_dl.irecv(tensor, 0, backend=backend).wait()
        _check(tensor, _pattern(5), "recv")
    mcr_dl.barrier(backend=backend)


def all_reduce(backend: str = "mpi") -> None:
    session.start()
    note("big all_reduce")
    tensor = _marked(mcr_dl.get_rank() + 1)
    mcr_dl.all_reduce(tensor, mcr_dl.ReduceOp.MAX, backend=backend, async_op=True).wait()
    _check(tensor, torch.maximum(_pattern(1), _pattern(2)), "all_reduce")


def all_gatherv(backend: str = "mpi") -> None:
    """Small blocks at displacements beyond 2**31, and a total beyond it: the larger side is on all ranks."""
    session.start()
    note("big all_gatherv")
    mine = torch.full((1000,), mcr_dl.get_rank() + 1, dtype=torch.uint8)
    output = torch.zeros(COUNT, dtype=torch.uint8)
    mcr_dl.all_gatherv(output, mine, [1000, 1000], [2**31 + 5000, 2**31 - 500], backend=backend)
    assert bool((output[2**31 + 5000 : 2**31 + 6000] == 1).all())
    assert bool((output[2**31 - 500 : 2**31 + 500] == 2).all())
    assert int(torch.count_nonzero(output)) == 2000


def far_displacements_refused() -> None:
    """Libraries with 32-bit displacements: a clear error, nothing sent, and a group that still works."""
    session.start()
    note("big displacements")
    output = torch.zeros(COUNT, dtype=torch.uint8)
    mine = torch.ones(1000, dtype=torch.uint8)

    def call() -> None:
        mcr_dl.all_gatherv(output, mine, [1000, 1000], [2**31 + 5000, 2**31 - 500], backend="mpi")

    expect(mcr_dl.UnsupportedError, call, "mpi.all_gather", "2147483647", str(2**31 + 5000))
    assert int(torch.count_nonzero(output)) == 0
    errors.good_call("mpi")


def far_displacements_with_a_hint() -> None:
    """The other rank does not know of the displacements: the hint says that they may be far."""
    session.start()
    note("big displacements with a hint")
    rank = mcr_dl.get_rank()
    displacements = [2**31 + 5000, 2**31 - 500] if rank == 0 else [0, 1000]
    output = torch.zeros(COUNT if rank == 0 else 2000, dtype=torch.uint8)
    mine = torch.full((2000,), rank + 1, dtype=torch.uint8)
    counts = [1000, 1000]
    mcr_dl.all_to_allv(output, mine, counts, counts, None, displacements, size_hint=COUNT, backend="mpi")
    for peer, begin in enumerate(displacements):
        assert bool((output[begin : begin + 1000] == peer + 1).all())
    assert int(torch.count_nonzero(output)) == 2000


def all_to_all(backend: str = "mpi") -> None:
    """Blocks of half a gibibyte and more, 2**31 and more together."""
    session.start()
    note("big all_to_all")
    half = COUNT // 2 + 1
    me = mcr_dl.get_rank()
    tensor = torch.zeros(2 * half, dtype=torch.uint8)
    places = [0, half - 1, half, 2 * half - 1]
    tensor[places] = torch.tensor([10 + me, 20 + me, 30 + me, 40 + me], dtype=torch.uint8)
    output = torch.zeros_like(tensor)
    mcr_dl.all_to_all_single(output, tensor, backend=backend)
    want = [[10, 20, 11, 21], [30, 40, 31, 41]][me]
    assert output[places].tolist() == want
    assert int(torch.count_nonzero(output)) == 4
