# SPDX-License-Identifier: Apache-2.0
"""Reductions for which libraries give different results: MIN and MAX with a NaN, and PREMUL_SUM."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import torch
import torch.distributed as torch_dist

import mcr_dl
from mcr_dl import _C
from mcr_dl.libraries import registry
from mcr_dl.testing import reference
from mcr_dl.testing.calls import OPS, SIGNATURES, kinds
from mcr_dl.testing.expect import expect
from ranks import session

SPECIAL = (math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 1.5, 448.0, -448.0, 0.015625)

Op = torch_dist.ReduceOp | torch_dist.ReduceOp.RedOpType


Call = Callable[[torch.Tensor, Op, str, bool], torch.Tensor]


def _in_place(name: str) -> Call:
    def call(mine: torch.Tensor, op: Op, backend: str, asynchronous: bool) -> torch.Tensor:
        result = mine.clone()
        root = {"dst": 0} if OPS[name]["rooted"] else {}
        _wait(getattr(mcr_dl, name)(result, op=op, backend=backend, async_op=asynchronous, **root))
        return result

    return call


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


CALLS: dict[str, Call] = {
    **{name: _in_place(name) for name, row in OPS.items() if row["reduces"] and "tensor" in kinds(name)},
    "reduce_scatter": _reduce_scatter,
    "reduce_scatterv": _reduce_scatterv,
}


def _check(
    name: str, inputs: Sequence[torch.Tensor], op: Op, red: str, backend: str, asynchronous: bool, factor: float = 1
) -> None:
    """One call against the reference, in which each input has the factor; unsupported backends must reject it."""
    rank, size, dtype = mcr_dl.get_rank(), mcr_dl.get_world_size(), inputs[0].dtype
    call = partial(CALLS[name], inputs[rank], op, backend, asynchronous)
    function = SIGNATURES[name]["op"]
    world = _C.world()
    assert world is not None
    if world._support(backend, function, str(dtype).removeprefix("torch."), red, False) == "-":
        if inputs[0].numel():
            expect(mcr_dl.UnsupportedError, call, f"{backend}.{function}")
        return
    counts = [inputs[0].numel() // size] * size
    want = reference.expected(function, [reference.wide(each) * factor for each in inputs], counts, 0, red, rank)
    assert want is not None
    want = inputs[rank] if OPS[function]["rooted"] and rank != 0 else want.to(dtype)
    got, want = reference.wide(call()), reference.wide(want)
    what = f"{backend} {name} {op} {'asynchronous' if asynchronous else 'blocking'}"
    assert torch.equal(got.isnan(), want.isnan()), f"{what}: NaN in other places"
    reference.assert_same(got.nan_to_num(), want.nan_to_num(), what)


def orderings(backends: Sequence[str], dtype_name: str) -> int:
    """MIN and MAX of all combinations of special values over the ranks: a NaN wins, as in torch, on any rank."""
    session.start(*session.BACKENDS, "stripe(gloo,mpi)")
    dtype, size = reference.dtype_of(dtype_name), mcr_dl.get_world_size()
    rows = list(product(SPECIAL, repeat=size))
    rows += rows[: -len(rows) % size]
    inputs = [torch.tensor([row[other] for row in rows], dtype=torch.float64).to(dtype) for other in range(size)]
    calls = 0
    for backend, name, mode, red in product(backends, CALLS, (False, True), ("MIN", "MAX")):
        _check(name, inputs, getattr(mcr_dl.ReduceOp, red), red, backend, mode)
        calls += 1
    return calls


def premultiplied(backends: Sequence[str], dtype_name: str, counts: Sequence[int]) -> int:
    """Sums with a factor, given as a number and as a tensor, in all operations that reduce."""
    session.start(*dict.fromkeys(part for backend in backends for part in registry.with_parts([backend])))
    dtype, size = reference.dtype_of(dtype_name), mcr_dl.get_world_size()
    calls = 0
    for backend, count, name, mode in product(backends, counts, CALLS, (False, True)):
        inputs = [reference.values(dtype, count * size, 7 + other, "SUM") for other in range(size)]
        for factor in (0.5, torch.tensor([0.5], dtype=dtype)):
            _check(name, inputs, torch_dist._make_nccl_premul_sum(factor), "SUM", backend, mode, 0.5)
            calls += 1
    return calls


def factor_missing() -> None:
    """PREMUL_SUM without its factor is rejected on every rank, and the group stays usable."""
    session.start()
    tensor = torch.ones(3)
    for backend in session.BACKENDS:
        op = mcr_dl.ReduceOp.PREMUL_SUM
        expect(mcr_dl.InvalidTypeError, partial(mcr_dl.all_reduce, tensor, op, backend=backend), "factor")
        mcr_dl.all_reduce(tensor, backend=backend)
    assert tensor.tolist() == [float(mcr_dl.get_world_size() ** len(session.BACKENDS))] * 3
