# SPDX-License-Identifier: Apache-2.0
"""Checks of streams, events, memory and graphs. Each check gets a Setting; it raises, or returns its measurements, or
raises NotRun with a reason. All ranks run all checks in one order: the checks of streams in this module, then those of
checks_memory, checks_types and checks_passes.

Where one rank must do work, checks use an all_gather into other memory: NCCL does nothing for an in-place all_reduce of
one rank. In a rehearsal on the host, the same lines run but nothing can be late, so that a rehearsal proves nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import mcr_dl
from gpu.device import Device

_COMPLETE_SECONDS = 5.0
LARGE = 16 << 20  # elements of float32
LATE_MS = 40.0  # how long streams are kept busy, so that a missing wait shows


class NotRun(Exception):
    """This check does not apply here; the text says why."""


@dataclass
class Setting:
    """The setting in which the checks run."""

    device: Device
    backend: str
    rank: int
    ranks: int

    def full(self, count: int, value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((count,), value, dtype=dtype, device=self.device.kind)

    @property
    def total(self) -> float:
        """The result of an all_reduce of ``rank + 1``."""
        return self.ranks * (self.ranks + 1) / 2

    def gather(self, target: torch.Tensor, source: torch.Tensor, **given: Any) -> Any:
        """all_gather_single on the backend that is checked; its Work if ``async_op=True`` is given."""
        return mcr_dl.all_gather_single(target, source, backend=self.backend, **given)

    def need_real(self) -> None:
        if not self.device.real:
            raise NotRun("needs a GPU")


Measured = dict[str, Any] | None
CHECKS: dict[str, Callable[[Setting], Measured]] = {}


def check(function: Callable[[Setting], Measured]) -> Callable[[Setting], Measured]:
    """Add a check to the list."""
    CHECKS[function.__name__] = function
    return function


def same(tensor: torch.Tensor, value: float, what: str) -> None:
    """Check that all elements are `value`; waits for the current stream."""
    found = tensor.double().cpu()
    bad = int((found != value).sum())
    assert bad == 0, (
        f"{what}: expected {value} everywhere, {bad} of {found.numel()} differ, first {found.flatten()[:4]}"
    )


def same_parts(at: Setting, gathered: torch.Tensor, part: Callable[[int], float], what: str) -> None:
    """Check that the part of each rank has that rank's value everywhere; waits for the current stream."""
    for rank, values in enumerate(gathered.double().cpu().flatten().tensor_split(at.ranks)):
        same(values, part(rank), f"{what}, the part of rank {rank}")


def rank_value(*, times: float = 1.0, more: float = 0.0) -> Callable[[int], float]:
    """For same_parts: the part of each rank holds ``(rank + 1) * times + more``."""
    return lambda rank: (rank + 1.0) * times + more


def soon_complete(at: Setting, work: Any, what: str) -> None:
    """Check that the work completes after the device does; not always at once, as another thread may poll it."""
    at.device.synchronize()
    end = time.monotonic() + _COMPLETE_SECONDS
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(1e-4)
    assert work.is_completed(), f"{what}: not complete"


# ---- streams


@check
def current_stream(at: Setting) -> None:
    """Blocking calls are ordered on the current stream, whichever it is, without blocking the host."""
    for stream in (at.device.current(), at.device.stream(), at.device.stream()):
        with at.device.use(stream):
            source, target = at.full(1001, -1.0), at.full(1001 * at.ranks, -2.0)
            at.device.sleep(LATE_MS / 4)
            source.fill_(at.rank + 1)
            at.gather(target, source)
            same_parts(at, target.clone(), lambda rank: rank + 1.0, "all_gather on the current stream")


@check
def waits_for_the_producer(at: Setting) -> None:
    """An asynchronous call sees earlier work on the current stream, however late it is."""
    for _ in range(3):
        source, target = at.full(100_003, -1.0), at.full(100_003 * at.ranks, -2.0)
        at.device.sleep(LATE_MS / 4)
        source.fill_(at.rank + 1)
        work = at.gather(target, source, async_op=True)
        assert work.wait() is True
        same_parts(at, target, lambda rank: rank + 1.0, "asynchronous all_gather behind a late producer")


@check
def wait_orders_the_consumer(at: Setting) -> None:
    """After wait() the input may be overwritten and the output read; without it, neither: another stream sees that."""
    source = at.full(1001, at.rank + 1.0)
    target = at.full(1001 * at.ranks, -1.0)
    aside = at.device.stream()
    # First uses block the host, for connections and memory of a stream; they end before the time counts.
    at.gather(target, source, async_op=True).wait()
    at.device.synchronize()
    with at.device.use(aside):
        target.clone()
    target.fill_(-1.0)
    at.device.synchronize()
    at.device.sleep(LATE_MS)
    work = at.gather(target, source, async_op=True)
    with at.device.use(aside):
        early = target.clone()  # has not waited
    completed = work.is_completed()
    assert work.wait() is True
    source.fill_(99.0)
    after = target.clone()
    at.device.synchronize()
    same_parts(at, after, lambda rank: rank + 1.0, "output after wait()")
    soon_complete(at, work, "all_gather that was waited for")
    if at.device.real:
        assert not completed, "is_completed() before the stream could have come so far"
        same(early, -1.0, "what a stream that does not wait sees (else this check proves nothing)")


