# SPDX-License-Identifier: Apache-2.0
"""synchronize() and destroy_process_group() wait for operations that the program still waits for, and for no others."""

from __future__ import annotations

import pytest

import jobs
from mcr_dl.testing.nursery import Child, Nursery

backends = pytest.mark.parametrize("backend", ["mpi", "gloo", "shm"])


@backends
def test_operations_that_have_failed(nursery: Nursery, backend: str) -> None:
    """They do not wait for an operation that has timed out, though the library still has it."""
    ranks = jobs.start(nursery, "draining", ["after_an_error", backend], 2)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "DONE")


@backends
def test_a_message_that_is_not_received(nursery: Nursery, backend: str) -> None:
    _ended(nursery, "not_received", backend)


@backends
def test_interrupt(nursery: Nursery, backend: str) -> None:
    """Ctrl-C in synchronize() raises KeyboardInterrupt, and the operations go on."""
    ranks = jobs.interrupted(nursery, "draining", ["interrupted", backend])
    assert "RAISED False" in ranks[0].text


def _ended(nursery: Nursery, name: str, backend: str) -> list[Child]:
    """The two ranks of a job of programs/draining.py, which have reached its end."""
    ranks = jobs.start(nursery, "draining", [name, backend], 2)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "DONE")
    return ranks


@backends
def test_operations_that_are_abandoned(nursery: Nursery, backend: str) -> None:
    """Their waits raise once their group has ended, and no later group waits for them, also not in another life."""
    for rank in _ended(nursery, "abandoned", backend):
        assert rank.text.count("the group has been destroyed") == 4, rank.text


@backends
def test_a_hook_of_an_operation_that_does_not_complete(nursery: Nursery, backend: str) -> None:
    """The end of the group does not wait for the operation's timeout, which is longer than the job may take."""
    _ended(nursery, "with_a_hook", backend)


@backends
def test_a_hook_that_runs_longer(nursery: Nursery, backend: str) -> None:
    """The warning says so, and the operations of other groups get their time."""
    _ended(nursery, "with_a_long_hook", backend)


@backends
def test_operations_that_start_while_their_group_ends(nursery: Nursery, backend: str) -> None:
    _ended(nursery, "started_meanwhile", backend)


@backends
def test_a_group_ends_while_a_thread_is_in_a_call(nursery: Nursery, backend: str) -> None:
    """The call raises, and no later group waits for it."""
    for rank in _ended(nursery, "in_a_call", backend):
        assert rank.text.count(f"RAISED {backend}.recv (group ") == 2, rank.text
        assert rank.text.count("the group has been destroyed") == 2, rank.text
