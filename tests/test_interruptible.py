# SPDX-License-Identifier: Apache-2.0
"""Blocking collectives of MPI that raise while they wait (MCR_DL_MPI_INTERRUPTIBLE)."""

from __future__ import annotations

import pytest

import jobs
from mcr_dl.testing.nursery import Nursery

NAME = "MCR_DL_MPI_INTERRUPTIBLE"

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("lost", "raised PeerLostError after "),
        ("abort", "raised BackendError after "),
        ("interrupt", "raised KeyboardInterrupt after "),
    ],
)
def test_a_waiting_call_raises(nursery: Nursery, how: str, text: str) -> None:
    """On the ranks that wait, although the third rank never makes the call."""
    ranks = jobs.start(nursery, "interruptible", [how], 3, **{NAME: "1"})
    jobs.end(nursery, ranks[:2])
    jobs.expect(ranks[:2], 0, text)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (NAME, "1", "interruptible"),
        ("MCR_DL_MPI_THREAD_LEVEL", "multiple", "several threads"),
        ("MCR_DL_MPI_STREAMS", "mcr", "streams by mcr"),
    ],
)
def test_ranks_that_differ(nursery: Nursery, name: str, value: str, text: str) -> None:
    """All raise, as their calls would not match; also in the other settings of MPI."""
    ranks = jobs.start(nursery, "interruptible", ["differ", name, value], 3)
    jobs.end(nursery, ranks)
    for rank in ranks:
        assert "backend 'mpi': expected the same on all ranks, got ok:" in rank.text
        assert f", {text} on rank 1" in rank.text
