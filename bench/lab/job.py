# SPDX-License-Identifier: Apache-2.0
"""A program that runs as every rank of a lab: its output, its exit codes, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_POLL_SECONDS = 0.05
_TERM_SECONDS = 3.0
_KEPT_LINES = 5000

Sink = Callable[[int, str], None]


@dataclass(frozen=True)
class Result:
    """How a job ended. `codes`: exit code by rank, the negated signal if one has ended it.

    `failed` is the rank that failed first, None if none failed by itself. `ended` are the ranks that the lab ended:
    after the grace time of a failure, or at the time limit. `hosts` has each rank's host.
    """

    codes: dict[int, int]
    failed: int | None
    ended: tuple[int, ...]
    timed_out: bool
    seconds: float
    hosts: dict[int, int]

    @property
    def ok(self) -> bool:
        """Whether every rank ended by itself, with 0."""
        return not self.timed_out and not any(self.codes.values())

    def text(self) -> str:
        """One line on how it ended."""
        if self.ok:
            return f"{len(self.codes)} ranks, {self.seconds:.1f} s"
        names = ", ".join(f"rank {rank} (host {self.hosts[rank]})" for rank in self.ended)
        if self.timed_out:
            return f"not ready after {self.seconds:.0f} s; ended: {names}"
        assert self.failed is not None
        code = self.codes[self.failed]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
        text = f"rank {self.failed} (host {self.hosts[self.failed]}) {how}"
        return f"{text}; ended after it: {names}" if names else text


class Job:
    """Running ranks. The reading threads live as long as the ranks' output is open."""

    def __init__(self, processes: Mapping[int, subprocess.Popen[bytes]], hosts: Mapping[int, int], sink: Sink) -> None:
        self.processes = dict(processes)
        self.hosts = dict(hosts)
        self._sink = sink
        self._begin = time.monotonic()
        self._failed: int | None = None
        self._output = {rank: deque[str](maxlen=_KEPT_LINES) for rank in self.processes}
        self._readers = [threading.Thread(target=self._read, args=(rank,), daemon=True) for rank in self.processes]
        for reader in self._readers:
            reader.start()

    def _read(self, rank: int) -> None:
        pipe = self.processes[rank].stdout
        assert pipe is not None
        with pipe, contextlib.suppress(OSError, ValueError):
            for line in pipe:
                text = line.decode(errors="replace").rstrip("\r\n")
                self._output[rank].append(text)
                self._sink(rank, text)

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by rank: the program's own, as the commands before it exec it."""
        return {rank: process.pid for rank, process in self.processes.items()}

    def output(self, rank: int) -> str:
        """The last lines of what a rank has written so far."""
        return "\n".join(list(self._output[rank]))

    def running(self) -> list[int]:
        """The ranks that have not ended; records the first that failed."""
        left = []
        for rank, process in self.processes.items():
            code = process.poll()
            if code is None:
                left.append(rank)
            elif code != 0 and self._failed is None:
                self._failed = rank
        return left

    def wait(self, limit: float, grace: float | None = 5.0) -> Result:
        """Wait for the end of all ranks, at most `limit` seconds from now; then end the remaining ones.

        After a failure the other ranks get `grace` seconds, as they might wait for the failed one forever (None: no
        limit).
        """
        end, timed_out = time.monotonic() + limit, False
        ended: tuple[int, ...] = ()
        while left := self.running():
            now = time.monotonic()
            if self._failed is not None and grace is not None:
                end, grace = min(end, now + grace), None
            if now >= end:
                ended, timed_out = tuple(left), self._failed is None
                self.kill()
                break
            time.sleep(_POLL_SECONDS)
        for reader in self._readers:
            reader.join(1.0)  # a grandchild may hold the pipe
        codes = {rank: process.wait() for rank, process in self.processes.items()}
        seconds = time.monotonic() - self._begin
        return Result(codes, self._failed, ended, timed_out, seconds, self.hosts)

    def kill(self) -> None:
        """End the remaining ranks: by SIGTERM first, then by SIGKILL."""
        self._signal(signal.SIGTERM)
        end = time.monotonic() + _TERM_SECONDS
        while any(process.poll() is None for process in self.processes.values()) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        self._signal(signal.SIGKILL)
        for process in self.processes.values():
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
