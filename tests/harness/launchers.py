# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a job are started: the command lines and environments of the launchers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mcr_dl.measure.ranks import environments
from mcr_dl.testing.pool import start_all, without_launcher

TESTS = Path(__file__).resolve().parent.parent

# The tests' stand-in for NCCL, and one with only the functions of NCCL 2.18.
STAND_IN = TESTS.parent / "build" / "standin" / "libnccl.so"
OLD_STAND_IN = STAND_IN.parent / "old" / STAND_IN.name
_NCCL = {"MCR_DL_NCCL_LIB": str(STAND_IN), "MCR_STANDIN_TIMEOUT_MS": "15000"}

# torchrun on this host alone; the number of ranks and the program follow.
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]

# In the environment of a job's processes: those of torchrun and mpiexec are in sessions of their own.
_MARK = "MCR_TEST_JOB"
_marks: list[dict[str, str]] = []  # of the jobs that have not been ended yet

# Launchers for ranks that this module starts itself, with the additional variables of each.
OWN: dict[str, dict[str, str]] = {
    "processes": {},
    "nccl": _NCCL,
    "nccl-lanes": {**_NCCL, "MCR_DL_NCCL_LANES": "3"},
    "nccl-old": {**_NCCL, "MCR_DL_NCCL_LIB": str(OLD_STAND_IN), "MCR_STANDIN_VERSION": "21805"},
}


def openmpi() -> Path:
    """The prefix of an Open MPI: the one that `make build` installs, or another in MCR_TEST_OPENMPI."""
    prefix = Path(os.environ.get("MCR_TEST_OPENMPI", TESTS.parent / "build" / "openmpi"))
    if not (prefix / "bin" / "mpiexec").exists():
        raise FileNotFoundError(f"no Open MPI in {prefix}: run `make build`, or set MCR_TEST_OPENMPI")
    return prefix


def openmpi_library() -> Path:
    """The libmpi of that Open MPI."""
    return next(path for path in sorted((openmpi() / "lib").glob("libmpi.so.*")) if path.exists())


def mpich_mpiexec() -> Path:
    """MPICH's mpiexec, which is installed next to this Python."""
    return Path(sysconfig.get_path("scripts")) / "mpiexec"


def environment(**extra: str) -> dict[str, str]:
    """The environment for ranks of the tests; one computing thread per rank, as ranks share the cores."""
    clean = without_launcher()
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    return {**clean, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **extra}


def mpiexec(launcher: str, size: int) -> tuple[list[str], dict[str, str]]:
    """The launcher's command up to the program, and the variables that it needs."""
    if launcher == "mpiexec-mpich":
        return [str(mpich_mpiexec()), "-n", str(size)], {}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [str(openmpi() / "bin" / "mpiexec"), "--oversubscribe", "-n", str(size)]
    return command, {**root, "MCR_DL_MPI_LIB": str(openmpi_library())}


def mark() -> dict[str, str]:
    """A variable for the processes of a job, which end with the test at the latest."""
    _marks.append({_MARK: str(uuid.uuid4())})
    return _marks[-1]


def processes(mark: Mapping[str, str]) -> list[int]:
    """The processes with these variables, whatever their parent is by now."""
    wanted = {f"{name}={value}".encode() for name, value in mark.items()}
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's, or it has ended
            if wanted <= set(environment.read_bytes().split(b"\0")):
                found.append(int(environment.parent.name))
    return found


def kill(mark: dict[str, str]) -> None:
    """End what is left of a job."""
    deadline = time.monotonic() + 20
    while left := processes(mark):
        assert time.monotonic() < deadline, f"still there 20 s after SIGKILL: {left}"
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    if mark in _marks:
        _marks.remove(mark)


def kill_all() -> None:
    """End what is left of all jobs with a mark."""
    while _marks:
        kill(_marks[-1])


def start(
    launcher: str, size: int, arguments: Sequence[str], log: Path, variables: dict[str, str]
) -> list[subprocess.Popen[bytes]]:
    """Start `size` ranks of ``python arguments...``; returns the processes started here."""
    program = [sys.executable, *arguments]
    if launcher in OWN:
        commands = [(program, extra) for extra in environments(size, OWN[launcher]).values()]
    else:
        command, extra = mpiexec(launcher, size)
        commands = [([*command, *program], extra)]
    return start_all([(command, environment(**{**variables, **extra})) for command, extra in commands], log)


def finish(command: Sequence[str], folder: Path, variables: Mapping[str, str], limit: float) -> tuple[int, str]:
    """The exit code and output of a command; AssertionError, with the output, if it does not end in time."""
    job = mark()
    process = _begin(command, {**variables, **job}, cwd=folder, stderr=subprocess.STDOUT, start_new_session=True)
    ((output, _),) = _outputs([process], job, limit)
    return process.returncode, output


def together(commands: Sequence[tuple[list[str], dict[str, str]]], limit: float = 90.0) -> tuple[list[int], str]:
    """The exit codes and all output of commands that run at once, each with its variables.

    AssertionError with the output, and the end of all processes, if one has not ended in time.
    """
    job = mark()
    running = [
        _begin(command, environment(**variables, **job), stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        for command, variables in commands
    ]
    texts = [output for output, _ in _outputs(running, job, limit)]
    return [process.returncode for process in running], "\n".join(texts)


class Ended(NamedTuple):
    """A process that has ended: its exit code, and what it wrote to its standard output and error."""

    code: int
    out: str
    err: str


def python(*arguments: str, limit: float = 60.0, folder: str | Path | None = None, **variables: str) -> Ended:
    """Run ``python arguments...`` with these variables to its end, in the folder.

    AssertionError with the output, and the end of all processes, if it does not end in time.
    """
    job = mark()
    command, given = [sys.executable, *arguments], environment(**variables, **job)
    process = _begin(command, given, cwd=folder, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    ((out, err),) = _outputs([process], job, limit)
    return Ended(process.returncode, out, err)


def torch_alone(size: int, *arguments: str, **variables: str) -> tuple[list[int], str]:
    """The exit codes and output of the ranks of a torch program that never imports mcr_dl.

    No launcher adds its own output to it.
    """
    program = [sys.executable, str(TESTS / "programs" / "torch_alone.py"), *arguments]
    given = {"MCR_DL_TUNING_TABLE": "none", **variables}
    return together([(program, {**given, **rank}) for rank in environments(size, {}).values()])


def _begin(command: Sequence[str], variables: Mapping[str, str], **more: Any) -> subprocess.Popen[str]:
    """Start a command whose output is read as text."""
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True, errors="replace", **more)


def _outputs(running: Sequence[subprocess.Popen[str]], job: dict[str, str], limit: float) -> list[tuple[str, str]]:
    """The outputs of a job's processes; AssertionError with them, and its end, if one does not end in time."""
    try:
        return [process.communicate(timeout=limit) for process in running]
    except subprocess.TimeoutExpired:
        kill(job)
        said = "\n".join(text for process in running for text in process.communicate() if text)
        commands = "; ".join(str(process.args) for process in running)
        raise AssertionError(f"{commands}: still running after {limit:.0f} s\n{said}") from None
