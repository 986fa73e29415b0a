# SPDX-License-Identifier: Apache-2.0
"""The ends of jobs under launchers; MPI's end all ranks if one ends without MPI_Finalize."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import jobs
from harness import launchers

LIMIT = 90.0

pytestmark = pytest.mark.usefixtures("nothing_left")


def run(launcher: str, size: int, how: str, folder: Path) -> tuple[int, str]:
    """The launcher's exit code, and the output of all ranks of ``apart.py``."""
    words = [str(jobs.PROGRAMS / "apart.py"), how]
    if launcher == "torchrun":
        return launchers.finish([*launchers.TORCHRUN, str(size), *words], folder, launchers.environment(), LIMIT)
    command, variables = launchers.mpiexec(launcher, size)
    return launchers.finish([*command, sys.executable, *words], folder, launchers.environment(**variables), LIMIT)


@pytest.mark.parametrize(
    ("how", "launcher", "size"),
    [
        ("mpi", "torchrun", 2),
        ("mpi", "mpiexec-mpich", 2),
        ("mpi", "mpiexec-openmpi", 2),
        ("gloo", "mpiexec-mpich", 2),
        ("gloo", "mpiexec-openmpi", 2),
        ("alone", "mpiexec-openmpi", 2),
        ("children", "mpiexec-mpich", 2),
        ("pair", "mpiexec-mpich", 3),
        ("mistake", "mpiexec-openmpi", 2),
    ],
)
def test_all_ranks_end_well(how: str, launcher: str, size: int, tmp_path: Path) -> None:
    """None of them ends another one, which works for longer."""
    code, text = run(launcher, size, how, tmp_path)
    assert code == 0, text
    for rank in range(size):
        assert text.count(f"rank {rank} ends") == 1, text


@pytest.mark.parametrize("launcher", ["mpiexec-mpich", "mpiexec-openmpi"])
def test_a_rank_ends_while_the_others_communicate(launcher: str, tmp_path: Path) -> None:
    """It waits for them for a moment only, as they may wait for it: its end is that of the job."""
    code, text = run(launcher, 2, "exit", tmp_path)
    assert code != 0, text
    assert "rank 0 ends" not in text, text
