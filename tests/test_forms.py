# SPDX-License-Identifier: Apache-2.0
"""Every operation on arrays of other libraries, and on dense tensors whose elements are not stored row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness import Pools
from mcr_dl.testing import forms
from mcr_dl.testing.calls import OPS, SIGNATURES, Case, kinds
from mcr_dl.testing.cases import table
from ranks import layouts, operations, session, striped
from ranks.operations import IN_TORCH, torch_takes

FUNCTIONS = [name for name, row in SIGNATURES.items() if row["op"] != "barrier"]
COUNTS = (18, 1002)  # even: a vector can be two rows
DTYPES = ("float32", "int64")  # also NumPy types

worlds = pytest.mark.parametrize("world", [2, 3])
functions = pytest.mark.parametrize("function", FUNCTIONS)
backends = pytest.mark.parametrize("backend", session.BACKENDS)


def _fits(case: Case, form: str) -> bool:
    """Only sums, as the reduction does not matter. Splits count rows, which differ for a vector in columns."""
    if case.red != "SUM" or case.aliased:
        return False
    return form in ("numpy", "dlpack") or "input_split_sizes" not in kinds(case.function) or case.layout == "rows"


def in_form(
    function: str, backend: str, world: int, form: str, counts: tuple[int, ...] = COUNTS, *, through_torch: bool = False
) -> list[Case]:
    """Blocking and asynchronous calls with all layouts."""
    cases = [
        replace(case, form=form)
        for dtype in DTYPES
        for case in table(function, backend, dtype, world, counts, through_torch=through_torch)
        if _fits(case, form)
    ]
    assert cases
    return cases


@backends
@worlds
@functions
@pytest.mark.parametrize("form", forms.ARRAYS)
def test_arrays(pools: Pools, form: str, function: str, world: int, backend: str) -> None:
    """NumPy arrays, DLPack objects and lists of them; the caller keeps none while an operation runs."""
    cases = in_form(function, backend, world, form)
    assert pools.get("processes", world).run(operations.run_all, cases, limit=120) == [len(cases)] * world


@backends
@worlds
@functions
@pytest.mark.parametrize("form", ["columns", "columns of some"])
def test_other_orders(pools: Pools, form: str, function: str, world: int, backend: str) -> None:
    """The elements arrive in the right order, whatever the order on either side."""
    if form == "columns of some" and OPS[SIGNATURES[function]["op"]]["in_place"]:
        form = "columns"  # ranks must agree on the order of a tensor used in place
    cases = in_form(function, backend, world, form)
    assert pools.get("processes", world).run(operations.run_all, cases, limit=120) == [len(cases)] * world


@worlds
@functions
def test_other_orders_on_striped(pools: Pools, function: str, world: int) -> None:
    """Messages that are cut over two libraries."""
    cases = in_form(function, "stripe(gloo,mpi)", world, "columns", (100_002,))
    assert pools.get("processes", world).run(striped.run_all, cases, limit=120) == [len(cases)] * world


@worlds
@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name in IN_TORCH])
def test_other_orders_through_torch(pools: Pools, function: str, world: int) -> None:
    """torch.distributed's functions on "mcr"."""
    cases = [
        case
        for form in ("columns", "columns of some")
        for case in in_form(function, "mpi", world, form, through_torch=True)
        if torch_takes(case) and not (form == "columns of some" and OPS[case.op]["in_place"])
    ]
    assert cases
    assert pools.get("processes", world).run(operations.run_all, cases, limit=120) == [len(cases)] * world


@backends
@worlds
@pytest.mark.parametrize("passes", layouts.PASSES)
def test_other_orders_with_passes(pools: Pools, passes: str, world: int, backend: str) -> None:
    """Calls that a pass holds, cuts or encodes."""
    cases = [case for function in FUNCTIONS for case in in_form(function, backend, world, "columns")]
    cases = [case for case in cases if case.dtype == "float32" and case.group == "world"]
    assert {case.asynchronous for case in cases} == {False, True}
    done = pools.get("processes", world).run(layouts.with_passes, passes, cases, limit=120)
    assert done == [len(cases)] * world


@backends
@worlds
@pytest.mark.parametrize("function", layouts.ON_RANKS)
def test_on_ranks(pools: Pools, function: str, world: int, backend: str) -> None:
    """See the function's docstring."""
    pools.get("processes", world).run(layouts.ON_RANKS[function], backend, limit=120)
