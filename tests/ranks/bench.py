# SPDX-License-Identifier: Apache-2.0
"""The measuring code on ranks: prepared calls and their checks, agreement, mixes."""

from __future__ import annotations

from itertools import product

import torch

import mcr_dl
from mcr_dl import _C
from mcr_dl.base import operations
from mcr_dl.bench import mix
from mcr_dl.measure import cases, timing
from mcr_dl.measure.cases import Case
from mcr_dl.testing.expect import expect
from mcr_dl.testing.position import note
from ranks import session

_SIZES = (1, 12_345)  # less than a block for each rank; more than one period of the values, and a multiple of nothing


def _group() -> _C.Group:
    session.start()
    group = _C.world()
    assert group is not None
    return group


def _check(case: Case, candidate: str) -> None:
    note(f"{candidate} {case}")
    prepared = cases.Prepared(case, candidate, _group())
    assert prepared.nbytes >= case.nbytes or case.operation == "barrier"
    assert prepared.check() == 0, f"{candidate}: {case}"
    assert prepared.check() == 0, f"{candidate}, second time: {case}"


def checks(candidate: str) -> int:
    """Every operation gives what its check expects: blocking or not, in place or not, from any root."""
    roots = range(_group().size())
    all_cases = [
        Case(operation, nbytes, "float32", "SUM", root, asynchronous, in_place)
        for operation, nbytes, asynchronous, in_place in product(
            operations.operations(), _SIZES, (False, True), (False, True)
        )
        for root in (roots if operations.operation_of(operation).rooted else (0,))
    ]
    for case in all_cases:
        _check(case, candidate)
    return len(all_cases)


def checks_of_types(candidate: str) -> int:
    """Every element type, with every reduction that is defined for it."""
    done = 0
    for operation, dtype in product(operations.operations(), _C.dtypes()):
        reduces = operations.operation_of(operation).reduces
        for red in [r for r in _C.reductions() if _C.reduction_defined(dtype, r)] if reduces else ["SUM"]:
            _check(Case(operation, 3000, dtype, red, in_place=True), candidate)
            done += 1
    return done


def counts_wrong_results(candidate: str) -> None:
    """The check counts wrong elements exactly; without a call, nearly all elements are wrong."""
    group = _group()
    for operation in operations.operations():
        for dtype in ("float32", "uint16", "complex64"):
            prepared = cases.Prepared(Case(operation, 40_000, dtype), candidate, group)
            assert prepared.check() == 0
            if not prepared.part.expected:
                continue  # barrier, or nothing arrives on this rank
            target = prepared.tensors.output
            assert target is not None
            for place in (0, target.numel() // 2, target.numel() - 1):
                target.view(torch.uint8)[place * target.itemsize] ^= 255
            assert prepared.wrong() == 3, f"{operation} {dtype}"
            if prepared.part.expected[0].source == group.rank() and prepared.tensors.input is None:
                continue  # the root of a broadcast has the result beforehand
            prepared.fill()
            assert prepared.wrong() > target.numel() // 2, f"{operation} {dtype}"


def refuses(candidate: str) -> None:
    """Cases that cannot be measured raise the library's own errors, equal on all ranks."""
    group = _group()

    def preparing(name: str = candidate, **changed: object) -> None:
        cases.Prepared(Case(**{"operation": "all_reduce", "nbytes": 4, **changed}), name, group)  # type: ignore[arg-type]

    preparing()
    expect(mcr_dl.InvalidArgumentError, lambda: preparing(operation="all_redcue"), "all_reduce", "'all_redcue'")
    expect(mcr_dl.InvalidArgumentError, lambda: preparing("unknown"), "expected", "gloo", "'unknown'")
    expect(mcr_dl.InvalidArgumentError, lambda: preparing(root=group.size()), "root", str(group.size()))
    expect(mcr_dl.InvalidArgumentError, lambda: preparing(nbytes=0), "size", "at least 1", "0")
    expect(mcr_dl.InvalidTypeError, lambda: preparing(dtype="float31"), "float32", "'float31'")
    expect(mcr_dl.InvalidTypeError, lambda: preparing(red="BAND"), "SUM", "float32", "BAND")


def measures() -> list[tuple[str, int, int]]:
    """Statistics of both backends, and of `auto`; the ranks must have agreed on all of them."""
    group = _group()
    control = timing.TorchControl(group)
    assert control.maximum([float(group.rank()), -float(group.rank())]) == [group.size() - 1, 0]
    assert control.gathered(float(group.rank())) == list(range(group.size()))
    result = []
    for operation in ("all_reduce", "broadcast", "send", "all_to_allv", "barrier"):
        names = (*session.BACKENDS, "auto")
        prepared = {name: cases.Prepared(Case(operation, 4096), name, group) for name in names}
        for name, times in timing.Sampling(prepared, control, 0.2).extend(0.05).items():
            assert 0 < times.min_us <= times.median_us <= times.p99_us
            assert times.n >= timing.MINIMUM_ROUNDS
            assert times.calls >= times.n
            result.append((f"{operation} on {name}", times.n, times.calls))
    return result


def mixes() -> None:
    """All operations at once, on both backends in turn, give right results; a wrong one is counted."""
    group = _group()
    names = operations.operations()
    parts = [mix.Part(name, 4000, session.BACKENDS[index % 2]) for index, name in enumerate(names)]
    control = timing.TorchControl(group)
    result = mix.run_mix(parts, Case("barrier", 0, "int32"), group, control, 0.01)
    assert result.wrong == 0
    assert len(result.alone) == len(parts)
    assert result.gain > 0
