# SPDX-License-Identifier: Apache-2.0
"""The device that is checked, and the host in its place for a rehearsal: the same methods, all complete at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch


class Cuda:
    """The current CUDA device."""

    kind = "cuda"
    real = True

    def __init__(self) -> None:
        self._cycles_per_ms = 0.0

    def stream(self) -> Any:
        """A stream of its own."""
        return torch.cuda.Stream()

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        """Makes a stream current."""
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def current(self) -> Any:
        return torch.cuda.current_stream()

    def handle(self, stream: Any) -> int:
        """The cudaStream_t."""
        return int(stream.cuda_stream)

    def event(self) -> Any:
        """With timing; has record(), synchronize() and elapsed_time(end) in ms."""
        return torch.cuda.Event(enable_timing=True)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def sleep(self, milliseconds: float) -> None:
        """Keeps the current stream busy for about so long, and not the host."""
        if not self._cycles_per_ms:
            cycles = 20_000_000
            torch.cuda._sleep(cycles)  # the first one loads the kernel
            begin, end = self.event(), self.event()
            begin.record()
            torch.cuda._sleep(cycles)
            end.record()
            end.synchronize()
            self._cycles_per_ms = cycles / max(1e-3, begin.elapsed_time(end))
        torch.cuda._sleep(int(milliseconds * self._cycles_per_ms))

    def capture(self, calls: Callable[[], object]) -> Callable[[], object]:
        """Records the calls into a graph; what replays it. The calls have run before, as graphs want it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            calls()
        replay: Callable[[], object] = graph.replay
        return replay

    def capture_beside(self, calls: Callable[[], object]) -> Callable[[], object]:
        """The same, but the device goes on with what it was given before, for which torch.cuda.graph() waits. A call
        of another thread that is not allowed beside a capture spoils it.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin(capture_error_mode="global")
            calls()
            graph.capture_end()
        replay: Callable[[], object] = graph.replay
        return replay


class _Moment:
    def __init__(self) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """It has passed."""

    def elapsed_time(self, end: _Moment) -> float:
        return (end.at - self.at) * 1000


class Host:
    """Host memory, where everything is complete when a call returns. What it shows is no result."""

    kind = "cpu"
    real = False

    def stream(self) -> Any:
        return None

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        del stream
        return contextlib.nullcontext()

    def current(self) -> Any:
        return None

    def handle(self, stream: Any) -> int:
        del stream
        return 0

    def event(self) -> Any:
        return _Moment()

    def synchronize(self) -> None:
        """Nothing is under way."""

    def sleep(self, milliseconds: float) -> None:
        del milliseconds

    def capture(self, calls: Callable[[], object]) -> Callable[[], object]:
        return calls

    def capture_beside(self, calls: Callable[[], object]) -> Callable[[], object]:
        return calls


Device = Cuda | Host


def of(kind: str) -> Device:
    """The device of a kind, "cuda" or "cpu"."""
    return Cuda() if kind == "cuda" else Host()
