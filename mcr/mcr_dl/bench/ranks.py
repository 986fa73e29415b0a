# SPDX-License-Identifier: Apache-2.0
"""Ranks on this machine that their parent can end at once, started through torch's launcher API."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, SubprocessContext, start_processes

from mcr_dl.base import launcher
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.bench._rank import die_with
from mcr_dl.measure.start import own_core

__all__ = ["LocalRanks", "bind", "die_with", "environments", "free_port", "launched", "orderly_end", "run_local"]

_GRACE_SECONDS = 5.0  # for the other ranks after one has failed
_POLL_SECONDS = 0.05


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
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environments(ranks: int, extra: Mapping[str, str]) -> dict[int, dict[str, str]]:
    """The variables that torchrun sets, for each rank; one computing thread each unless the user says otherwise."""
    common = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        **extra,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    return {rank: {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)}


@contextlib.contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Restore the program's signal handlers, which torch's launcher replaces and does not put back."""
    names = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {name: signal.getsignal(name) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            with contextlib.suppress(ValueError):  # outside the main thread, where torch changes nothing either
                signal.signal(name, handler)


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

    def __init__(self, context: SubprocessContext, folder: tempfile.TemporaryDirectory[str]) -> None:
        self._context = context
        self._folder = folder
        self._first_failure: tuple[int, int] | None = None
        self._killing = float("inf")  # time at which the others are killed after a failure
        self._stack = contextlib.ExitStack()

    @property
    def first_failure(self) -> tuple[int, int] | None:
        """The first rank that `wait` has seen fail, and its exit code. Ranks that are killed later are not at fault."""
        return self._first_failure

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by rank."""
        return self._context.pids()

    def exit_codes(self) -> dict[int, int | None]:
        """Exit codes by rank; None while a rank runs, the negated signal if one has ended it."""
        return {rank: handler.proc.poll() for rank, handler in self._context.subprocess_handlers.items()}

    def poll(self) -> bool:
        """Whether all ranks have ended."""
        return None not in self.exit_codes().values()

    def _seen_to_end(self) -> bool:
        codes = self.exit_codes()
        if self._first_failure is None:
            self._first_failure = next(((rank, code) for rank, code in codes.items() if code), None)
            if self._first_failure is not None:
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
                    os.killpg(self.pids[rank], signal.SIGKILL)  # each rank leads its own session
        for handler in self._context.subprocess_handlers.values():
            handler.proc.wait()

    def close(self) -> None:
        """Kill the remaining ranks and remove the launcher's folder."""
        self.kill()
        self._context.close()
        for handler in self._context.subprocess_handlers.values():
            for stream in (handler._stdout, handler._stderr):  # torch closes them only where it kills the rank itself
                if stream is not None:
                    stream.close()
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
    """
    if ranks < 1:
        message = f"ranks: expected at least 1, got {ranks}"
        raise InvalidArgumentError(message)
    if entry.__module__ == "__main__":
        message = f"entry: expected a function of an importable module, got {entry.__qualname__} of __main__"
        raise InvalidArgumentError(message)
    folder = tempfile.TemporaryDirectory(prefix="mcr-ranks-", ignore_cleanup_errors=True)
    call = Path(folder.name, "call.pickle")
    call.write_bytes(pickle.dumps(sys.path) + pickle.dumps((entry, args)))
    arguments = (str(Path(__file__).with_name("_rank.py")), str(call), str(os.getpid()))
    logs = _Logs(log_dir=folder.name, redirects=Std.NONE if log is None else Std.ALL, to=log)
    with _signal_handlers_kept():
        context = start_processes(
            "mcr-ranks",
            sys.executable,
            dict.fromkeys(range(ranks), arguments),
            environments(ranks, environment or {}),
            logs,
        )
    assert isinstance(context, SubprocessContext)
    return LocalRanks(context, folder)


class _Logs(DefaultLogsSpecs):
    """torch's log files, with names that are known in advance."""

    def __init__(self, log_dir: str, redirects: Std, to: Path | None) -> None:
        super().__init__(log_dir=log_dir, redirects=redirects)
        self._to = to

    def reify(self, envs: dict[int, dict[str, str]]) -> Any:
        result = super().reify(envs)
        if self._to is not None:
            self._to.mkdir(parents=True, exist_ok=True)
            result.stdouts = {rank: str(self._to / f"{rank}.out") for rank in result.stdouts}
            result.stderrs = {rank: str(self._to / f"{rank}.err") for rank in result.stderrs}
        return result
