# SPDX-License-Identifier: Apache-2.0
"""The controller's side: starts ranks, gives them functions to run, and shows where each rank is when one hangs."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

from harness import launchers, position

_START_SECONDS = 90.0
_GRACE_SECONDS = 5.0  # for the other ranks' answers after one has failed
_TAIL = 4000


class RankFailure(AssertionError):
    """A function failed, hung or died on some ranks; the text has each rank's answer or position."""


class Pool:
    """The ranks of one job, started by one launcher."""

    def __init__(self, launcher: str, size: int) -> None:
        self.launcher = launcher
        self.size = size
        self.folder = Path(tempfile.mkdtemp(prefix="mcr-test-"))
        self._connections: dict[int, Connection] = {}
        self._pids: dict[int, int] = {}
        key = secrets.token_hex(16)
        self._listener = Listener(str(self.folder / "socket"), "AF_UNIX", backlog=size, authkey=key.encode())
        variables = {"MCR_TEST_FOLDER": str(self.folder), "MCR_TEST_KEY": key, "MCR_DL_TUNING_TABLE": "none"}
        self._processes = launchers.start(launcher, size, ["-m", "harness.worker"], self.folder / "log", variables)
        try:
            self._accept()
        except BaseException:
            self.kill()
            raise

    def _accept(self) -> None:
        arrived: queue.Queue[Connection] = queue.Queue()

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
        return f"{self.size} ranks under {self.launcher}"

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
            connection.send((function.__module__, function.__name__, args))
        answers: dict[int, tuple[bool, Any]] = {}
        deadline = time.monotonic() + limit
        while len(answers) < self.size and time.monotonic() < deadline:
            waiting = {c: r for r, c in self._connections.items() if r not in answers}
            for connection in wait(list(waiting), timeout=max(0.0, deadline - time.monotonic())):
                answer = self._receive(connection)  # type: ignore[arg-type]
                answers[waiting[connection]] = answer  # type: ignore[index]
                if not answer[0]:
                    deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        if len(answers) == self.size and all(good for good, _ in answers.values()):
            return [answers[rank][1] for rank in range(self.size)]
        text = self._report(function, answers, limit)
        self.kill()
        raise RankFailure(text)

    def _receive(self, connection: Connection) -> tuple[bool, Any]:
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
        for pid in [*self._pids.values(), *(process.pid for process in left)]:
            if left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        for process in left:
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


class Pools:
    """The session's pools by launcher and size; only a few live at a time, as every rank holds a complete torch."""

    _LIMIT = 5

    def __init__(self) -> None:
        self._pools: dict[tuple[str, int], Pool] = {}

    def get(self, launcher: str, size: int) -> Pool:
        """The living pool of that kind, or a new one."""
        key = (launcher, size)
        pool = self._pools.pop(key, None)
        if pool is None or not pool.alive:
            while len(self._pools) >= self._LIMIT:
                self._pools.pop(next(iter(self._pools))).close()
            pool = Pool(launcher, size)
        self._pools[key] = pool
        return pool

    def close(self) -> None:
        """End all of them."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
