# SPDX-License-Identifier: Apache-2.0
"""Ranks on this machine that their parent can end at once."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.distributed import TCPStore

from mcr_dl.base import launcher
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.measure._rank import die_with
from mcr_dl.measure.start import own_core

__all__ = ["LocalRanks", "bind", "die_with", "environments", "free_port", "launched", "orderly_end", "run_local"]

_GRACE_SECONDS = 5.0  # for the other ranks after one has failed
_POLL_SECONDS = 0.05
_HOST = "127.0.0.1"


def launched() -> bool:
    """Whether torchrun, mpiexec or srun started this process, so that it already is a rank."""
    return launcher.detect().launcher != "none"


def bind() -> bool:
    """Bind this thread to a core of its own, if each rank of this host can have one; returns whether it did.

    Libraries that sleep while they wait are woken on any convenient core, often the other rank's; candidates that are
    measured after them would then share it for milliseconds. Existing threads stay free; new threads inherit the
    core, so use this only for blocking calls. Raises NotInitializedError before the runtime has started.
    """
    core = own_core()
    if core is None:
        return len(os.sched_getaffinity(0)) == 1
    os.sched_setaffinity(0, {core})
    return True


def free_port() -> int:
    """A port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def environments(ranks: int, extra: Mapping[str, str], port: int | None = None) -> dict[int, dict[str, str]]:
    """The variables that torchrun sets, for each rank; one computing thread each unless the user says otherwise.

    The ranks meet at `port` of this host, by default one on which no process listens now.
    """
    common = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        **extra,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": _HOST,
        "MASTER_PORT": str(free_port() if port is None else port),
    }
    return {rank: {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)}


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise SystemExit in the block, so that it cleans up as after an error.

    A second signal does not interrupt the cleanup. Changes nothing outside the main thread, or if another handler is
    set.
    """

    def leave(number: int, frame: object) -> None:
        del frame
        for each in mine:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    main = threading.current_thread() is threading.main_thread()
    mine = [each for each in (signal.SIGTERM, signal.SIGHUP) if main and signal.getsignal(each) == signal.SIG_DFL]
    for each in mine:
        signal.signal(each, leave)
    try:
        yield
    finally:
        for each in mine:
            signal.signal(each, signal.SIG_DFL)


class LocalRanks:
    """Running ranks. As a context manager it ends the remaining ranks when the block ends, also on Ctrl-C and SIGTERM.

    The system kills the ranks if their parent dies, or the thread that started them ends.
    """

    def __init__(self, folder: tempfile.TemporaryDirectory[str]) -> None:
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        """The processes by rank. Each leads a session of its own."""
        self.first_failure: tuple[int, int] | None = None
        """The first rank that `wait` has seen fail, and its exit code. Ranks that are killed later are not at fault."""
        self._folder = folder
        # Served here, as by torchrun's agent: another process could take a port that a rank is to listen on.
        self.store = TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
        self._killing = float("inf")  # time at which the others are killed after a failure
        self._stack = contextlib.ExitStack()

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by rank."""
        return {rank: process.pid for rank, process in self.processes.items()}

    def exit_codes(self) -> dict[int, int | None]:
        """Exit codes by rank; None while a rank runs, the negated signal if one has ended it."""
        return {rank: process.poll() for rank, process in self.processes.items()}

    def _seen_to_end(self) -> bool:
        codes = self.exit_codes()
        if self.first_failure is None:
            self.first_failure = next(((rank, code) for rank, code in codes.items() if code), None)
            if self.first_failure is not None:
                self._killing = time.monotonic() + _GRACE_SECONDS
        return None not in codes.values()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all ranks have ended, for at most `timeout` seconds; returns whether they have.

        When a rank has failed, the others get 5 seconds before they are killed: they might wait for it forever.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        while not self._seen_to_end():
            now = time.monotonic()
            if now >= self._killing:
                self.kill()
            elif now >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def kill(self) -> None:
        """Kill the remaining ranks, and the processes in their process groups, at once."""
        for rank, code in self.exit_codes().items():
            if code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.processes[rank].pid, signal.SIGKILL)
        for process in self.processes.values():
            process.wait()

    def close(self) -> None:
        """Kill the remaining ranks and remove their folder."""
        self.kill()
        self._folder.cleanup()

    def __enter__(self) -> LocalRanks:
        self._stack.enter_context(orderly_end())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            self.close()


def run_local(
    entry: Callable[..., Any],
    args: tuple[Any, ...] = (),
    ranks: int = 2,
    *,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> LocalRanks:
    """Start `ranks` processes here that call ``entry(*args)``; if it returns an int, that is the exit code.

    Args:
        entry: a function of an importable module.
        args: arguments that pickle can carry.
        environment: additional variables for the ranks.
        log: a folder for ``<rank>.out`` and ``<rank>.err``; by default the ranks write to this process's streams.

    Raises:
        InvalidArgumentError: fewer than one rank, or a function that another process cannot import.
        OSError: no folder for temporary files or for ``log``, or no process; those that have started are killed.
    """
    if ranks < 1:
        message = f"ranks: expected at least 1, got {ranks}"
        raise InvalidArgumentError(message)
    if entry.__module__ == "__main__":
        message = f"entry: expected a function of an importable module, got {entry.__qualname__} of __main__"
        raise InvalidArgumentError(message)
    folder = tempfile.TemporaryDirectory(prefix="mcr-ranks-", ignore_cleanup_errors=True)
    running = LocalRanks(folder)
    try:
        call = Path(folder.name, "call.pickle")
        call.write_bytes(pickle.dumps(sys.path) + pickle.dumps((entry, args)))
        command = [sys.executable, str(Path(__file__).with_name("_rank.py")), str(call), str(os.getpid())]
        given = {**(environment or {}), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        for rank, variables in environments(ranks, given, running.store.port).items():
            running.processes[rank] = _started(rank, command, variables, log)
    except BaseException:
        running.close()
        raise
    return running


def _started(rank: int, command: list[str], variables: Mapping[str, str], log: Path | None) -> subprocess.Popen[bytes]:
    with contextlib.ExitStack() as files:  # the rank has descriptors of its own
        out = err = None
        if log is not None:
            log.mkdir(parents=True, exist_ok=True)
            out, err = (files.enter_context((log / f"{rank}.{name}").open("wb")) for name in ("out", "err"))
        environment = {**os.environ, **variables}
        return subprocess.Popen(command, env=environment, stdout=out, stderr=err, start_new_session=True)
