# SPDX-License-Identifier: Apache-2.0
"""Blocking calls that poll: one that cannot complete raises, and leaves the process and the group usable."""

from __future__ import annotations

import os
import signal
import time

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


def test_interrupt_of_a_collective_of_mpi(nursery: Nursery) -> None:
    """The process ends, though the program handles the signal: the collective cannot be left."""
    ranks = jobs.start(nursery, "blocking_messages", ["handled", "mpi", "barrier"], 2)
    jobs.await_text(ranks[:1], "WAITING")
    time.sleep(0.2)  # until the watch has seen the program's new handler
    os.kill(ranks[0].pid, signal.SIGINT)
    jobs.end(nursery, ranks)
    jobs.expect(ranks[:1], 128 + signal.SIGINT, "KeyboardInterrupt: mpi.barrier (group 'default', rank 0 of 2)")


@backends
def test_interrupt_of_a_future(nursery: Nursery, backend: str) -> None:
    """torch does not look for signals while it waits: KeyboardInterrupt comes once the operation is complete."""
    ranks = jobs.start(nursery, "blocking_messages", ["future", backend], 2)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "DONE")
    jobs.expect(ranks[:1], 0, "RAISED KeyboardInterrupt [7.0, 7.0, 7.0]")


@backends
@pytest.mark.parametrize("name", ["late", "late_after_a_pass"])
def test_timeout(nursery: Nursery, backend: str, name: str) -> None:
    """The receive stays under way, and the group still works, even if a pass has worked before the wait."""
    ranks = jobs.start(nursery, "blocking_messages", [name, backend], 2)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "DONE")
    call = f"{backend}.recv (group 'default', rank 0 of 2): message 1 of 12 bytes"
    assert f"RAISED CollectiveTimeoutError {call} timed out" in ranks[0].text, ranks[0].text


def test_interrupt_of_an_explanation(nursery: Nursery) -> None:
    """Ctrl-C while the text of a timeout is completed is raised after the timeout."""
    ranks = jobs.start(nursery, "blocking_messages", ["explained", "shm"], 2)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "DONE")
    assert "RAISED KeyboardInterrupt" in ranks[0].text, ranks[0].text


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
