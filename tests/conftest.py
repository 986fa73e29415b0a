# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the pools of rank processes; the tests that rerun once after a failure, and those that take turns."""

from __future__ import annotations

import contextlib
import os
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_timeout
import torch.distributed as torch_dist

import mcr_dl
from harness import Pools, launchers
from mcr_dl.testing.nursery import Nursery
from seed import SEED, TURNS

TESTS = Path(__file__).resolve().parent

# Programs do not measure when they start, unless a test sets the variable.
os.environ["MCR_DL_TUNING_TABLE"] = "none"

# In these files ranks must notice a fault within seconds, which a busy machine may not allow. A failed test that has
# ranks runs once more; pytest's summary counts and names it as a rerun. Tests that start ranks without the fixtures in
# RANKS have the mark `timed`.
TIMED = {
    "test_detail_messages",
    "test_exit",
    "test_faults",
    "test_growing",
    "test_hosts",
    "test_interruptible",
    "test_limits",
    "test_openmpi_start",
    "test_refine",
    "test_restarts",
    "test_shrinking",
    "test_start",
    "test_syndicate",
    "test_syndicate_faults",
    "test_two_mpi",
    "test_user_code",
}
RANKS = {"nursery", "own_pools", "pools"}

# All tests take two hours on two slow cores. Of these files, which take the most of it, a run of the whole suite has a
# quarter of the tests; four seeds in a row (by default the days) have all. --everything runs all. If a test has a share
# of its cases, it takes that from seed.py, where the next share comes after four seeds.
IN_TURNS = {
    "test_auto",
    "test_bench",
    "test_bench_scripts",
    "test_commands",
    "test_detail_messages",
    "test_examples",
    "test_faults",
    "test_gpu_check",
    "test_growing",
    "test_hierarchy",
    "test_launched_ends",
    "test_launchers",
    "test_nccl",
    "test_openmpi_start",
    "test_passes",
    "test_restarts",
    "test_bytescheduler",
    "test_striped",
    "test_survive",
    "test_syndicate",
    "test_syndicate_faults",
    "test_syndicate_torch",
    "test_testing",
    "test_torch_backend",
    "test_torch_programs",
    "test_torch_training",
    "test_trials",
    "test_tune",
    "test_tutorial",
    "test_two_mpi",
    "test_user_code",
}

# Open MPI's mpiexec sometimes fails to read the host's network interfaces, and then ends before it starts a rank.
NOT_LAUNCHED = "The PMIx server.s lis"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --everything."""
    parser.addoption("--everything", action="store_true", help="also the slow tests whose turn it is not")


def _takes_turns(config: pytest.Config) -> bool:
    """Whether this is a run of the whole suite, not of files or tests that the user has chosen."""
    chosen = config.option.everything or config.option.keyword or config.option.markexpr
    return not chosen and all(Path(argument).is_dir() for argument in config.args)


def has_its_turn(test: str, seed: int = SEED) -> bool:
    """Whether a run of the whole suite has the test of this name."""
    return Path(test.partition("::")[0]).stem not in IN_TURNS or zlib.crc32(test.encode()) % TURNS == seed % TURNS


def _is_timed(item: pytest.Item) -> bool:
    """Whether a failed test runs once more."""
    fixtures = set(getattr(item, "fixturenames", ()))
    return item.get_closest_marker("timed") is not None or (item.path.stem in TIMED and bool(RANKS & fixtures))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests whose turn it is not. Mark the timed tests, and those that Open MPI's launcher may fail."""
    if _takes_turns(config):
        config.hook.pytest_deselected(items=[item for item in items if not has_its_turn(item.nodeid)])
        items[:] = [item for item in items if has_its_turn(item.nodeid)]
    for item in items:
        once_more = {} if _is_timed(item) else {"only_rerun": [NOT_LAUNCHED]}
        item.add_marker(pytest.mark.flaky(reruns=1, **once_more))


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Limit the time of what follows a failure: the end of the test, and its second attempt.

    pytest-timeout has one timer for all attempts, which it stops at the first failure.
    """
    if not isinstance(node, pytest.Item) or node.config.option.usepdb:
        return
    settings = pytest_timeout._get_item_settings(node)
    if settings.timeout and not settings.func_only:
        node.config.hook.pytest_timeout_set_timer(item=node, settings=settings)


def pytest_report_header(config: pytest.Config) -> str:
    """Name the share of the operations' cases and of the slow tests that runs."""
    turns = f"; 1 of {TURNS} tests of {len(IN_TURNS)} slow files (--everything: all)" if _takes_turns(config) else ""
    return f"cases of the operation tests: MCR_TEST_SEED={SEED}{turns}"


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


@pytest.fixture
def alone() -> Iterator[None]:
    """A job of this process alone."""
    mcr_dl.init_process_group(["gloo", "shm"], store=torch_dist.HashStore(), rank=0, world_size=1, timeout=20)
    yield
    if mcr_dl.is_initialized():
        mcr_dl.destroy_process_group()


@pytest.fixture
def nothing_left(nursery: Nursery) -> Iterator[None]:
    """No process outlives its job, and no shared memory is left."""
    before = _shared_memory()
    yield
    left = nursery.left()
    nursery.clear()
    assert not left, f"expected no process of a rank that has ended, got {left}"
    deadline = time.monotonic() + 5
    while segments := _shared_memory() - before - _mapped():  # another job's may be there for a moment
        assert time.monotonic() < deadline, segments
        time.sleep(0.1)


def _shared_memory() -> set[str]:
    """Segments of MPI libraries on this host."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("mpich", "vader", "sm_segment", "ucx", "osc"))}


def _mapped() -> set[str]:
    """The segments that some process uses: other jobs may run on this host."""
    found: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            found.update(re.findall(r"/dev/shm/(\S+)", maps.read_text()))
    return found


@pytest.fixture(autouse=True)
def _no_job_outlives_its_test() -> Iterator[None]:
    """End the jobs under launchers of their own that a failed test has not waited for."""
    yield
    launchers.kill_all()
