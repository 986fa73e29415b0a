# SPDX-License-Identifier: Apache-2.0
"""Counts above 2**31 elements: one-byte elements, 2 GiB a tensor, checked on both sides of the limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import Pools
from ranks import big

LIMIT = 200.0

every_function = pytest.mark.parametrize(
    "function",
    [big.broadcast, big.messages, big.all_reduce, big.all_gatherv, big.all_to_all],
    ids=lambda function: function.__name__,
)


@pytest.mark.timeout(240)
@every_function
def test_mpich(pools: Pools, function: Callable[[str], None]) -> None:
    """MPICH has routines with large counts."""
    pools.get("processes", 2).run(function, "mpi", limit=LIMIT)


@pytest.mark.timeout(240)
@every_function
def test_shm(pools: Pools, function: Callable[[str], None]) -> None:
    """The backend shm counts in 64 bits; the system's calls that read another process's memory read less at once."""
    pools.get("processes", 2).run(function, "shm", limit=LIMIT)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "function",
    [big.broadcast, big.messages, big.far_displacements_refused, big.far_displacements_with_a_hint],
    ids=lambda f: f.__name__,
)
def test_open_mpi(pools: Pools, function: Callable[[], None]) -> None:
    """Open MPI 5.0 has none: messages use a derived datatype, collectives are made of messages."""
    pools.get("mpiexec-openmpi", 2).run(function, limit=LIMIT)
