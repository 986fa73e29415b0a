# SPDX-License-Identifier: Apache-2.0
"""Common mistakes, made on all ranks, each with its error text: no rank waits for another."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as torch_dist

import mcr_dl
from mcr_dl import InvalidArgumentError, InvalidTypeError
from mcr_dl.testing.expect import expect
from ranks import errors, session


@dataclass(frozen=True)
class Mistake:
    """A wrong call on the backend, and the end of its error text, after the call's name and group."""

    function: str  # as the error names it
    call: Callable[[str], Any]
    text: str
    error: type[Exception] = InvalidArgumentError


def _ones(count: int) -> torch.Tensor:
    return torch.ones(count)


# For two ranks.
MISTAKES: dict[str, Mistake] = {
    "uneven list": Mistake(
        "all_gather",
        lambda b: mcr_dl.all_gather([_ones(4), _ones(3)], _ones(4), backend=b),
        "tensor_list: expected tensors of equal size, got 4, 3 elements; all_gatherv takes different sizes",
    ),
    "uneven list to reduce": Mistake(
        "reduce_scatter",
        lambda b: mcr_dl.reduce_scatter(_ones(4), [_ones(4), _ones(3)], backend=b),
        "input_list: expected tensors of equal size, got 4, 3 elements; reduce_scatterv takes different sizes",
    ),
    "short output": Mistake(
        "all_gatherv",
        lambda b: mcr_dl.all_gatherv(_ones(4), _ones(4), [4, 4], backend=b),
        "output: expected 8 elements (the sum of rcounts), got 4",
    ),
    "short output of an exchange": Mistake(
        "all_to_allv",
        lambda b: mcr_dl.all_to_allv(_ones(4), _ones(8), [4, 4], [4, 4], backend=b),
        "output: expected 8 elements (the sum of rcounts), got 4",
    ),
    "short input of an exchange": Mistake(
        "all_to_allv",
        lambda b: mcr_dl.all_to_allv(_ones(8), _ones(4), [4, 4], [4, 4], backend=b),
        "input: expected 8 elements (the sum of scounts), got 4",
    ),
    "counts beyond all numbers": Mistake(
        "all_gatherv",
        lambda b: mcr_dl.all_gatherv(_ones(4), _ones(4), [2**62] * 2, backend=b),
        f"output: expected {2**63 - 1} elements (the sum of rcounts), got 4",
    ),
    "displacement": Mistake(
        "all_gatherv",
        lambda b: mcr_dl.all_gatherv(_ones(8), _ones(4), [4, 4], [0, 5], backend=b),
        "displs: expected blocks inside the 8 elements of output, got block 1 from 5 with 4 elements",
    ),
    "number of splits": Mistake(
        "all_to_all_single",
        lambda b: mcr_dl.all_to_all_single(_ones(4), _ones(4), None, [1, 1, 2], backend=b),
        "input_split_sizes: expected 2 entries (one per rank), got 3",
    ),
    "sum of splits": Mistake(
        "all_to_all_single",
        lambda b: mcr_dl.all_to_all_single(_ones(4), _ones(4), [1, 2], None, backend=b),
        "output_split_sizes: expected a sum of 4 (the rows of the tensor), got 3",
    ),
    "number of scounts": Mistake(
        "all_to_allv",
        lambda b: mcr_dl.all_to_allv(_ones(4), _ones(4), [4], [2, 2], backend=b),
        "scounts: expected 2 entries (one per rank), got 1",
    ),
    "negative rcounts": Mistake(
        "reduce_scatterv",
        lambda b: mcr_dl.reduce_scatterv(_ones(4), _ones(4), [5, -1], backend=b),
        "rcounts: expected 0 or more elements, got -1",
    ),
    "tag": Mistake(
        "send",
        lambda b: mcr_dl.send(_ones(1), 1 - mcr_dl.get_rank(), tag=-3, backend=b),
        f"tag: expected 0 to {2**31 - 1}, got -3",
    ),
    "no group": Mistake(
        "",
        lambda b: mcr_dl.all_reduce(_ones(1), mcr_dl.ReduceOp.SUM, True, backend=b),
        "all_reduce: group: expected a process group of mcr_dl or None, got bool",
        InvalidTypeError,
    ),
    "gathered list": Mistake(
        "all_gather",
        lambda b: mcr_dl.all_gather([_ones(2), _ones(2)], _ones(3), backend=b),
        "tensor_list: expected 6 elements (2 ranks x 3), got 4",
    ),
    "unknown keyword": Mistake(
        "",
        lambda b: mcr_dl.all_reduce(_ones(1), **{"\ud800": 1}, backend=b),
        "all_reduce() got an unexpected keyword argument '\\ud800'",
        TypeError,
    ),
    "other root's name": Mistake(
        "",
        lambda b: mcr_dl.scatterv(_ones(1), _ones(2), dst=0, scounts=[1, 1], backend=b),
        "scatterv() got an unexpected keyword argument 'dst'",
        TypeError,
    ),
}


