# SPDX-License-Identifier: Apache-2.0
"""Reductions whose answer libraries disagree on: MIN and MAX with a NaN, and PREMUL_SUM."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import torch
import torch.distributed as torch_dist

import mcr_dl
import reference
from calls import OPS
from ranks import session
from ranks.expect import expect

SPECIAL = (math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 1.5, 448.0, -448.0, 0.015625)

Op = torch_dist.ReduceOp | torch_dist.ReduceOp.RedOpType


def _all_reduce(mine: torch.Tensor, op: Op, backend: str, asynchronous: bool) -> torch.Tensor:
    result = mine.clone()
    _wait(mcr_dl.all_reduce(result, op, backend=backend, async_op=asynchronous))
    return result


def _reduce(mine: torch.Tensor, op: Op, backend: str, asynchronous: bool) -> torch.Tensor:
    result = mine.clone()
    _wait(mcr_dl.reduce(result, 0, op, backend=backend, async_op=asynchronous))
    return result


def _reduce_scatter(mine: torch.Tensor, op: Op, backend: str, asynchronous: bool) -> torch.Tensor:
    given = mine.clone()
    block = torch.empty(mine.numel() // mcr_dl.get_world_size(), dtype=mine.dtype)
    _wait(mcr_dl.reduce_scatter_tensor(block, given, op, backend=backend, async_op=asynchronous))
    assert torch.equal(given.view(torch.uint8), mine.view(torch.uint8)), "the input was changed"
    return block


def _reduce_scatterv(mine: torch.Tensor, op: Op, backend: str, asynchronous: bool) -> torch.Tensor:
    size = mcr_dl.get_world_size()
    given = mine.clone()
    block = torch.empty(mine.numel() // size, dtype=mine.dtype)
    _wait(mcr_dl.reduce_scatterv(block, given, [block.numel()] * size, op, backend=backend, async_op=asynchronous))
    assert torch.equal(given.view(torch.uint8), mine.view(torch.uint8)), "the input was changed"
    return block


def _wait(work: mcr_dl.Work | None) -> None:
    if work is not None:
        work.wait()


CALLS: dict[str, Callable[[torch.Tensor, Op, str, bool], torch.Tensor]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatterv": _reduce_scatterv,
}


def _wanted(name: str, inputs: Sequence[torch.Tensor], reduced: torch.Tensor) -> torch.Tensor:
    """The result of this rank, and of a rank that is not the root its own input."""
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    if name.startswith("reduce_scatter"):
        block = reduced.numel() // size
        return reduced[rank * block : (rank + 1) * block]
    return inputs[rank] if OPS[name]["rooted"] and rank != 0 else reduced


def orderings(backends: Sequence[str], dtype_name: str) -> int:
    """MIN and MAX of all combinations of special values over the ranks: a NaN wins, as in torch, whoever has it."""
    session.start(*session.BACKENDS, "gloo+mpi")
    dtype, size, rank = reference.dtype_of(dtype_name), mcr_dl.get_world_size(), mcr_dl.get_rank()
    rows = list(product(SPECIAL, repeat=size))
    rows += rows[: -len(rows) % size]
    inputs = [torch.tensor([row[other] for row in rows], dtype=torch.float64).to(dtype) for other in range(size)]
    calls = 0
    for backend, name, mode, red in product(backends, CALLS, (False, True), ("MIN", "MAX")):
        reduced = reference.wide(inputs[0])
        for other in inputs[1:]:
            reduced = getattr(torch, f"{red.lower()}imum")(reduced, reference.wide(other))
        got = CALLS[name](inputs[rank], getattr(mcr_dl.ReduceOp, red), backend, mode)
        want = _wanted(name, inputs, reduced.to(dtype))
        what = f"{backend} {name} {red} {'asynchronous' if mode else 'blocking'}"
        assert torch.equal(reference.wide(got).isnan(), reference.wide(want).isnan()), f"{what}: NaN in other places"
        reference.assert_same(reference.wide(got).nan_to_num(), reference.wide(want).nan_to_num(), what)
        calls += 1
    return calls


def premultiplied(backends: Sequence[str], dtype_name: str, counts: Sequence[int]) -> int:
    """Sums with a factor, given as a number and as a tensor, in all operations that reduce."""
    session.start(*dict.fromkeys(part for backend in backends for part in (*backend.split("+"), backend)))
    dtype, size, rank = reference.dtype_of(dtype_name), mcr_dl.get_world_size(), mcr_dl.get_rank()
    calls = 0
    for backend, count, name, mode in product(backends, counts, CALLS, (False, True)):
        inputs = [reference.values(dtype, count * size, 7 + other, "SUM") for other in range(size)]
        want = _wanted(name, inputs, (sum(reference.wide(tensor) for tensor in inputs) * 0.5).to(dtype))
        for factor in (0.5, torch.tensor([0.5], dtype=dtype)):
            got = CALLS[name](inputs[rank], torch_dist._make_nccl_premul_sum(factor), backend, mode)
            reference.assert_same(got, want, f"{backend} {name} {factor}")
            calls += 1
    return calls


def factor_missing() -> None:
    """PREMUL_SUM without its factor is refused on every rank, and the group works on."""
    session.start()
    tensor = torch.ones(3)
    for backend in session.BACKENDS:
        op = mcr_dl.ReduceOp.PREMUL_SUM
        expect(mcr_dl.InvalidTypeError, partial(mcr_dl.all_reduce, tensor, op, backend=backend), "factor")
        mcr_dl.all_reduce(tensor, backend=backend)
    assert tensor.tolist() == [float(mcr_dl.get_world_size() ** 2)] * 3
