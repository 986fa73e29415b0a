# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the pools of rank processes, and the tests that rerun once after a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Pools
from mcr_dl.testing.nursery import Nursery
from seed import SEED

TESTS = Path(__file__).resolve().parent

# Programs do not measure when they start, unless a test sets the variable.
os.environ["MCR_DL_TUNING_TABLE"] = "none"

# In these tests ranks must notice a fault within seconds, which a busy machine may not allow. A failed one runs once
# more; pytest's summary counts and names it as a rerun.
TIMED = {
    "test_connections",
    "test_detail_messages",
    "test_exit",
    "test_faults",
    "test_growing",
    "test_hosts",
    "test_openmpi_start",
    "test_reports",
    "test_shrinking",
    "test_start",
    "test_syndicate_faults",
    "test_torch_debug",
    "test_user_code",
    "test_watch",
}

# Open MPI's mpiexec sometimes fails to read the host's network interfaces, and then ends before it starts a rank.
NOT_LAUNCHED = "The PMIx server.s lis"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the timed tests, and those that Open MPI's launcher may fail."""
    for item in items:
        once_more = {} if item.path.stem in TIMED else {"only_rerun": [NOT_LAUNCHED]}
        item.add_marker(pytest.mark.flaky(reruns=1, **once_more))


def pytest_report_header() -> str:
    """Name the share of the operations' cases and of the scripts that runs."""
    return f"cases of the operation tests, scripts of bench/: MCR_TEST_SEED={SEED}"


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    """Pools of ranks by launcher and size; a pool that a failure has ended is replaced by a new one."""
    session = Pools()
    yield session
    session.close()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Starts the ranks of jobs that end; one for all tests of a file."""
    with Nursery([TESTS]) as made:
        yield made
