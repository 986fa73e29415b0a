# SPDX-License-Identifier: Apache-2.0
"""Ranks of mcr-tune in which gloo misbehaves: the tuner must notice, kill them, and continue without it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mcr_dl
from mcr_dl import _C
from mcr_dl.base import launcher
from mcr_dl.measure.cases import Prepared
from mcr_dl.tuning import cli, worker
from mcr_dl.tuning._journal import Plan, Progress, Unit


def _hang(_: Prepared) -> None:
    time.sleep(1000)


def _crash(_: Prepared) -> None:
    if launcher.detect().rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(1000)


def _stuck(_: Prepared) -> None:
    if launcher.detect().rank == 0:
        _C.barrier(backend="mpi")  # which returns only once rank 1 has joined it
    time.sleep(1000)


def _wrong(prepared: Prepared) -> None:
    if prepared.tensors.output is not None and launcher.detect().rank == 0:
        prepared.tensors.output[-1] += 1


def _slow(_: Prepared) -> None:
    time.sleep(0.15)


_FAULTS: dict[str, Callable[[Prepared], None]] = {
    "hang": _hang,
    "crash": _crash,
    "stuck": _stuck,
    "wrong": _wrong,
    "slow": _slow,
}


def spoil(fault: str, operation: str, after: int, codec: str = "", everywhere: bool = False) -> None:
    """Let the blocking `operation` of gloo, or of all, fail in one way from call number `after` on."""

    def spoilt(*arguments: Any) -> Prepared:
        prepared = Prepared(*arguments)
        case = prepared.case
        whose = everywhere or prepared.candidate == "gloo"
        if whose and (case.operation, case.codec, case.asynchronous) == (operation, codec, False):
            inner, calls = prepared.call, 0

            def call() -> None:
                nonlocal calls
                calls += 1
                inner()
                if calls > after:
                    _FAULTS[fault](prepared)

            prepared.call = call
        return prepared

    worker.Prepared = spoilt  # type: ignore[assignment,misc]


def faulty(
    fault: str,
    operation: str,
    after: int,
    plan: Plan,
    progress: Progress,
    journal: Path,
    limit: float,
    codec: str = "",
) -> int:
    """worker.work() with such a fault."""
    spoil(fault, operation, after, codec)
    return worker.work(plan, progress, journal, limit)


def all_gather_hangs(*arguments: Any) -> int:
    """At the first call, which is the check of its result."""
    return faulty("hang", "all_gather", 0, *arguments)


def all_gather_crashes(*arguments: Any) -> int:
    """At the first call."""
    return faulty("crash", "all_gather", 0, *arguments)


def all_gather_is_wrong(*arguments: Any) -> int:
    """At every call."""
    return faulty("wrong", "all_gather", 0, *arguments)


def compressed_all_gather_is_wrong(*arguments: Any) -> int:
    """At every call with bf16."""
    return faulty("wrong", "all_gather", 0, *arguments, codec="bf16")


def all_gather_is_wrong_everywhere(*arguments: Any) -> int:
    """On every candidate."""
    spoil("wrong", "all_gather", 0, everywhere=True)
    return worker.work(*arguments)


def all_gather_hangs_later(*arguments: Any) -> int:
    """While it is timed with the others."""
    return faulty("hang", "all_gather", 5, *arguments)


def all_gather_is_slow(*arguments: Any) -> int:
    """At every call, as a large one over a slow network."""
    return faulty("slow", "all_gather", 0, *arguments)


def dies_at_the_end(*arguments: Any) -> int:
    """As a library that crashes when it ends."""
    worker.work(*arguments)
    os._exit(3)


def never_starts(*_: Any) -> int:
    """A backend that ends the process before anything is measured."""
    raise RuntimeError("no such device\n  device\n  ^")


def with_passes(*arguments: Any) -> int:
    """Fails if calls go through passes."""
    check = worker.Worker.run

    def run(self: worker.Worker) -> None:
        assert not _C.passes(self.group), mcr_dl.get_passes()
        check(self)

    worker.Worker.run = run  # type: ignore[method-assign]
    return worker.work(*arguments)


def on_cores(*arguments: Any) -> int:
    """Fails if a blocking call is measured on several cores, or if a thread of asynchronous calls is bound to one."""
    cores, measure = os.sched_getaffinity(0), worker.Worker.unit

    def unit(self: worker.Worker, unit: Unit) -> None:
        measure(self, unit)
        assert self.bound == (len(os.sched_getaffinity(0)) == 1) or unit.async_op
        for task in {*map(int, os.listdir("/proc/self/task"))} - {os.getpid()}:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                assert os.sched_getaffinity(task) == cores, unit

    worker.Worker.unit = unit  # type: ignore[method-assign]
    return worker.work(*arguments)


if __name__ == "__main__":  # mcr-tune in ranks of a launcher, by default one that crashes
    spoil(os.environ.get("FAULT", "crash"), "all_gather", 0)
    sys.exit(cli.main(sys.argv[1:]))
