# SPDX-License-Identifier: Apache-2.0
"""Collectives over the dimensions of a topology (backends such as hier(shm,mpi))."""

from __future__ import annotations

import pytest

from harness import Pools
from mcr_dl import _C
from mcr_dl.testing.calls import SIGNATURES
from mcr_dl.testing.cases import COUNTS, LARGE, LARGE_DTYPES, table
from ranks import hierarchy
from ranks.hierarchy import GRIDS
from seed import share

shapes = pytest.mark.parametrize(
    ("world", "shape"), [(4, [0, 1, 2, 3]), (4, [2, 0, 3, 1]), (3, [])], ids=["grid", "turned", "uneven"]
)


@pytest.mark.parametrize("function", SIGNATURES)
@shapes  # nearest to the function, so that ranks start anew for each shape alone
def test_values(pools: Pools, world: int, shape: list[int], function: str) -> None:
    """Every function in all types: results equal plain torch's, with and without a hierarchical form."""
    cases = []
    for number, dtype in enumerate(_C.dtypes()):
        found = [case for case in table(function, "hier(shm,mpi)", dtype, world, COUNTS) if case.group == "world"]
        cases += share(found, 1 if len(found) < 12 else 47, number)
        if shape:
            found = [case for case in table(function, "themis(shm,mpi)", dtype, world, COUNTS) if case.group == "world"]
            cases += share(found, 1 if len(found) < 12 else 67, number)
    for number, dtype in enumerate(LARGE_DTYPES):
        for backend in ("hier(shm,gloo)", "hier(mpi,gloo)", "hier(shm,stripe(gloo,mpi))", *GRIDS[: 2 * len(shape)]):
            found = [case for case in table(function, backend, dtype, world, (17, LARGE)) if case.group == "world"]
            cases += share(found, 1 if len(found) < 12 else 61, number)
    assert pools.get("processes", world).run(hierarchy.run_all, cases, shape, limit=120) == [len(cases)] * world


@shapes
def test_mixed(pools: Pools, world: int, shape: list[int]) -> None:
    """Several calls in flight, mixed with calls of other backends."""
    pools.get("processes", world).run(hierarchy.mixed, shape)


def test_life(pools: Pools) -> None:
    """With other groups, passes, and the end of a library."""
    pools.get("processes", 4).run(hierarchy.life)


def test_three_dimensions(pools: Pools) -> None:
    """Chunks in orders of three dimensions, each on its own library."""
    pools.get("processes", 8).run(hierarchy.three_dimensions, limit=120)


def test_automatic(pools: Pools) -> None:
    """Without names of backends, the topology's file decides whether Themis is among the candidates."""
    pools.get("processes", 4).run(hierarchy.automatic)


@pytest.mark.parametrize("world", [2, 4])
def test_without_lines(pools: Pools, world: int) -> None:
    """A topology of one dimension is an error."""
    pools.get("processes", world).run(hierarchy.without_lines)
