# SPDX-License-Identifier: Apache-2.0
"""Blocking calls that poll: one that cannot complete raises, and leaves the process and the group usable."""

from __future__ import annotations

import pytest

import jobs
from mcr_dl.testing.nursery import Nursery

backends = pytest.mark.parametrize("backend", ["mpi", "gloo", "shm"])


@backends
def test_interrupt(nursery: Nursery, backend: str) -> None:
    """Ctrl-C raises KeyboardInterrupt; the receive stays under way."""
    ranks = jobs.interrupted(nursery, "blocking_messages", ["interrupted", backend])
    assert "RAISED KeyboardInterrupt" in ranks[0].text


@pytest.mark.parametrize(
    ("backend", "call"), [("mpi", "recv"), ("gloo", "recv"), ("shm", "recv"), ("gloo", "barrier"), ("shm", "barrier")]
)
def test_interrupt_that_the_program_handles(nursery: Nursery, backend: str, call: str) -> None:
    """The call goes on, and the process is not ended."""
    jobs.interrupted(nursery, "blocking_messages", ["handled", backend, call])


@backends
@pytest.mark.parametrize("name", ["late", "late_after_a_pass"])
def test_timeout(nursery: Nursery, backend: str, name: str) -> None:
    """The receive stays under way, and the group still works, even if a pass has worked before the wait."""
    ranks = jobs.start(nursery, "blocking_messages", [name, backend], 2)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "DONE")
    call = f"{backend}.recv (group 'default', rank 0 of 2): message 1 of 12 bytes"
    assert f"RAISED CollectiveTimeoutError {call} timed out" in ranks[0].text, ranks[0].text


@backends
def test_abort(nursery: Nursery, backend: str) -> None:
    """abort() of the group on another thread ends the wait."""
    ranks = jobs.start(nursery, "blocking_messages", ["aborted", backend], 2)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "DONE")
    assert f"RAISED BackendError {backend}.recv (group 'group-1'" in ranks[0].text, ranks[0].text


@backends
def test_loss_of_a_third_rank(nursery: Nursery, backend: str) -> None:
    """The group has lost a rank: both ranks raise, though neither waits for that rank."""
    ranks = jobs.start(nursery, "blocking_messages", ["lost", backend], 3)
    jobs.end(nursery, ranks[:2])
    jobs.expect(ranks[:2], 0, f"RAISED PeerLostError {backend}.recv (group 'default'", "rank 2: process")
