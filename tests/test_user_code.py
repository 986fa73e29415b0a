# SPDX-License-Identifier: Apache-2.0
"""Exceptions in users' code that a call runs: the right exception on the right rank, and no rank hangs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import jobs
from harness import Pools
from mcr_dl.testing.nursery import Child, Nursery
from ranks import session, user_code
from seed import ranks_of

sizes = pytest.mark.parametrize("size", [2, 3])
backends = pytest.mark.parametrize("backend", session.BACKENDS)
forms = pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "async"])
raisers = pytest.mark.parametrize("everywhere", [False, True], ids=["one rank", "all ranks"])


TESTS_OF_A_POOL = 12


@pytest.fixture(scope="module")
def module_pools() -> Iterator[Pools]:
    """Ranks of these tests alone."""
    made = Pools()
    yield made
    made.close()


@pytest.fixture
def own_pools(request: pytest.FixtureRequest, module_pools: Pools) -> Pools:
    """New ranks after some tests: calls that never complete stay in their groups and slow down later tests."""
    request.module.used = getattr(request.module, "used", 0) + 1
    if request.module.used % TESTS_OF_A_POOL == 0:
        module_pools.close()
    return module_pools


def _ends_ranks(where: str, backend: str, blocking: bool, everywhere: bool) -> bool:
    """Whether other ranks are in a blocking call of MPI, which ends with the process."""
    return backend == "mpi" and blocking and not everywhere and where in user_code.IN_MPI


CASES = [
    (where, backend, blocking, everywhere)
    for where in user_code.CHAINS
    for backend in session.BACKENDS
    for blocking in (True, False)
    for everywhere in (False, True)
    if not (blocking and where in user_code.ASYNCHRONOUS)
]


def _named(case: int | tuple[str, str, bool, bool]) -> str:
    if isinstance(case, int):
        return str(case)
    where, backend, blocking, everywhere = case
    return f"{where}-{backend}-{'blocking' if blocking else 'async'}-{'all ranks' if everywhere else 'one rank'}"


IN_CHAINS = [case for case in CASES if not _ends_ranks(*case)]


SIZED = [(ranks_of(place), case) for place, case in enumerate(IN_CHAINS)]


@pytest.mark.parametrize(("size", "case"), SIZED, ids=_named)
def test_in_the_chain(own_pools: Pools, size: int, case: tuple[str, str, bool, bool]) -> None:
    """Passes, their steps and codecs."""
    own_pools.get("processes", size).run(user_code.in_chain, *case, limit=40.0)


def _expect_timeout(ranks: list[Child]) -> None:
    """The ranks after rank 0 have ended inside MPI: at their own timeout, or with rank 0 after the same one."""
    jobs.expect(ranks[1:], jobs.ENDED, "mpi.all_reduce (group ")
    ended = "still running after|lost rank 0: it has raised CollectiveTimeoutError"
    assert re.search(ended, ranks[1].text), ranks[1].text


@sizes
@pytest.mark.parametrize("where", user_code.IN_MPI)
def test_others_inside_of_mpi(nursery: Nursery, size: int, where: str) -> None:
    """The rank that raises gets its exception; the others, inside MPI, report what they wait for and end."""
    ranks = jobs.start(nursery, "raising", [where], size)
    jobs.end(nursery, ranks)
    assert ranks[0].code == 0, ranks[0].text
    assert "RAISED ValueError: bad batch" in ranks[0].text
    _expect_timeout(ranks)


def test_an_interrupt_in_a_codec(nursery: Nursery) -> None:
    """Ctrl-C is not lost in the codec's failure."""
    ranks = jobs.start(nursery, "interrupted_codec", [], 2)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "DONE")
    assert "RAISED KeyboardInterrupt" in ranks[0].text, ranks[0].text
    assert "RAISED BackendError shm.all_reduce" in ranks[1].text, ranks[1].text


def test_groups_in_different_orders(nursery: Nursery) -> None:
    """A limit of mpi (docs/architecture.md): held calls of one group and blocking ones of another, made in different
    orders, end at their timeout; with MPI_THREAD_MULTIPLE they complete."""
    ranks = jobs.start(nursery, "crossed", [], 2)
    jobs.end(nursery, ranks)
    assert "RAISED mpi.all_reduce (group " in ranks[0].text
    assert "DONE" not in ranks[0].text + ranks[1].text
    _expect_timeout(ranks)
    ranks = jobs.start(nursery, "crossed", [], 2, MCR_DL_MPI_THREAD_LEVEL="multiple")
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "DONE [2.0, 2.0, 2.0] [2.0, 2.0, 2.0, 2.0]")


NEVER_JOINED = [
    (steps, ends)
    for steps in user_code.STEPPED
    for ends in user_code.ENDS
    if ends != "blocking" or steps == "compress"  # blocking calls are neither held nor fused
]


@pytest.mark.parametrize(("steps", "ends"), NEVER_JOINED)
def test_calls_that_a_rank_never_joins(own_pools: Pools, steps: str, ends: str) -> None:
    """Once they have ended at their timeout, the blocking calls of other groups do not wait for them."""
    own_pools.get("processes", 3).run(user_code.never_joined, steps, ends, limit=60.0)


def test_in_a_backward_pass(pools: Pools) -> None:
    """Of DistributedDataParallel, whose calls C++ code of torch makes."""
    pools.get("processes", 2).run(user_code.in_backward, limit=30.0)


@sizes
@backends
@forms
@raisers
def test_in_a_completion_hook(pools: Pools, size: int, backend: str, blocking: bool, everywhere: bool) -> None:
    """torch's _register_on_completion_hook()."""
    pools.get("processes", size).run(user_code.in_hook, backend, blocking, everywhere, limit=30.0)


def test_an_interrupt_in_a_completion_hook(pools: Pools) -> None:
    pools.get("processes", 2).run(user_code.interrupted_hook, limit=30.0)


@backends
def test_in_the_hook_of_a_dropped_work(pools: Pools, backend: str) -> None:
    """No exception is lost silently."""
    pools.get("processes", 2).run(user_code.unasked_hook, backend, limit=30.0)


@sizes
@backends
@pytest.mark.parametrize("door", ["mcr_dl", "torch"])
@raisers
def test_in_a_callback_of_a_future(pools: Pools, size: int, backend: str, door: str, everywhere: bool) -> None:
    """Of mcr_dl's works and of torch's."""
    pools.get("processes", size).run(user_code.in_callback, backend, door, everywhere, limit=30.0)


@backends
@pytest.mark.parametrize("name", ["dropped_call", "held_beyond_the_group", "other_threads_go_on"])
def test_passes_and_threads(pools: Pools, backend: str, name: str) -> None:
    """See the function's docstring."""
    pools.get("processes", 2).run(getattr(user_code, name), backend, limit=40.0)
