# SPDX-License-Identifier: Apache-2.0
"""Jobs of the tests' programs, whose ranks end: ``mcr_dl.testing.jobs``, and jobs under Open MPI."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from harness import launchers
from mcr_dl.testing import jobs
from mcr_dl.testing.jobs import ENDED, LIMIT, LOST, REPORTED, agent_store, await_text, end, expect
from mcr_dl.testing.nursery import Child, Nursery

__all__ = [
    "ENDED",
    "LIMIT",
    "LOST",
    "PROGRAMS",
    "REPORTED",
    "LaunchedJob",
    "agent_store",
    "await_text",
    "end",
    "expect",
    "interrupted",
    "killed",
    "start",
    "start_under_open_mpi",
]

PROGRAMS = Path(__file__).resolve().parent / "programs"


def start(nursery: Nursery, program: str, arguments: list[str], size: int, **variables: str) -> list[Child]:
    """The ranks of a job of one of the tests' programs, whose store is held by a separate process."""
    return jobs.start(nursery, PROGRAMS / f"{program}.py", arguments, size, **variables)


def interrupted(nursery: Nursery, program: str, arguments: list[str]) -> list[Child]:
    """Two ranks of a program, after Ctrl-C in rank 0's wait; both go on and end well."""
    ranks = start(nursery, program, arguments, 2)
    await_text(ranks[:1], "WAITING")
    os.kill(ranks[0].pid, signal.SIGINT)
    end(nursery, ranks)
    expect(ranks, 0, "DONE")
    return ranks


def killed(nursery: Nursery, children: list[Child]) -> None:
    """Wait until the children have ended, and check that each has killed itself where its program says so."""
    end(nursery, children)
    expect(children, -signal.SIGKILL)


@dataclass
class LaunchedJob:
    """A job under its own launcher, whose ranks are the launcher's children."""

    launcher: subprocess.Popen[bytes]
    log: Path
    mark: dict[str, str]  # in the environment of its processes

    @property
    def text(self) -> str:
        """All output of the ranks and the launcher so far."""
        return self.log.read_text(errors="replace")

    def end(self, limit: float = LIMIT) -> int | None:
        """The launcher's exit code, once it has ended by itself and no process of the job is left.

        AssertionError, and the end of all its processes, if it has not ended after ``limit`` seconds.
        """
        try:
            code = self.launcher.wait(limit)
            deadline = time.monotonic() + 2
            while left := launchers.processes(self.mark):
                assert time.monotonic() < deadline, f"still there: {left}\n{self.text}"
                time.sleep(0.05)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job has not ended within {limit:.0f} s:\n{self.text}") from None
        finally:
            launchers.kill(self.mark)
        return code


def start_under_open_mpi(program: str, arguments: list[str], size: int, log: Path, **others: str) -> LaunchedJob:
    """Start a job under Open MPI's mpiexec, which starts and ends the ranks itself."""
    mark = launchers.mark()
    path = str(PROGRAMS / f"{program}.py")
    variables = {**mark, "MCR_DL_TUNING_TABLE": "none", **others}
    (launcher,) = launchers.start("mpiexec-openmpi", size, [path, *arguments], log, variables)
    return LaunchedJob(launcher, log, mark)