def make(name: str, backend: str) -> str:
    """Make the mistake on every rank, then a correct call; returns the text."""
    session.start()
    me, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    mistake = MISTAKES[name]
    text = str(expect(mistake.error, lambda: mistake.call(backend)))
    where = f"{backend}.{mistake.function} (group 'default', rank {me} of {size}): " if mistake.function else ""
    assert text == where + mistake.text, text
    errors.good_call(backend)
    return text


def names_of_the_root(backend: str) -> None:
    """The vectored forms take the root under MPI's name and under torch's."""
    session.start()
    me, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    for root in ({"root": 1}, {"dst": 1}, {"rank": 1}):
        output = torch.zeros(size) if me == 1 else None
        mcr_dl.gatherv(output, torch.tensor([float(me)]), rcounts=[1] * size, backend=backend, **root)
        assert output is None or output.tolist() == [float(rank) for rank in range(size)]
    for root in ({"root": 1}, {"src": 1}):
        mine = torch.zeros(1)
        values = torch.arange(float(size)) if me == 1 else None
        mcr_dl.scatterv(mine, values, scounts=[1] * size, backend=backend, **root)
        assert mine.tolist() == [float(me)]
        mcr_dl.bcast(mine, backend=backend, **root)
        assert mine.tolist() == [1.0]


def uneven_lists_through_torch(backend: str) -> None:
    """torch.distributed has no other form for different sizes."""
    session.start()
    me, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    with mcr_dl.use(backend):
        outputs = [torch.zeros(rank + 1) for rank in range(size)]
        torch_dist.all_gather(outputs, torch.full((me + 1,), float(me)))
        assert [output.tolist() for output in outputs] == [[float(rank)] * (rank + 1) for rank in range(size)]


def nested_batches(backend: str) -> None:
    """A batch inside a coalescing block."""
    session.start()
    me, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    sends = [mcr_dl.P2POp(mcr_dl.isend, _ones(1), (me + 1) % size, backend=backend)]

    def nested() -> None:
        with mcr_dl._coalescing_manager():
            mcr_dl.batch_isend_irecv(sends)

    expect(InvalidArgumentError, nested, "expected no batch or coalescing block", "got one inside another")
    errors.good_call(backend)


def block_of_others(backend: str) -> None:
    """A coalescing block of a group that this rank is not a member of: its calls warn and do nothing."""
    session.start()
    group, tensor, total = mcr_dl.new_group([0]), _ones(3), _ones(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with mcr_dl._coalescing_manager(group, async_ops=True) as manager:
            mcr_dl.all_reduce(tensor, group=group, backend=backend)
            mcr_dl.all_reduce(total, backend=backend)
        manager.wait()
    member = mcr_dl.get_rank() == 0
    assert (len(manager.works), len(caught)) == ((1, 0) if member else (0, 1))
    assert total.tolist() == [float(mcr_dl.get_world_size())] * 3
    errors.good_call(backend)


ON_RANKS = (names_of_the_root, uneven_lists_through_torch, nested_batches, block_of_others)
