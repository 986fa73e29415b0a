# SPDX-License-Identifier: Apache-2.0
"""Ranks that fail in ways that Python does not report as uncaught exceptions."""

from __future__ import annotations

import os
import re

import pytest

import jobs
from mcr_dl.testing.nursery import Nursery

KERNEL = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
RAISED_BAD = r"it has raised ValueError: bad batch"

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize(
    ("starter", "fault", "limit", "error", "code"),
    [
        ("spawn", "raise", 1800, rf"PeerLostError: .*ost rank 1: {RAISED_BAD}", 1),
        ("spawn", "caught", 1800, rf"PeerLostError: .*ost rank 1: {RAISED_BAD}", 1),
        ("spawn", "exit", 1800, r"PeerLostError: .*ost rank 1: it has raised SystemExit: 4", 4),
        ("spawn", "destroyed", 2, r"CollectiveTimeoutError: .*rank 1 .*; it has ended communication", 1),
        ("spawn", "end", 2, r"CollectiveTimeoutError: .*rank 1 .*; it has ended", 0),
        ("fork", "raise", 1800, rf"PeerLostError: .*ost rank 1: {RAISED_BAD}", 1),
        ("fork", "return", 2, r"CollectiveTimeoutError: .*rank 1 .*; it has ended", 0),
        ("forkserver", "return", 2, r"CollectiveTimeoutError: .*rank 1 .*; it has ended", 0),
        ("torch", "raise", 1800, rf"PeerLostError: .*ost rank 1: {RAISED_BAD}", 1),
    ],
)
def test_a_process_of_multiprocessing_is_lost(
    nursery: Nursery, starter: str, fault: str, limit: int, error: str, code: int
) -> None:
    """multiprocessing catches the exception of its function, which Python then does not treat as uncaught."""
    _, (variables, _) = jobs.agent_store(nursery, 2)
    parent = nursery.start(jobs.PROGRAMS / "spawned.py", [starter, fault, str(limit)], variables)
    jobs.end(nursery, [parent], 2 * jobs.LIMIT)
    jobs.expect([parent], 0, f"CODES [{jobs.REPORTED}, {code}]")
    assert re.search(rf"REPORTED {error}", parent.text), parent.text


@pytest.mark.skipif(KERNEL < (6, 15), reason="the kernel does not tell other processes' exit codes")
@pytest.mark.parametrize(
    ("fault", "limit", "error"),
    [
        (
            "caught",
            1800,
            r"PeerLostError: .*ost rank 1: it has ended \(process \d+ on \S+ has ended with exit code 1",
        ),
        ("destroyed", 2, r"CollectiveTimeoutError: .*rank 1 .*; it has ended communication"),
    ],
)
def test_the_exit_code_of_a_failure(nursery: Nursery, fault: str, limit: int, error: str) -> None:
    """A program that catches its exception ends with another code than 0: it is lost, unless it has left before."""
    ranks = jobs.start(nursery, "spawned", ["alone", fault, str(limit)], 2)
    jobs.end(nursery, ranks)
    assert [rank.code for rank in ranks] == [jobs.REPORTED, 1], [rank.text for rank in ranks]
    assert re.search(rf"REPORTED {error}", ranks[0].text), ranks[0].text


def test_an_error_at_the_end_that_cannot_be_printed(nursery: Nursery) -> None:
    """The exit code tells it, and the rest of the end runs: a trace that cannot be written is not told either."""
    variables = {"MCR_DL_DEBUG": "detail", "MCR_DL_TRACE": "/dev/null/folder"}
    ranks = jobs.start(nursery, "unheard", ["shm"], 2, **variables)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, jobs.ENDED)