@check
def wait_does_not_block(at: Setting) -> dict[str, Any]:
    """Neither the call nor wait() blocks the host while the collective runs."""
    source, target = at.full(LARGE, 1.0), at.full(LARGE * at.ranks, 0.0)
    for _ in range(2):  # NCCL connects at the first use of each algorithm, and blocks the host for it
        at.gather(target, source, async_op=True).wait()
        at.gather(target, source)
        mcr_dl.all_reduce(at.backend, source, op=mcr_dl.ReduceOp.MAX)
    at.device.sleep(0.1)
    at.device.synchronize()
    begin, end = at.device.event(), at.device.event()
    begin.record()
    at.device.sleep(LATE_MS)
    started = time.perf_counter()
    work = at.gather(target, source, async_op=True)
    issued = time.perf_counter()
    work.wait()
    waited = time.perf_counter()
    mcr_dl.all_reduce(at.backend, source, op=mcr_dl.ReduceOp.MAX)
    at.gather(target, source)
    blocking = time.perf_counter()
    end.record()
    end.synchronize()
    running = begin.elapsed_time(end)
    times = {
        "issue_us": (issued - started) * 1e6,
        "wait_us": (waited - issued) * 1e6,
        "blocking_calls_us": (blocking - waited) * 1e6,
        "running_us": running * 1e3,
    }
    if at.device.real:
        assert (blocking - started) * 1e3 < running / 2, f"the host was held up: {times}"
    return times


@check
def other_device(at: Setting) -> None:
    """Tensors on another device than the group's, and in host memory, raise an error; the group stays usable."""
    at.need_real()
    strangers = [torch.ones(4)]
    if torch.cuda.device_count() > 1:
        strangers.append(torch.ones(4, device=(torch.cuda.current_device() + 1) % torch.cuda.device_count()))
    for stranger in strangers if at.backend == "nccl" else ():
        try:
            mcr_dl.all_reduce(at.backend, stranger)
        except mcr_dl.McrError:
            continue
        raise AssertionError(f"a tensor on {stranger.device} was accepted")
    x = torch.full((4,), at.rank + 1.0, device=torch.device("cuda", torch.cuda.current_device()))
    mcr_dl.all_reduce(at.backend, x)
    same(x, at.total, "all_reduce after refused calls")


@check
def threads(at: Setting) -> None:
    """Several threads at once, each with its own stream and group."""
    if at.ranks > 1:
        raise NotRun("several ranks: the order of threads' calls is the program's to keep")
    device_index = torch.cuda.current_device() if at.device.real else 0
    groups = [mcr_dl.new_group(group_desc="thread") for _ in range(4)]
    problems: list[BaseException] = []

    def run(group: mcr_dl.ProcessGroup, value: float) -> None:
        try:
            if at.device.real:
                torch.cuda.set_device(device_index)
            with at.device.use(at.device.stream()):
                for turn in range(50):
                    source, target = at.full(1001, value + turn), at.full(1001, -1.0)
                    work = mcr_dl.all_gather_single(
                        target, source, group=group, backend=at.backend, async_op=turn % 2 == 0
                    )
                    if work is not None:
                        work.wait()
                    same(target, value + turn, "all_gather of a thread")
        except BaseException as error:
            problems.append(error)

    started = [threading.Thread(target=run, args=(group, 100.0 * n)) for n, group in enumerate(groups)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    for group in groups:
        mcr_dl.destroy_process_group(group)
    if problems:
        raise problems[0]


def group_with_lanes(number: int) -> mcr_dl.ProcessGroup:
    """The backend reads the number of lanes when it makes a communicator."""
    before = os.environ.get("MCR_DL_NCCL_LANES")
    os.environ["MCR_DL_NCCL_LANES"] = str(number)
    try:
        made: mcr_dl.ProcessGroup = mcr_dl.new_group(group_desc="lanes")
    finally:
        del os.environ["MCR_DL_NCCL_LANES"]
        if before is not None:
            os.environ["MCR_DL_NCCL_LANES"] = before
    return made


@check
def groups_and_lanes(at: Setting) -> None:
    """Many pending calls on several groups, waited for in another order."""
    groups = [mcr_dl.group.WORLD, mcr_dl.new_group(group_desc="one-lane"), group_with_lanes(4)]
    pairs, works = [], []
    for turn in range(60):
        count = (17, 1001, 300_007)[turn // 3 % 3]  # each size on each group
        source, target = at.full(count, (at.rank + 1.0) * (turn + 1)), at.full(count * at.ranks, -1.0)
        pairs.append((source, target))
        works.append(at.gather(target, source, group=groups[turn % 3], async_op=True))
    for work in reversed(works):
        work.wait()
    for turn, (_, target) in enumerate(pairs):
        same_parts(at, target, rank_value(times=turn + 1), f"all_gather number {turn}")
    for group in groups[1:]:
        mcr_dl.destroy_process_group(group)
