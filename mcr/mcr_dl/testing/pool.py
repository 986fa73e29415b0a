# SPDX-License-Identifier: Apache-2.0
"""Ranks that live on: starts them, gives them functions to run, and shows where each rank is when one hangs.

pool = Pool(3)
results = pool.run(function_of_a_module, argument, limit=60)
pool.close()
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

from mcr_dl.measure.ranks import environments
from mcr_dl.testing import position

_START_SECONDS = 90.0
_GRACE_SECONDS = 5.0  # for the other ranks' answers after one has failed
_TAIL = 4000


# Starts so many ranks of ``python ARGUMENTS...`` with these additional variables; their output goes to the file.
Start = Callable[[int, Sequence[str], Path, dict[str, str]], list[subprocess.Popen[bytes]]]


# Variables that a launcher around this process may have set: ranks must see only their own launcher.
_FOREIGN = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "PMI",
    "OMPI_",
    "PRTE_",
    "SLURM_",
    "TORCHELASTIC",
    "MCR_DL_MPI_INTERRUPTIBLE",
    "MCR_DL_MPI_LIB",
    "MCR_DL_MPI_STREAMS",
    "MCR_DL_MPI_THREAD_LEVEL",
    "MCR_DL_NCCL_LANES",
    "MCR_DL_NCCL_LIB",
)


def without_launcher() -> dict[str, str]:
    """This environment without the variables of launchers, and of the libraries that were chosen for them."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}


def start_all(commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], log: Path) -> list[subprocess.Popen[bytes]]:
    """Start commands with their environments, in sessions of their own; their output goes to the file."""
    with open(log, "ab") as output:
        return [
            subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for command, environment in commands
        ]


def local(size: int, arguments: Sequence[str], log: Path, variables: dict[str, str]) -> list[subprocess.Popen[bytes]]:
    """Start the ranks as processes of this machine, which end with this process."""
    given = {**os.environ, "PYTHONUNBUFFERED": "1", **variables, "MCR_TEST_PARENT": str(os.getpid())}
    command = [sys.executable, *arguments]
    return start_all([(command, {**given, **own}) for own in environments(size, {}).values()], log)


class RankFailure(AssertionError):
    """A function failed, hung or died on some ranks; the text has each rank's answer or position."""


