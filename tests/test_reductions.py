# SPDX-License-Identifier: Apache-2.0
"""Reductions that libraries lack or compute differently: equal results on every backend."""

from __future__ import annotations

import pytest

from harness import Pools
from mcr_dl import _C
from mcr_dl.testing.calls import OPS
from ranks import reductions

BACKENDS = ("mpi", "gloo", "shm", "stripe(gloo,mpi)")
# If ranks share cores, MPICH uses only one family of algorithms.
VARIANTS = {2: (*BACKENDS, "mpi:p2p"), 3: BACKENDS}
FLOATING = [
    name for name in _C.dtypes() if _C.reduction_defined(name, "MAX") and not _C.reduction_defined(name, "BAND")
]

floating = pytest.mark.parametrize("dtype", FLOATING)
worlds = pytest.mark.parametrize("world", [2, 3])


def test_every_operation_that_reduces_is_here() -> None:
    """An operation on blocks needs a call in the table of ``ranks.reductions``."""
    assert {op["name"] for op in _C.ops() if op["reduces"]} == set(reductions.CALLS) & set(OPS)
    assert "float32" in FLOATING
    assert "int32" not in FLOATING
    assert "bool" not in FLOATING


@worlds
@floating
def test_a_nan_wins(pools: Pools, dtype: str, world: int) -> None:
    """MIN and MAX of special values equal torch's minimum and maximum, in any order of the ranks."""
    done = pools.get("processes", world).run(reductions.orderings, VARIANTS[world], dtype, limit=120)
    assert done == [len(VARIANTS[world]) * len(reductions.CALLS) * 2 * 2] * world


@floating
def test_a_nan_wins_on_open_mpi(pools: Pools, dtype: str) -> None:
    """A NaN wins with the other MPI too."""
    done = pools.get("mpiexec-openmpi", 3).run(reductions.orderings, ("mpi",), dtype, limit=120)
    assert done == [len(reductions.CALLS) * 2 * 2] * 3


@worlds
@floating
def test_premultiplied_sum(pools: Pools, dtype: str, world: int) -> None:
    """PREMUL_SUM is a multiplication and a sum if the library lacks it."""
    counts = (0, 1, 17, 1001)
    done = pools.get("processes", world).run(reductions.premultiplied, BACKENDS, dtype, counts, limit=120)
    assert done == [len(BACKENDS) * len(counts) * len(reductions.CALLS) * 2 * 2] * world


def test_premultiplied_sum_without_a_factor(pools: Pools) -> None:
    """A missing factor raises before anything is sent."""
    pools.get("processes", 2).run(reductions.factor_missing)
