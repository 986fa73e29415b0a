# SPDX-License-Identifier: Apache-2.0
"""Jobs of ranks that end, for tests of failures."""

from __future__ import annotations

import contextlib
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from harness import launchers
from harness.nursery import Child, Nursery

PROGRAMS = Path(__file__).resolve().parent / "programs"
LIMIT = 40.0  # seconds for a job to end; longer means a hang
REPORTED = 3  # a program's own code after an exception
ENDED = 70  # the code of a process that is ended inside a library

# The other ranks' text on rank 1, by what happened to it. Rank 1 may be before the call that they wait in, or gone
# since it made that call: in a storm both happen. No text on another rank may come in between.
_RANK_1 = r"rank 1(?: has made \d+ collectives?(?:(?!rank \d).)*;|:) "
LOST = {
    "kill": r"rank 1: process \d+ on \S+ has ended",
    "stop": r"rank 1: process \d+ on \S+ is stopped",
    "raise": _RANK_1 + "it has raised ValueError: bad batch",
    "exit": _RANK_1 + "it has ended",
}


def agent_store(nursery: Nursery, size: int) -> tuple[Child, list[dict[str, str]]]:
    """A process that holds the store, as torchrun's agent does, and the environments of its ranks."""
    environments = launchers.rank_environments(size)
    holder = nursery.start(PROGRAMS / "store.py", [environments[0]["MASTER_PORT"]], {})
    await_text([holder], "ready")
    return holder, [{**each, "TORCHELASTIC_USE_AGENT_STORE": "True"} for each in environments]


def start(nursery: Nursery, program: str, arguments: list[str], size: int, **variables: str) -> list[Child]:
    """The ranks of a job whose store is held by a separate process."""
    _, environments = agent_store(nursery, size)
    path = PROGRAMS / f"{program}.py"
    return [nursery.start(path, arguments, {**each, **variables}) for each in environments]


def await_text(children: list[Child], text: str, limit: float = LIMIT) -> None:
    """Wait until all children have printed the text."""
    deadline = time.monotonic() + limit
    while not all(text in child.text for child in children):
        assert time.monotonic() < deadline, f"no {text!r} from {[child.text for child in children]}"
        time.sleep(0.02)


def expect(children: list[Child], code: int, *texts: str) -> None:
    """Check that all children have ended with this code, and have printed all of these texts."""
    for child in children:
        assert child.code == code, f"code {child.code}\n{child.text}"
        for text in texts:
            assert text in child.text, child.text


def end(nursery: Nursery, children: list[Child], limit: float = LIMIT) -> None:
    """Wait until the children have ended by themselves."""
    ended = nursery.wait(children, limit)
    told = "\n".join(f"--- {child.pid}: code {child.code}\n{child.text}" for child in children)
    assert ended, f"some have not ended within {limit:.0f} s:\n{told}"


@dataclass
class LaunchedJob:
    """A job under its own launcher, whose ranks are the launcher's children."""

    launcher: subprocess.Popen[bytes]
    log: Path
    mark: str  # in the environment of its processes

    @property
    def text(self) -> str:
        """All output of the ranks and the launcher so far."""
        return self.log.read_text(errors="replace")

    def end(self, limit: float = LIMIT) -> int | None:
        """The launcher's exit code, once it has ended by itself and no process of the job is left."""
        code = self.launcher.wait(limit)
        deadline = time.monotonic() + 2
        while left := self.processes():
            assert time.monotonic() < deadline, f"still there: {left}\n{self.text}"
            time.sleep(0.05)
        return code

    def processes(self) -> list[int]:
        """The job's processes, whatever their parent is by now."""
        found = []
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in environment.read_bytes():
                    found.append(int(environment.parent.name))
        return found


def start_under_open_mpi(program: str, arguments: list[str], size: int, log: Path, **others: str) -> LaunchedJob:
    """Start a job under Open MPI's mpiexec, which starts and ends the ranks itself."""
    mark = f"MCR_TEST_JOB={uuid.uuid4()}"
    name, _, value = mark.partition("=")
    path = str(PROGRAMS / f"{program}.py")
    variables = {name: value, "MCR_DL_TUNING_TABLE": "none", **others}
    (launcher,) = launchers.start("mpiexec-openmpi", size, [path, *arguments], log, variables)
    return LaunchedJob(launcher, log, mark)
