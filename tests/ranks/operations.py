# SPDX-License-Identifier: Apache-2.0
"""Runs cases of the operation table on one rank of the tests; and which of them torch's own functions take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as torch_dist

import mcr_dl
from mcr_dl.testing import checks, reference
from mcr_dl.testing.calls import OPS, SIGNATURES, Case, spell
from mcr_dl.testing.expect import expect
from mcr_dl.testing.position import note
from ranks import session

# torch's functions with the same meaning; torch has neither vectored forms nor MPI's names.
IN_TORCH = [name for name in SIGNATURES if hasattr(torch_dist, name)]


def torch_takes(case: Case) -> bool:
    """torch's Python layer requires lists where mcr_dl also takes one tensor, has no async_op for sends and receives,
    and reduces complex numbers only by SUM."""
    if case.layout == "single" or (OPS[case.op]["peer"] and case.asynchronous):
        return False
    return not (OPS[case.op]["reduces"] and case.dtype == "complex64" and case.red != "SUM")


def run_supported(case: Case) -> None:
    """Run a case on a backend that does every call of an operation that can be emulated."""
    op = OPS[case.op]
    alone = op["peer"] and len(session.members(case.group, mcr_dl.get_world_size())) == 1
    may_lack = alone or not (op["fallback"] or op["peer"])
    assert checks.run(case) or may_lack, f"{case}: expected a backend that supports it, got {checks.support(case)!r}"


def run_all(cases: Sequence[Case], *backends: str) -> int:
    """Run the cases in order."""
    session.start(*backends)
    session.groups()
    for case in cases:
        run_supported(case)
    return len(cases)


def float8_pairs(backend: str, name: str, red: str) -> int:
    """Two ranks reduce every pair of values of an 8-bit type, with NaN and infinities, and a third one has the value
    that changes no result; returns how many overflow.
    """
    session.start()
    dtype, me, size = reference.dtype_of(name), mcr_dl.get_rank(), mcr_dl.get_world_size()
    bits = torch.arange(65536)
    pair = [part.to(torch.uint8).view(dtype) for part in (bits % 256, bits // 256)]
    a, b = (reference.wide(part) for part in pair)
    want = reference.rounded(
        {"SUM": a + b, "AVG": a + b, "PRODUCT": a * b, "MIN": a.minimum(b), "MAX": a.maximum(b)}[red], dtype
    )
    if red == "AVG":  # shm divides before it rounds; elsewhere the core divides the library's sum
        want = reference.rounded((a + b if backend == "shm" else reference.wide(want)) / size, dtype)
    neutral = {"PRODUCT": torch.ones(65536).to(dtype), "MIN": pair[0], "MAX": pair[0]}
    tensor = pair[me].clone() if me < 2 else neutral.get(red, torch.zeros(65536).to(dtype)).clone()
    mcr_dl.all_reduce(tensor, getattr(mcr_dl.ReduceOp, red), backend=backend)
    got, wanted = reference.wide(tensor), reference.wide(want)
    assert torch.equal(got.isnan(), wanted.isnan()), f"{backend} {name} {red}: NaN in other places"
    reference.assert_same(got.nan_to_num(0.0, 1e9, -1e9), wanted.nan_to_num(0.0, 1e9, -1e9), f"{backend} {name} {red}")
    largest = reference.wide(torch.tensor(torch.finfo(dtype).max))
    return int(((a + b).abs() > largest).sum()) if red == "SUM" else 0


def refuse_all(cases: Sequence[Case]) -> int:
    """Make calls with undefined reductions: each is rejected before anything is sent, with the known ones named."""
    session.start()
    session.groups()
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    refused = 0
    for case in cases:
        note(str(case))
        call = spell(case, _arguments_of_undefined(case, rank, size))
        expect(mcr_dl.InvalidTypeError, call, case.red, case.dtype, case.op, "expected", "got")
        refused += 1
    return refused


def _arguments_of_undefined(case: Case, rank: int, size: int) -> dict[str, Any]:
    """The arguments of the case with SUM, which is defined for all types, and then its own reduction."""
    arguments = dict(checks.prepare(Case(**{**case.__dict__, "red": "SUM"}), rank, size).arguments)
    return {**arguments, "op": getattr(mcr_dl.ReduceOp, case.red)}
