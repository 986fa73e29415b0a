# SPDX-License-Identifier: Apache-2.0
"""The backend shm beyond the table of operations, where it is one of the backends; ranks as threads: tests/cpp."""

from __future__ import annotations

import os

import pytest
import torch

import jobs
from harness import Pools, launchers
from mcr_dl.testing.nursery import Nursery
from ranks import shm


@pytest.mark.parametrize("world", [2, 8])
def test_several_sizes(pools: Pools, world: int) -> None:
    """With more ranks than most machines for tests have cores, too."""
    pools.get("processes", world).run(shm.several_sizes, limit=120)


@pytest.mark.parametrize("world", [2, 3])
def test_a_rank_without_direct_reads(pools: Pools, world: int) -> None:
    """The ranks agree on how they read."""
    pools.get("processes", world).run(shm.several_sizes, False, limit=120)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_sums_are_in_rank_order(pools: Pools, dtype: torch.dtype) -> None:
    """On all ranks and in every run, as docs/tuning.md promises."""
    differ = pools.get("processes", 3).run(shm.same_bits, dtype, limit=120)
    assert min(differ) > 100  # else the values tell nothing


@pytest.mark.parametrize("world", [2, 3, 4])
def test_shared_tensors(pools: Pools, world: int) -> None:
    """Each rank decides for itself whether its tensors are shared."""
    pools.get("processes", world).run(shm.shared_tensors, limit=120)


def test_shared_tensors_are_tensors() -> None:
    """They have the sizes and types of torch.empty's, and a bound."""
    program = "from ranks import shm; shm.shared_tensors_are_tensors()"
    done = launchers.python("-c", program, limit=120, MCR_DL_SHM_TENSOR_BYTES=str(4 << 20))
    assert done.code == 0, done.err


@pytest.mark.parametrize(("text", "reason"), [("many", "a number of bytes"), (str(2**63 - 1), "at most")])
def test_bounds_of_shared_tensors_that_cannot_be(text: str, reason: str) -> None:
    """The first shared tensor raises."""
    program = f"""
import mcr_dl, pytest
with pytest.raises(mcr_dl.InvalidArgumentError, match="MCR_DL_SHM_TENSOR_BYTES: expected {reason}"):
    mcr_dl.empty_shared(3)
"""
    done = launchers.python("-c", program, limit=120, MCR_DL_SHM_TENSOR_BYTES=text)
    assert done.code == 0, done.err


@pytest.mark.parametrize("world", [2, 3])
def test_forms_that_differ(pools: Pools, world: int) -> None:
    """A blocking call on one rank and an asynchronous one on another are one collective."""
    pools.get("processes", world).run(shm.forms_that_differ, limit=60)


def test_memory_that_a_tensor_gives_up(pools: Pools) -> None:
    """A tensor gets other memory while a call runs on it."""
    pools.get("processes", 2).run(shm.memory_that_a_tensor_gives_up, limit=60)


def test_sizes_that_differ(pools: Pools) -> None:
    """An exchange whose sizes do not fit is an error where they do not, and the ranks go on."""
    pools.get("processes", 2).run(shm.sizes_that_differ, limit=60)


def test_errors_of_two_groups(pools: Pools) -> None:
    """The diagnosis of an error is not that of an older one of another group."""
    pools.get("processes", 2).run(shm.errors_of_two_groups, limit=60)


def test_different_roots(nursery: Nursery) -> None:
    """Each rank takes itself for the root, and reads nothing: the next call's error names the difference."""
    ranks = jobs.start(nursery, "troubles", ["roots", "shm"], 3)
    jobs.end(nursery, ranks)
    first = "collective 1 of group 'default' is broadcast(float32, 40 bytes, root 0, shm) on rank 0"
    jobs.expect(ranks, jobs.REPORTED, "RAISED BackendError", first, "root 1, shm) on rank 1")


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_few_descriptors(pools: Pools, rank: int) -> None:
    """A rank that can open too few files is one error on all ranks, long before the group's timeout."""
    answers = pools.get("processes", 3).run(shm.few_descriptors, rank, limit=60)
    for each in zip(*answers, strict=True):
        assert len(set(each)) == 1, each
    errors = set(answers[0]) - {"made"}
    assert errors
    assert len(errors) < len(answers[0])
    assert all("raise the limit of open files" in error for error in errors), errors


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which may become other users and make PID namespaces")
@pytest.mark.parametrize("isolated", ["user", "processes"])
@pytest.mark.parametrize("world", [2, 3])
def test_a_rank_whose_memory_cannot_be_read(nursery: Nursery, isolated: str, world: int) -> None:
    """A rank that runs as another user, or in a PID namespace of its own, copies through shared memory."""
    ranks = jobs.start(nursery, "isolated", [isolated], world, MCR_DL_TUNING_TABLE="none")
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "done")


def test_other_threads_run(pools: Pools) -> None:
    """A call that waits does not keep Python's lock, though a call that need not wait does."""
    pools.get("processes", 2).run(shm.other_threads_run, limit=60)


@pytest.mark.parametrize(("text", "reason"), [("many", "expected a number of bytes"), ("1000", "at least")])
def test_bounds_that_cannot_be(pools: Pools, text: str, reason: str) -> None:
    """A wrong value of the first rank is one error on all ranks, which go on with the groups that they have."""
    pools.get("processes", 2).run(shm.bounds, text, reason, limit=60)
