# SPDX-License-Identifier: Apache-2.0
"""Randomized storms: thousands of asynchronous operations over all backends and overlapping groups at once.

All ranks draw the same operations from one seed and wait for them in different orders. A hang ends with a report of
each rank's last note (its current operation) and the stacks of its threads.
"""

from __future__ import annotations

import pytest

from harness import Pools
from ranks import session, storm

LIMIT = 240.0


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("world", "seed"), [(3, 1), (3, 2), (3, 3), (4, 1)])
def test_storm(pools: Pools, world: int, seed: int) -> None:
    """All backends and overlapping groups mixed; on seed 3 single ranks sleep now and then."""
    assert len(session.SUBGROUPS[world]) >= 4
    backends = list(session.BACKENDS)
    answers = pools.get("processes", world).run(storm.storm, seed, 1000, backends, seed == 3, limit=LIMIT)
    assert all(answer["finished"] > 330 for answer in answers)
    assert all(answer["checked after synchronize"] > 0 for answer in answers)


@pytest.mark.timeout(300)
def test_storm_on_open_mpi(pools: Pools) -> None:
    """A storm with Open MPI instead of MPICH."""
    backends = list(session.BACKENDS)
    answers = pools.get("mpiexec-openmpi", 3).run(storm.storm, 5, 700, backends, True, limit=LIMIT)
    assert all(answer["finished"] > 200 for answer in answers)


@pytest.mark.parametrize("backend", session.BACKENDS)
@pytest.mark.parametrize("world", [2, 4])
def test_messages(pools: Pools, world: int, backend: str) -> None:
    """Hundreds of pending messages, received by tag in random order, many from any rank."""
    received = pools.get("processes", world).run(storm.messages, 11, 300, backend, limit=120.0)
    assert sum(received) == 300
