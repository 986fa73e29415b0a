# SPDX-License-Identifier: Apache-2.0
"""Groups that go on without lost ranks, in real jobs whose ranks are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

import jobs
from harness import launchers
from mcr_dl.testing.nursery import Child, Nursery

pytestmark = pytest.mark.usefixtures("nothing_left")


def run(nursery: Nursery, backends: str, losses: str, size: int = 4, **variables: str) -> list[Child]:
    """The survivors, which have ended; the lost ranks have ended where they had to."""
    ranks = jobs.start(nursery, "shrinking", [backends, losses], size, **variables)
    stages = losses.replace("/", ",").split(",")
    lost = [each.rstrip("!*?-+b") for each in stages]
    survivors = [child for rank, child in enumerate(ranks) if str(rank) not in lost]
    jobs.end(nursery, survivors)
    if killed := [ranks[int(each.rstrip("!*-+b"))] for each in stages if not each.endswith(("?", "~", "^"))]:
        jobs.killed(nursery, killed)
    return survivors


def of_library(name: str) -> dict[str, str]:
    """The variables of a job on one of the MPI libraries."""
    named = {"MCR_DL_MPI_LIB": str(launchers.openmpi_library())} if name == "Open MPI" else {}
    return {"MCR_DL_MPI_INTERRUPTIBLE": "1", **named}


@pytest.mark.parametrize("backends", ["gloo", "shm", "shm,gloo"])
@pytest.mark.parametrize(
    ("losses", "sizes"), [("1", [3]), ("0", [3]), ("1,2", [2]), ("1/3", [3, 2]), ("1,2,3", [1]), ("1/0/3", [3, 2, 1])]
)
def test_the_others_go_on(nursery: Nursery, backends: str, losses: str, sizes: list[int]) -> None:
    """In each new group every kind of call works, and the ranks end well."""
    survivors = run(nursery, backends, losses)
    for rank, child in enumerate(survivors):
        jobs.expect([child], 0, *(f"group of {size} of 4: rank" for size in [4, *sizes]))
        assert f"group of {sizes[-1]} of 4: rank {rank}, {backends}" in child.text, child.text


@pytest.mark.parametrize("backends", ["gloo", "shm"])
@pytest.mark.parametrize("losses", ["1,2!", "1,0!", "1,2*", "1,0*"])
def test_a_rank_is_lost_inside_shrink(nursery: Nursery, backends: str, losses: str) -> None:
    """The others agree again, and go on without it too."""
    jobs.expect(run(nursery, backends, losses), 0, "group of 2 of 4: rank")


@pytest.mark.parametrize(("losses", "left"), [("1,2*", 2), ("1,0*", 2), ("1/0/3", 1)])
def test_gloo_that_connects_late(nursery: Nursery, losses: str, left: int) -> None:
    """As in a job of many ranks, where two ranks connect when they first need it."""
    jobs.expect(run(nursery, "gloo", losses, TORCH_GLOO_LAZY_INIT="1"), 0, f"group of {left} of 4: rank")


@pytest.mark.parametrize("library", ["MPICH", "Open MPI"])
@pytest.mark.parametrize(
    ("backends", "losses", "sizes"),
    [("mpi", "1", [3]), ("mpi,gloo", "1,2", [2]), ("mpi,shm", "1/0/3", [3, 2, 1]), ("mpi,gloo", "1,2+", [2])],
)
def test_mpi_goes_on(nursery: Nursery, library: str, backends: str, losses: str, sizes: list[int]) -> None:
    """On one host, new communicators connect the ranks that are left."""
    for rank, child in enumerate(run(nursery, backends, losses, **of_library(library))):
        jobs.expect([child], 0, *(f"group of {size} of 4: rank" for size in [4, *sizes]))
        assert f"group of {sizes[-1]} of 4: rank {rank}, {backends}" in child.text, child.text
        assert "goes on without" not in child.text, child.text


@pytest.mark.parametrize("library", ["MPICH", "Open MPI"])
def test_mpi_does_not_return(nursery: Nursery, library: str) -> None:
    """It waits for a rank that is lost while it connects: the survivors agree again, and go on without MPI.

    Without another backend, all of them raise the same error.
    """
    survivors = run(nursery, "mpi,gloo", "1,2-", **of_library(library))
    jobs.expect(survivors, 0, "group of 2 of 4: rank")
    jobs.expect(survivors[:1], 0, "shrink: group 'default' goes on without mpi")
    assert all(child.text.rstrip().endswith(", gloo") for child in survivors), survivors[0].text
    survivors = run(nursery, "mpi", "1,2-", **of_library(library))
    jobs.expect(survivors, jobs.REPORTED, "BackendUnavailableError: shrink: group 'default': none of")


def test_a_loss_inside_a_blocking_call_of_mpi(nursery: Nursery) -> None:
    """The new group is watched as any other: a call that cannot be interrupted ends its process."""
    survivors = run(nursery, "mpi,gloo", "1/2b")
    jobs.expect(
        survivors, jobs.ENDED, "group of 3 of 4: rank", "PeerLostError: auto.all_reduce (group 'default/survivors-0'"
    )


def test_a_rank_grows_while_the_others_shrink(nursery: Nursery) -> None:
    """It had no call that needed the lost rank. It raises the loss, and shrinks with the others."""
    survivors = run(nursery, "gloo", "1,2^")
    jobs.expect(survivors, 0, "group of 3 of 4: rank", "lost: ")
    jobs.expect(survivors[1:2], 0, "lost: grow: lost rank 1: process")
    jobs.expect(run(nursery, "gloo", "1,0^,2^"), 0, "group of 3 of 4: rank", "lost: ")


def test_a_running_rank_does_not_call(nursery: Nursery) -> None:
    """It is named once the timeout has passed."""
    survivors = run(nursery, "gloo", "1,2?", SHRINKING_LIMIT="2")
    jobs.expect(survivors, jobs.REPORTED, "CollectiveTimeoutError: shrink: rank 2 still running")


def test_a_rank_calls_after_the_timeout(nursery: Nursery) -> None:
    """The others have given it up, and try again: then all of them meet."""
    survivors = run(nursery, "gloo", "1,2~", SHRINKING_LIMIT="1")
    jobs.expect(survivors, 0, "group of 3 of 4: rank")


@pytest.mark.parametrize(("lost", "excluded"), [("1", "1"), ("0,2", "0,2"), ("3", "1,3")])
def test_shrink_group_of_torch(nursery: Nursery, lost: str, excluded: str) -> None:
    """Its ranks may leave out more than those that are lost. The default group stays as it is."""
    ranks = jobs.start(nursery, "shrinking_torch", [lost, excluded], 4)
    survivors = [child for rank, child in enumerate(ranks) if str(rank) not in excluded.split(",")]
    jobs.end(nursery, survivors)
    for rank, child in enumerate(survivors):
        jobs.expect(
            [child], 0, f"group of {len(survivors)}: rank {rank}, mcr", "default: shrink_group: expected a group"
        )


def test_shrink_group_of_torch_without_all_lost_ranks(nursery: Nursery) -> None:
    """All survivors raise the same error, since torch takes the other ranks for members."""
    ranks = jobs.start(nursery, "shrinking_torch", ["1,2", "1"], 4)
    survivors = [ranks[0], ranks[3]]
    jobs.end(nursery, survivors)
    jobs.expect(
        survivors,
        jobs.REPORTED,
        "PeerLostError: shrink: expected the excluded ranks to be all lost ones, but rank 2 is lost too",
    )


@pytest.mark.parametrize("which", ["default", "new"])
def test_torch_starts_again_after_an_abort(nursery: Nursery, which: str, tmp_path: Path) -> None:
    """The end of torch's groups does not end an aborted group again, which a lost rank keeps open."""
    ranks = jobs.start(nursery, "aborting", [which, str(tmp_path / "store")], 3)
    jobs.end(nursery, ranks[:2])
    jobs.expect(ranks[:2], 0, "lost", "again 2.0")


@pytest.mark.parametrize(("what", "size"), [("dimension", 4), ("scheduler", 2)])
def test_groups_that_have_ended_after_a_loss(nursery: Nursery, what: str, size: int) -> None:
    """MPI keeps them. The end of what they belonged to does not end them again."""
    survivors = jobs.start(nursery, "destroyed", [what], size)[:-1]
    jobs.end(nursery, survivors)
    jobs.expect(survivors, 0, "REPORTED PeerLostError", "DONE")
