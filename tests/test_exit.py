# SPDX-License-Identifier: Apache-2.0
"""Steps at the end of the process."""

from __future__ import annotations

import subprocess
import sys
import threading
from unittest import mock

import pytest

import jobs
from mcr_dl.groups import process_end
from mcr_dl.libraries import registry
from mcr_dl.runtime import exit_steps
from mcr_dl.testing.nursery import Nursery

pytestmark = pytest.mark.usefixtures("separate_runner")


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
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


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


@pytest.mark.parametrize("functions", ["mcr_dl", "torch", "late", "callback", "own_callback"])
@pytest.mark.parametrize("backend", ["gloo", "shm", "mpi"])
def test_a_daemon_thread_waits_at_the_end(nursery: Nursery, backend: str, functions: str) -> None:
    """The process ends well, though the thread, or the callback of a future, does not."""
    ranks = jobs.start(nursery, "daemons", [backend, functions], 2)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "END")
    for rank in ranks:
        assert "terminate" not in rank.text, rank.text
