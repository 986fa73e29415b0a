# SPDX-License-Identifier: Apache-2.0
"""The end of a process: its steps, and failures that Python does not report as uncaught exceptions."""

from __future__ import annotations

import os
import re
import threading
from unittest import mock

import pytest

import jobs
from harness import launchers
from mcr_dl.groups import process_end
from mcr_dl.libraries import registry
from mcr_dl.runtime import exit_steps
from mcr_dl.testing.nursery import Nursery

KERNEL = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
RAISED_BAD = r"it has raised ValueError: bad batch"

pytestmark = pytest.mark.usefixtures("separate_runner")
nothing_left = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def separate_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A separate runner for this test: a hanging step loses its thread."""
    monkeypatch.setattr(exit_steps, "_thread", None)
    monkeypatch.setattr(exit_steps, "_steps", type(exit_steps._steps)())


def test_a_step_runs_on_the_prepared_thread(capsys: pytest.CaptureFixture[str]) -> None:
    """The next step also runs on it, even after a failed one."""
    exit_steps.prepare()
    ran: list[str] = []

    def step() -> None:
        ran.append(threading.current_thread().name)
        raise ValueError("said on stderr")

    for _ in range(2):
        exit_steps.bounded(step)
    assert ran == ["mcr_dl exit"] * 2
    assert "said on stderr" in capsys.readouterr().err


def test_a_step_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the process would never end."""
    monkeypatch.setattr(exit_steps, "_LIMIT_SECONDS", 0.1)
    exit_steps.prepare()
    begun, never = threading.Event(), threading.Event()

    def step() -> None:
        begun.set()
        never.wait()

    exit_steps.bounded(step)
    assert begun.wait(10)
    never.set()


def test_a_program_without_futures_starts_no_thread_for_them() -> None:
    """At its end, where the system may refuse one."""
    program = """
import os
from datetime import timedelta
from mcr_dl import _C
threads = os.listdir("/proc/self/task")
assert _C.drain_futures(timedelta(seconds=20))
assert os.listdir("/proc/self/task") == threads
"""
    done = launchers.python("-c", program, limit=100)
    assert done.code == 0, done.err


def test_a_library_that_cannot_be_closed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The later ones are closed, and the exit code stays."""
    libraries = [mock.Mock(), mock.Mock()]
    libraries[0].close.side_effect = OSError("no descriptor")
    monkeypatch.setattr(registry, "DESCRIBED", libraries)
    monkeypatch.setattr(process_end, "_leave_job", lambda: 70)
    assert process_end._leave_job_and_close() == 70
    libraries[1].close.assert_called_once_with()
    assert "no descriptor" in capsys.readouterr().err


def test_without_a_thread_the_step_runs_here() -> None:
    """As in a forked process, or before init."""
    ran: list[str] = []
    exit_steps.bounded(lambda: ran.append(threading.current_thread().name))
    assert ran == [threading.current_thread().name]


def _end_with_a_daemon(nursery: Nursery, backend: str, functions: str) -> None:
    ranks = jobs.start(nursery, "daemons", [backend, functions], 2)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "END")
    for rank in ranks:
        assert "terminate" not in rank.text, rank.text


@pytest.mark.parametrize("functions", ["mcr_dl", "torch", "late", "callback", "own_callback", "hook"])
@pytest.mark.parametrize("backend", ["gloo", "shm", "mpi"])
def test_a_daemon_thread_waits_at_the_end(nursery: Nursery, backend: str, functions: str) -> None:
    """The process ends well, though the thread, the callback of a future or the hook does not."""
    _end_with_a_daemon(nursery, backend, functions)


@pytest.mark.parametrize("functions", ["mcr_dl", "torch", "late", "hook"])
def test_python_ends_a_daemon_thread(functions: str) -> None:
    """In the last part of its end, which the ranks of other tests do without."""
    with Nursery([jobs.PROGRAMS.parent], full_exit=True) as nursery:
        _end_with_a_daemon(nursery, "gloo", functions)


# ---- failures that Python does not report as uncaught exceptions


@nothing_left
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


@nothing_left
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


@nothing_left
def test_an_error_at_the_end_that_cannot_be_printed(nursery: Nursery) -> None:
    """The exit code tells it, and the rest of the end runs: a trace that cannot be written is not told either."""
    variables = {"MCR_DL_DEBUG": "detail", "MCR_DL_TRACE": "/dev/null/folder"}
    ranks = jobs.start(nursery, "unheard", ["shm"], 2, **variables)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, jobs.ENDED)
