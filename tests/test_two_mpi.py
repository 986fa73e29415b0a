# SPDX-License-Identifier: Apache-2.0
"""Two MPI libraries in one process: the backends ``mpich`` and ``openmpi``."""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path

import pytest

import jobs
from harness import launchers
from mcr_dl.testing.nursery import Nursery

PROGRAM = jobs.PROGRAMS / "two_mpi.py"
DONE = re.compile(r"DONE \['ok: (MPICH|Open MPI) \d\S*', 'ok: (MPICH|Open MPI) \d\S*'\] \[\]")
LIMIT = 120.0

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def variables() -> dict[str, str]:
    """Open MPI lies in a folder that no program would search; MPICH is found."""
    return {"MCR_DL_MPI_LIB": f"mpich:{launchers.openmpi_library()}", "MCR_DL_TUNING_TABLE": "none"}


@pytest.mark.parametrize(("names", "size"), [("mpich+openmpi", 2), ("openmpi+mpich", 3), ("mpich+openmpi", 4)])
def test_both(nursery: Nursery, names: str, size: int, variables: dict[str, str]) -> None:
    """Calls on both in turn and at the same time, in either order of starting; each answers with its own name."""
    ranks = jobs.start(nursery, "two_mpi", [names], size, **variables)
    jobs.end(nursery, ranks, LIMIT)
    for rank in ranks:
        assert rank.code == 0, rank.text
        found = DONE.search(rank.text)
        assert found, rank.text
        assert [each.replace(" ", "").lower() for each in found.groups()] == names.split("+")


@pytest.mark.parametrize(
    ("names", "launcher"), [("openmpi+mpich", "mpiexec-mpich"), ("mpich+openmpi", "mpiexec-openmpi")]
)
def test_under_an_mpi_launcher(names: str, launcher: str, tmp_path: Path, variables: dict[str, str]) -> None:
    """The launcher starts one library, and a responder the other."""
    command, extra = launchers.mpiexec(launcher, 3)
    program = [sys.executable, str(PROGRAM), names]
    code, text = launchers.finish(
        [*command, *program], tmp_path, launchers.environment(**{**extra, **variables}), LIMIT
    )
    assert code == 0, text
    assert len(DONE.findall(text)) == 3, text


@pytest.mark.parametrize("how", ["destroy", "mpi4py", "global"])
def test_under_torchrun(how: str, tmp_path: Path, variables: dict[str, str]) -> None:
    """With destroy_process_group; in a program whose mpi4py has loaded MPICH; if MPICH's symbols are global."""
    if how == "global":
        how = str(Path(sysconfig.get_path("data"), "lib", "libmpi.so.12"))
    command = [*launchers.TORCHRUN, "2", str(PROGRAM), "mpich+openmpi", how]
    code, text = launchers.finish(command, tmp_path, launchers.environment(**variables), LIMIT)
    assert code == 0, text
    assert len(DONE.findall(text)) == 2, text


@pytest.mark.parametrize("names", ["mpich;openmpi", "openmpi;mpich"])
def test_a_rank_is_lost(nursery: Nursery, names: str, variables: dict[str, str]) -> None:
    """In a call of the second library: the others raise or end, and name the rank."""
    ranks = jobs.start(nursery, "faulty", [names, "collective", "kill"], 3, FAULTY_LIMIT="1800", **variables)
    survivors = [ranks[0], ranks[2]]
    jobs.end(nursery, survivors, LIMIT)
    for rank in survivors:
        assert rank.code in (jobs.REPORTED, jobs.ENDED), rank.text
        assert re.search(names.partition(";")[2] + r"\.\w+ \(group '", rank.text), rank.text
        assert re.search(jobs.LOST["kill"], rank.text), rank.text
