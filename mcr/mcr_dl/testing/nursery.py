# SPDX-License-Identifier: Apache-2.0
"""Starts ranks for jobs that end: forked from a process that has imported mcr_dl, which saves each one seconds.

Run as a program, it is that process; ``Nursery`` starts it and asks it for ranks. A rank runs a program file as
``__main__`` and ends like any Python process, including its exit handlers, up to the point where only memory is freed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcr_dl.base import documents
from mcr_dl.measure.ranks import environments
from mcr_dl.testing.pool import without_launcher

__all__ = ["Child", "Nursery"]

_FULL_EXIT = "--full-exit"
_ANSWER_SECONDS = 120.0  # the first answer comes after the import of torch
_PATIENCE = 15.0  # seconds in which DataLoader's workers, for one, notice that their process has ended


@dataclass
class Child:
    """One process: its exit code (negative: the signal) once it has ended, and its output."""

    pid: int
    output: Path
    code: int | None = None
    ended: float | None = None  # when the end was seen, on time.monotonic()

    @property
    def text(self) -> str:
        """The output so far."""
        return self.output.read_text(errors="replace")


@dataclass
class Nursery:
    """Starts and watches children. A context manager; none of them is left at its end.

    ``path``: folders from which the programs import modules. ``full_exit``: the programs also run the last part of
    Python's end, after all exit handlers, in which torch frees its memory: that takes a second of a core.
    """

    path: Sequence[Path] = ()
    full_exit: bool = False
    children: dict[int, Child] = field(default_factory=dict)

    def __enter__(self) -> Nursery:
        self.folder = tempfile.TemporaryDirectory(prefix="mcr-ranks-")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mcr_dl.testing.nursery", *([_FULL_EXIT] if self.full_exit else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment(),
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        self.folder.cleanup()

    def _environment(self) -> dict[str, str]:
        """One computing thread for each rank, as ranks share the cores; no measurement at the start."""
        path = os.pathsep.join(filter(None, [*map(str, self.path), os.environ.get("PYTHONPATH", "")]))
        own = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "MCR_DL_TUNING_TABLE": "none"}
        return {**without_launcher(), **({"PYTHONPATH": path} if path else {}), **own}

    def left(self, patience: float = _PATIENCE) -> dict[int, str]:
        """Return processes that ended children have started, and that are still there ``patience`` seconds later.

        Children that have not ended may have processes. The result has the names of the commands by process ID.
        """
        deadline = time.monotonic() + patience
        while True:
            self._send({})
            self._receive()
            found = _members({child.pid for child in self.children.values() if child.code is not None})
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    def clear(self) -> None:
        """End the remaining children, and processes that children have left; AssertionError if one goes on."""
        children = list(self.children.values())
        try:
            self._kill(children)
            ended = self.wait(children, _PATIENCE)
            assert ended, f"no exit code of {[child.pid for child in children if child.code is None]} after SIGKILL"
        finally:
            self.children.clear()

    def _kill(self, children: list[Child]) -> None:
        """End the processes of the children's sessions, and children that have no session of their own yet."""
        left = {child.pid for child in children if child.code is None}
        sessions = {child.pid for child in children}
        deadline = time.monotonic() + _PATIENCE
        while left := left | set(_members(sessions)):
            assert time.monotonic() < deadline, f"still there {_PATIENCE:.0f} s after SIGKILL: {sorted(left)}"
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            left = set()
            time.sleep(0.01)

    def start(self, program: Path, arguments: list[str], variables: dict[str, str]) -> Child:
        """Start one process of the program."""
        output = Path(self.folder.name) / f"{time.monotonic_ns()}"
        output.touch()
        self._send({"program": str(program), "arguments": arguments, "variables": variables, "output": str(output)})
        while (pid := self._receive().get("started")) is None:
            pass
        self.children[pid] = Child(pid, output)
        return self.children[pid]

    def ranks(self, program: Path, arguments: list[str], size: int, **variables: str) -> list[Child]:
        """Start the ranks of one job; rank 0 holds the store, unless the variables name one."""
        return [self.start(program, arguments, {**each, **variables}) for each in environments(size, {}).values()]

    def wait(self, children: list[Child], limit: float) -> bool:
        """Wait until all of these have ended; False if the time runs out first."""
        deadline = time.monotonic() + limit
        while any(child.code is None for child in children):
            if time.monotonic() > deadline:
                return False
            self._send({})
            self._receive()
            time.sleep(0.02)
        return True

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _ANSWER_SECONDS)[0]:
            raise TimeoutError(f"expected an answer of the nursery within {_ANSWER_SECONDS:.0f} s, got none")
        message: dict[str, Any] = documents.parse(self._process.stdout.readline(), "an answer of the nursery")
        for pid, code in message["ended"]:
            if pid in self.children:
                self.children[pid].code = code
                self.children[pid].ended = time.monotonic()
        return message


def _members(sessions: set[int]) -> dict[int, str]:
    """The processes of these sessions that have not ended, with the names of their commands."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            name, _, rest = path.read_text(errors="replace").partition("(")[2].rpartition(")")
            state, _, _, session = rest.split()[:4]
            if state not in ("Z", "X") and int(session) in sessions:
                found[int(path.parent.name)] = name
    return found


# ---- the process that forks


def _become(message: dict[str, Any]) -> None:
    """In the child: set up the state of a separate process."""
    os.setsid()
    output = os.open(message["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests' parent may ignore it
    os.environ.update(message["variables"])
    sys.argv = [message["program"], *message["arguments"]]


def _ended() -> list[tuple[int, int]]:
    found = []
    with contextlib.suppress(ChildProcessError):
        while (result := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((result[0], os.waitstatus_to_exitcode(result[1])))
    return found


def _serve() -> str | None:
    """Fork a child for every request; in the child, return its program."""
    import mcr_dl  # noqa: F401  what takes the time

    for line in sys.stdin:
        message = documents.parse(line, "a request to the nursery")
        pid = os.fork() if message else 0
        if message and pid == 0:
            _become(message)
            return str(message["program"])
        answer = {"ended": _ended(), **({"started": pid} if message else {})}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return None


_LIBC = ctypes.PyDLL(None)
_END = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(lambda code, _: os._exit(code))


def _run(program: str) -> None:
    """Run the program and end the process as Python does, until the exit handlers of both have run: Python's, and C's
    that the program has registered."""
    _LIBC.on_exit(_END, None)  # C's handlers run in reverse order: those of torch do not
    code = 0
    try:
        runpy.run_path(program, run_name="__main__")
    except KeyboardInterrupt:
        raise  # Python ends the process by the signal
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__  # as Python does
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are not daemons
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    _LIBC.exit(code)


if __name__ == "__main__":
    _full_exit = _FULL_EXIT in sys.argv
    _program = _serve()
    if _program is not None:
        sys.path.insert(0, str(Path(_program).parent))  # as Python does
        if _full_exit:
            runpy.run_path(_program, run_name="__main__")
        else:
            _run(_program)
