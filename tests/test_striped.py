# SPDX-License-Identifier: Apache-2.0
"""Messages that are cut over two libraries (backends such as gloo+mpi)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from calls import SIGNATURES
from cases import LARGE, LARGE_DTYPES, table
from harness import Pools
from ranks import striped

CANDIDATES = ["gloo+mpi", "gloo+mpi:67", "mpi+gloo:25"]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("function", SIGNATURES)
def test_values(pools: Pools, world: int, function: str) -> None:
    """Every function: results of messages that are cut, and of those that are too short for it, equal plain torch's."""
    cases = []
    for number, dtype in enumerate(LARGE_DTYPES):
        found = table(function, CANDIDATES[number], dtype, world, (17, LARGE))
        cases += found[number % 7 :: 1 if len(found) < 40 else 7]
    assert pools.get("processes", world).run(striped.run_all, cases, limit=120) == [len(cases)] * world


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("function", [striped.mixed, striped.ends, striped.wrong_names], ids=lambda each: each.__name__)
def test_life(pools: Pools, world: int, function: Callable[[], None]) -> None:
    """Among other calls, at the end of a library, and under wrong names."""
    pools.get("processes", world).run(function)


def test_candidates(pools: Pools) -> None:
    """Each share is a candidate of `auto`, of the operations that are cut; equal on all ranks."""
    first, second = pools.get("processes", 2).run(striped.choices)
    assert first == second
    assert {"gloo+mpi", "gloo+mpi:25", "gloo+mpi:33", "gloo+mpi:67", "gloo+mpi:75"} <= set(first)