class Pool:
    """The ranks of one job. By default they are processes of this machine; ``start`` may use any launcher."""

    def __init__(self, size: int, start: Start = local, title: str = "") -> None:
        """``title`` names the pool in the texts of failures."""
        self.size = size
        self.title = title or f"{size} local ranks"
        self.folder = Path(tempfile.mkdtemp(prefix="mcr-test-"))
        self._connections: dict[int, Connection[Any, Any]] = {}
        self._pids: dict[int, int] = {}
        key = secrets.token_hex(16)
        self._listener = Listener(str(self.folder / "socket"), "AF_UNIX", backlog=size, authkey=key.encode())
        variables = {"MCR_TEST_FOLDER": str(self.folder), "MCR_TEST_KEY": key, "MCR_DL_TUNING_TABLE": "none"}
        self._processes = start(size, ["-m", "mcr_dl.testing.worker"], self.folder / "log", variables)
        try:
            self._accept()
        except BaseException:
            self.kill()
            raise

    def _accept(self) -> None:
        arrived: queue.Queue[Connection[Any, Any]] = queue.Queue()

        def listen() -> None:
            with contextlib.suppress(OSError, EOFError):
                for _ in range(self.size):
                    arrived.put(self._listener.accept())

        threading.Thread(target=listen, daemon=True).start()
        deadline = time.monotonic() + _START_SECONDS
        while len(self._connections) < self.size:
            try:
                connection = arrived.get(timeout=0.2)
            except queue.Empty:
                ended = [process.returncode for process in self._processes if process.poll() is not None]
                if ended or time.monotonic() > deadline:
                    raise RankFailure(f"{self}: ranks did not start (ended: {ended})\n{self.log()}") from None
                continue
            rank, self._pids[rank] = connection.recv()
            self._connections[rank] = connection

    def __str__(self) -> str:
        return self.title

    def log(self) -> str:
        """The end of what the ranks printed."""
        with contextlib.suppress(OSError):
            return (self.folder / "log").read_text(errors="replace")[-_TAIL:]
        return ""

    def run(self, function: Callable[..., Any], *args: Any, limit: float = 120.0) -> list[Any]:
        """Run a function of an importable module on every rank; the results in rank order.

        Raises RankFailure if it raises or dies on any rank or takes longer than `limit` seconds; the pool then ends.
        """
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # the process has died; its answer says so
                connection.send((function.__module__, function.__name__, args))
        answers: dict[int, tuple[bool, Any]] = {}
        deadline = time.monotonic() + limit
        while len(answers) < self.size and time.monotonic() < deadline:
            waiting = {rank: each for rank, each in self._connections.items() if rank not in answers}
            ready = wait(waiting.values(), timeout=max(0.0, deadline - time.monotonic()))
            for rank, connection in waiting.items():
                if connection not in ready:
                    continue
                answers[rank] = self._receive(connection)
                if not answers[rank][0]:
                    deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        if len(answers) == self.size and all(good for good, _ in answers.values()):
            return [answers[rank][1] for rank in range(self.size)]
        text = self._report(function, answers, limit)
        self.kill()
        raise RankFailure(text)

    def _receive(self, connection: Connection[Any, Any]) -> tuple[bool, Any]:
        try:
            answer: tuple[bool, Any] = connection.recv()
        except (EOFError, OSError):
            return False, "the process died"
        return answer

    def _report(self, function: Callable[..., Any], answers: dict[int, tuple[bool, Any]], limit: float) -> str:
        lines = [f"{function.__module__}.{function.__name__} on {self} (limit {limit:.0f} s)"]
        missing = [rank for rank in range(self.size) if rank not in answers]
        positions = self.positions(missing)
        self._native_stacks(missing)
        for rank in range(self.size):
            if rank in positions:
                lines.append(f"--- rank {rank} did not answer; it is at:\n{positions[rank]}")
            elif answers[rank][0]:
                lines.append(f"--- rank {rank}: ok")
            else:
                lines.append(f"--- rank {rank} failed; {answers[rank][1]}")
        log = self.log()
        return "\n".join([*lines, f"--- the ranks' output:\n{log}" if log else ""])

    def _native_stacks(self, ranks: list[int]) -> None:
        """Append the native stacks of these ranks to the file that MCR_TEST_STACKS names; needs gdb."""
        if "MCR_TEST_STACKS" not in os.environ:
            return
        with open(os.environ["MCR_TEST_STACKS"], "a") as file:
            subprocess.run(["ss", "-tnpmoi"], stdout=file, stderr=file, check=False)
            subprocess.run(["cat", "/proc/net/netstat"], stdout=file, stderr=file, check=False)
            for rank in ranks:
                print(f"--- rank {rank} of {self}", file=file, flush=True)
                command = ["gdb", "-batch", "-p", str(self._pids[rank]), "-ex", "thread apply all bt"]
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=120, check=False)

    def positions(self, ranks: list[int]) -> dict[int, str]:
        """Where each of these ranks is: its last note and the stacks of its threads."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pids[rank], signal.SIGUSR1)
        time.sleep(0.5 if ranks else 0)
        result = {}
        for rank in ranks:
            stacks = self.folder / f"stacks.{rank}"
            text = stacks.read_text(errors="replace") if stacks.exists() else ""
            result[rank] = f"last note: {position.read(self.folder, rank)}\n{text[-_TAIL:]}"
        return result

    def close(self) -> None:
        """Let the ranks finish by themselves; kill those that do not within some seconds."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.send(None)
        deadline = time.monotonic() + _GRACE_SECONDS
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End the remaining processes that this pool started."""
        left = [process for process in self._processes if process.poll() is None]
        # The ranks may be a launcher's. The numbers of processes that were waited for may be those of others by now.
        own = {process.pid for process in self._processes}
        for pid in self._pids.values() if left else ():
            if pid not in own:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        for process in left:
            process.kill()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def alive(self) -> bool:
        """Whether it can run another function."""
        return bool(self._connections)
