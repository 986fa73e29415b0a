# SPDX-License-Identifier: Apache-2.0
"""The device under test, and the host in its place for a rehearsal: the same methods, all complete at once."""

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
        """A new stream."""
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream current."""
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def current(self) -> Any:
        return torch.cuda.current_stream()

    def handle(self, stream: Any) -> int:
        """The cudaStream_t."""
        return int(stream.cuda_stream)

    def event(self) -> Any:
        """An event with timing; has record(), synchronize() and elapsed_time(end) in ms."""
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def sleep(self, milliseconds: float) -> None:
        """Keep the current stream, but not the host, busy for about this long."""
        spin: Callable[[int], None] = torch.cuda._sleep
        if not self._cycles_per_ms:
            cycles = 20_000_000
            spin(cycles)  # the first one loads the kernel
            begin, end = self.event(), self.event()
            begin.record()
            spin(cycles)
            end.record()
            end.synchronize()
            self._cycles_per_ms = cycles / max(1e-3, begin.elapsed_time(end))
        spin(int(milliseconds * self._cycles_per_ms))

    def capture(self, calls: Callable[[], object]) -> Callable[[], object]:
        """Record the calls into a graph; returns a function that replays it. The calls must have run before."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            calls()
        replay: Callable[[], object] = graph.replay
        return replay

    def capture_concurrently(self, calls: Callable[[], object]) -> Callable[[], object]:
        """As ``capture``, but the device continues with earlier work, for which torch.cuda.graph() would wait. A call
        of another thread that is not allowed during a capture breaks it.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
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
        """Wait for the device."""

    def elapsed_time(self, end: _Moment) -> float:
        return (end.at - self.at) * 1000


class Host:
    """Host memory, where everything is complete when a call returns. Its results prove nothing."""

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
        """Return at once: nothing is pending."""

    def sleep(self, milliseconds: float) -> None:
        del milliseconds

    def capture(self, calls: Callable[[], object]) -> Callable[[], object]:
        return calls

    def capture_concurrently(self, calls: Callable[[], object]) -> Callable[[], object]:
        return calls


Device = Cuda | Host


def of(kind: str) -> Device:
    """The device of a kind, "cuda" or "cpu"."""
    return Cuda() if kind == "cuda" else Host()
