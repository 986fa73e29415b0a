# SPDX-License-Identifier: Apache-2.0
"""Jobs of ranks that end, for tests of what happens when something goes wrong."""

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
LIMIT = 40.0  # seconds for a job to end: a hang, where one is not
REPORTED = 3  # a program's own code, where it has got an exception
ENDED = 70  # that of a process which is ended inside a library

# What the others say of rank 1, by what has become of it. It may be before the call that they wait in, or gone since it
# made that call: in a storm both happen. No other rank's words may come in between.
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
    """The ranks of a job whose store a process of its own holds."""
    _, environments = agent_store(nursery, size)
    path = PROGRAMS / f"{program}.py"
    return [nursery.start(path, arguments, {**each, **variables}) for each in environments]


def await_text(children: list[Child], text: str, limit: float = LIMIT) -> None:
    """Wait until all of them have printed something."""
    deadline = time.monotonic() + limit
    while not all(text in child.text for child in children):
        assert time.monotonic() < deadline, f"no {text!r} from {[child.text for child in children]}"
        time.sleep(0.02)


def expect(children: list[Child], code: int, *texts: str) -> None:
    """All of them have ended with this code, and have printed all of these texts."""
    for child in children:
        assert child.code == code, f"code {child.code}\n{child.text}"
        for text in texts:
            assert text in child.text, child.text


def end(nursery: Nursery, children: list[Child], limit: float = LIMIT) -> None:
    """Wait until they have ended by themselves."""
    ended = nursery.wait(children, limit)
    told = "\n".join(f"--- {child.pid}: code {child.code}\n{child.text}" for child in children)
    assert ended, f"some have not ended within {limit:.0f} s:\n{told}"


@dataclass
class LaunchedJob:
    """A job under a launcher of its own, whose ranks are the launcher's children."""

    launcher: subprocess.Popen[bytes]
    log: Path
    mark: str  # in the environment of its processes

    @property
    def text(self) -> str:
        """All that the ranks and the launcher have printed so far."""
        return self.log.read_text(errors="replace")

    def end(self, limit: float = LIMIT) -> int | None:
        """The launcher's exit code, when it has ended by itself and no process of the job is left."""
        code = self.launcher.wait(limit)
        deadline = time.monotonic() + 2
        while left := self.processes():
            assert time.monotonic() < deadline, f"still there: {left}\n{self.text}"
            time.sleep(0.05)
        return code

    def processes(self) -> list[int]:
        """The job's processes, whoever is their parent by now."""
        found = []
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in environment.read_bytes():
                    found.append(int(environment.parent.name))
        return found


def start_under_open_mpi(program: str, arguments: list[str], size: int, log: Path, **others: str) -> LaunchedJob:
    """The same under Open MPI's mpiexec, which starts and ends the ranks itself."""
    mark = f"MCR_TEST_JOB={uuid.uuid4()}"
    name, _, value = mark.partition("=")
    path = str(PROGRAMS / f"{program}.py")
    variables = {name: value, "MCR_DL_TUNING_TABLE": "none", **others}
    (launcher,) = launchers.start("mpiexec-openmpi", size, [path, *arguments], log, variables)
    return LaunchedJob(launcher, log, mark)
