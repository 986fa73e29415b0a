# SPDX-License-Identifier: Apache-2.0
"""What must hold of streams, events, memory and graphs. Each check gets a Setting; it raises, or returns what it has
measured, or raises NotRun with a reason. All ranks run all checks in this order.

On the host, in a rehearsal, the same lines run where nothing can be late, so that nothing is proved there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as torch_dist

import mcr_dl
from gpu.device import Device
from mcr_dl import _C

LARGE = 16 << 20  # elements of float32
_LATE_MS = 40.0  # how long streams are kept busy, so that who does not wait is seen


class NotRun(Exception):
    """This check has no meaning here; the text says why."""


@dataclass
class Setting:
    """Where the checks run."""

    device: Device
    backend: str
    rank: int
    ranks: int

    def full(self, count: int, value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((count,), value, dtype=dtype, device=self.device.kind)

    @property
    def total(self) -> float:
        """What an all_reduce of ``rank + 1`` gives."""
        return self.ranks * (self.ranks + 1) / 2

    def need_real(self) -> None:
        if not self.device.real:
            raise NotRun("needs a GPU")


Measured = dict[str, Any] | None
CHECKS: dict[str, Callable[[Setting], Measured]] = {}


def check(function: Callable[[Setting], Measured]) -> Callable[[Setting], Measured]:
    """Adds a check to the list."""
    CHECKS[function.__name__] = function
    return function


def same(tensor: torch.Tensor, value: float, what: str) -> None:
    """All elements are `value`; waits for the current stream."""
    found = tensor.double().cpu()
    bad = int((found != value).sum())
    assert bad == 0, (
        f"{what}: expected {value} everywhere, {bad} of {found.numel()} differ, first {found.flatten()[:4]}"
    )


# ---- streams


@check
def current_stream(at: Setting) -> None:
    """Blocking calls are in the order of the current stream, whichever that is, with no wait of the host."""
    for stream in (at.device.current(), at.device.stream(), at.device.stream()):
        with at.device.use(stream):
            x = at.full(1001, -1.0)
            at.device.sleep(_LATE_MS / 4)
            x.fill_(at.rank + 1)
            mcr_dl.all_reduce(at.backend, x)
            same(x.clone(), at.total, "all_reduce on the current stream")


@check
def waits_for_the_producer(at: Setting) -> None:
    """An asynchronous call sees what the current stream has been given before, however late that is."""
    for _ in range(3):
        x = at.full(100_003, -1.0)
        at.device.sleep(_LATE_MS / 4)
        x.fill_(at.rank + 1)
        work = mcr_dl.all_reduce(at.backend, x, async_op=True)
        assert work.wait() is True
        same(x, at.total, "asynchronous all_reduce behind a late producer")


@check
def wait_orders_the_consumer(at: Setting) -> None:
    """After wait() the input may be overwritten and the output read; without it, neither: another stream sees that."""
    source = at.full(1001, at.rank + 1.0)
    target = at.full(1001 * at.ranks, -1.0)
    aside = at.device.stream()
    at.device.synchronize()
    at.device.sleep(_LATE_MS)
    work = mcr_dl.all_gather_single(target, source, backend=at.backend, async_op=True)
    with at.device.use(aside):
        early = target.clone()  # has not waited
    completed = work.is_completed()
    assert work.wait() is True
    source.fill_(99.0)
    after = target.clone()
    at.device.synchronize()
    for rank in range(at.ranks):
        same(after[rank * 1001 : (rank + 1) * 1001], rank + 1.0, "output after wait()")
    assert work.is_completed()
    if at.device.real:
        assert not completed, "is_completed() before the stream could have come so far"
        same(early, -1.0, "what a stream that does not wait sees (else this check proves nothing)")


@check
def wait_does_not_block(at: Setting) -> dict[str, Any]:
    """Neither the call nor wait() keeps the host for the time that the collective takes."""
    source, target = at.full(LARGE, 1.0), at.full(LARGE * at.ranks, 0.0)
    mcr_dl.all_gather_single(target, source, backend=at.backend, async_op=True).wait()
    at.device.synchronize()
    begin, end = at.device.event(), at.device.event()
    begin.record()
    at.device.sleep(_LATE_MS)
    started = time.perf_counter()
    work = mcr_dl.all_gather_single(target, source, backend=at.backend, async_op=True)
    issued = time.perf_counter()
    work.wait()
    waited = time.perf_counter()
    mcr_dl.all_reduce(at.backend, source)
    blocking = time.perf_counter()
    end.record()
    end.synchronize()
    running = begin.elapsed_time(end)
    times = {
        "issue_us": (issued - started) * 1e6,
        "wait_us": (waited - issued) * 1e6,
        "blocking_call_us": (blocking - waited) * 1e6,
        "running_us": running * 1e3,
    }
    if at.device.real:
        assert (blocking - started) * 1e3 < running / 2, f"the host was held up: {times}"
    return times


@check
def other_device(at: Setting) -> None:
    """Tensors on another device than the group's, and in host memory, are refused; the group works on."""
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
    """Several threads at once, each with a stream and a group of its own."""
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
    """The backend reads how many lanes there shall be when it makes a communicator."""
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
    """Many calls under way on several groups, waited for in another order."""
    groups = [mcr_dl.group.WORLD, mcr_dl.new_group(group_desc="one-lane"), group_with_lanes(4)]
    tensors, works = [], []
    for turn in range(60):
        tensor = at.full((17, 1001, 300_007)[turn % 3], (at.rank + 1.0) * (turn + 1))
        tensors.append(tensor)
        works.append(mcr_dl.all_reduce(tensor, group=groups[turn % 3], backend=at.backend, async_op=True))
    for work in reversed(works):
        work.wait()
    for turn, tensor in enumerate(tensors):
        same(tensor, at.total * (turn + 1), f"all_reduce number {turn}")
    for group in groups[1:]:
        mcr_dl.destroy_process_group(group)


# ---- memory


@check
def memory_is_kept(at: Setting) -> dict[str, Any]:
    """A tensor that is dropped right after an asynchronous call is not given away before the call has read it."""
    blocker, sink = at.full(LARGE, 1.0), at.full(LARGE * at.ranks, 0.0)
    count, reused = 1 << 20, 0
    for turn in range(40):
        held = mcr_dl.all_gather_single(sink, blocker, backend=at.backend, async_op=True)  # in the way, on the lane
        source, target = at.full(count, at.rank + 1.0 + turn), at.full(count * at.ranks, -1.0)
        place = source.data_ptr()
        work = mcr_dl.all_gather_single(target, source, backend=at.backend, async_op=True)
        del source
        thieves = [at.full(count, -7.0) for _ in range(3)]  # at once, in memory that is free now
        if at.device.real and not work.is_completed():
            assert place not in [thief.data_ptr() for thief in thieves], "memory of a running call was given away"
        if turn % 2:
            work.wait()
        del work  # every other time nobody has waited
        mcr_dl.synchronize()
        at.device.synchronize()
        for rank in range(at.ranks):
            same(target[rank * count : (rank + 1) * count], rank + 1.0 + turn, "output of a dropped input")
        held.wait()
        reused += at.full(count, 0.0).data_ptr() == place
        del thieves
    return {"reused_later": reused}


@check
def memory_does_not_grow(at: Setting) -> dict[str, Any]:
    """Neither blocking nor asynchronous calls leave memory behind, waited for or not."""
    at.need_real()
    x = at.full(1 << 20, 1.0)

    def calls(number: int) -> None:
        for turn in range(number):
            mcr_dl.all_reduce(at.backend, x, op=mcr_dl.ReduceOp.MAX)
            work = mcr_dl.all_reduce(at.backend, x, op=mcr_dl.ReduceOp.MAX, async_op=True)
            if turn % 2:
                work.wait()
        at.device.synchronize()

    calls(20)
    mcr_dl.synchronize()
    before = torch.cuda.memory_allocated()
    calls(200)
    mcr_dl.synchronize()
    grown = torch.cuda.memory_allocated() - before
    assert grown <= 4 * x.nbytes, f"{grown} bytes more are allocated after 400 calls"
    return {"grown_bytes": grown}


# ---- graphs


def _captured(at: Setting, calls: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    """The calls turn x into y: twice the sum over the ranks. Replayed with other inputs each time."""
    x, y = at.full(4096, 0.0), at.full(4096, 0.0)
    with at.device.use(at.device.stream()):  # graphs want their work to have run before, on a stream aside
        calls(x, y)
    at.device.synchronize()
    replay = at.device.capture(lambda: calls(x, y))
    for turn in range(1, 6):
        x.fill_((at.rank + 1.0) * turn)
        replay()
        same(y, 2 * at.total * turn, f"replay {turn}")


@check
def graph_blocking(at: Setting) -> None:
    """Blocking calls are captured, one and several."""

    def one(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(x)
        mcr_dl.all_reduce(at.backend, y)
        y.mul_(2)

    def several(x: torch.Tensor, y: torch.Tensor) -> None:
        one(x, y)
        mcr_dl.broadcast(y, 0, backend=at.backend)
        mcr_dl.all_reduce(at.backend, y, op=mcr_dl.ReduceOp.MAX)

    if at.backend != "nccl":
        raise NotRun("host libraries cannot be captured")
    _captured(at, one)
    _captured(at, several)


@check
def graph_asynchronous(at: Setting) -> None:
    """Asynchronous calls are captured with their waits, one and several under way at once."""

    def one(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(x)
        work = mcr_dl.all_reduce(at.backend, y, async_op=True)
        work.wait()
        y.mul_(2)

    def several(x: torch.Tensor, y: torch.Tensor) -> None:
        parts = [x.clone() for _ in range(4)]
        works = [mcr_dl.all_reduce(at.backend, part, async_op=True) for part in parts]
        for work in works:
            work.wait()
        y.copy_((parts[0] + parts[1] + parts[2] + parts[3]) / 2)

    if at.backend != "nccl":
        raise NotRun("host libraries cannot be captured")
    _captured(at, one)
    _captured(at, several)
    x = at.full(17, at.rank + 1.0)  # and calls outside of graphs still work
    mcr_dl.all_reduce(at.backend, x, async_op=True).wait()
    same(x, at.total, "all_reduce after a capture")


@check
def graph_beside_running(at: Setting) -> None:
    """A capture is not disturbed by calls from before it, which the progress thread still looks after."""
    if at.backend != "nccl":
        raise NotRun("host libraries cannot be captured")
    for turn in range(10):
        early = at.full(100_003, at.rank + 1.0 + turn)
        at.device.sleep(_LATE_MS / 20)
        work = mcr_dl.all_reduce(at.backend, early, async_op=True)
        x = at.full(4096, 0.0)
        replay = at.device.capture(lambda x=x: mcr_dl.all_reduce(at.backend, x))  # type: ignore[misc]
        x.fill_(at.rank + 1.0)
        replay()
        same(x, at.total, "all_reduce of a graph beside another call")
        assert work.wait() is True
        same(early, at.total + at.ranks * turn, "all_reduce from before a capture")


# ---- types, reductions, arrays


@check
def float8(at: Setting) -> dict[str, Any]:
    """Both eight-bit types are moved by every operation, and added where the library can."""
    names = [name for name in ("float8_e4m3fn", "float8_e5m2") if name in _C.dtypes()]
    if not names:
        raise NotRun("this build has no float8")
    added = {}
    for name in names:
        dtype: torch.dtype = getattr(torch, name)
        source = at.full(64, at.rank + 1.0).to(dtype)
        target = at.full(64 * at.ranks, 0.0).to(dtype)
        mcr_dl.all_gather_single(target, source, backend=at.backend)
        for rank in range(at.ranks):
            same(target[rank * 64 : (rank + 1) * 64].float(), rank + 1.0, f"all_gather of {name}")
        try:
            mcr_dl.all_reduce(at.backend, source)
            same(source.float(), at.total, f"all_reduce of {name}")  # up to 10 for 4 ranks: exact in both types
            added[name] = True
        except mcr_dl.UnsupportedError:
            added[name] = False
    return {"added": added}


@check
def premul_sum(at: Setting) -> None:
    """PREMUL_SUM with a number and with a tensor of one element as factor."""
    make = getattr(torch_dist, "_make_nccl_premul_sum", None)
    if make is None or at.backend != "nccl":
        raise NotRun("only nccl has PREMUL_SUM, and only where torch can make it")
    for factor in (0.5, at.full(1, 0.25)):
        x = at.full(1001, at.rank + 1.0)
        mcr_dl.all_reduce(x, op=make(factor), backend=at.backend)
        same(x, at.total * float(factor), f"all_reduce of PREMUL_SUM({factor})")


@check
def batch(at: Setting) -> None:
    """batch_isend_irecv around a ring, and both ways between neighbours, in whatever order the list has."""
    if at.ranks < 2:
        raise NotRun("needs two ranks")
    after, before = (at.rank + 1) % at.ranks, (at.rank - 1) % at.ranks
    for turn in range(4):
        outgoing = [at.full(1001 + turn, at.rank + 10.0 * turn + step) for step in range(2)]
        incoming = [at.full(1001 + turn, -1.0) for _ in range(2)]
        entries = [
            mcr_dl.P2POp(mcr_dl.isend, outgoing[0], after, backend=at.backend),
            mcr_dl.P2POp(mcr_dl.isend, outgoing[1], after, backend=at.backend),
            mcr_dl.P2POp(mcr_dl.irecv, incoming[0], before, backend=at.backend),
            mcr_dl.P2POp(mcr_dl.irecv, incoming[1], before, backend=at.backend),
        ]
        for work in mcr_dl.batch_isend_irecv(entries if turn % 2 else [*entries[2:], *entries[:2]]):
            work.wait()
        for step, tensor in enumerate(incoming):
            same(tensor, before + 10.0 * turn + step, "a message of the ring")


@check
def cupy_arrays(at: Setting) -> None:
    """CuPy arrays without a copy, in the order of CuPy's own current stream."""
    at.need_real()
    try:
        import cupy
    except ImportError as error:
        raise NotRun("cupy is not installed") from error
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for turn in range(5):
            array = cupy.full(1 << 20, -1.0, dtype=cupy.float32)
            for _ in range(50):  # late
                array += 0
            array[...] = at.rank + 1.0 + turn
            place = array.data.ptr
            mcr_dl.all_reduce(at.backend, array)
            result = array * 1
            stream.synchronize()
            assert array.data.ptr == place
            wanted = at.total + at.ranks * turn
            assert bool((result == wanted).all()), f"CuPy: expected {wanted}, got {result[:4]}"


@check
def cupy_wait(at: Setting) -> None:
    """After wait(), what CuPy's current stream is given next comes behind an asynchronous call on a CuPy array."""
    at.need_real()
    try:
        import cupy
    except ImportError as error:
        raise NotRun("cupy is not installed") from error
    with cupy.cuda.Stream(non_blocking=True) as stream:
        array = cupy.full(1001, at.rank + 1.0, dtype=cupy.float32)
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            at.device.sleep(_LATE_MS / 4)
        blocker = cupy.full(LARGE, 1.0, dtype=cupy.float32)
        sink = cupy.empty(LARGE * at.ranks, dtype=cupy.float32)
        held = mcr_dl.all_gather_single(sink, blocker, backend=at.backend, async_op=True)  # makes the next one late
        work = mcr_dl.all_reduce(at.backend, array, async_op=True)
        work.wait()
        doubled = array * 2
        held.wait()
        stream.synchronize()
        assert bool((doubled == 2 * at.total).all()), f"expected {2 * at.total}, got {doubled[:4]}"


@check
def staged(at: Setting) -> None:
    """Host libraries on device tensors: values, and asynchronous calls beside those of the device's own library."""
    names = [name for name in ("mpi", "gloo") if name in mcr_dl.get_backends()]
    if not names:
        raise NotRun("no host library was started")
    for name in names:
        for count in (1, 1001, 3_000_001):
            x, y = at.full(count, at.rank + 1.0), at.full(count, 2.0 * (at.rank + 1))
            at.device.sleep(_LATE_MS / 8)
            first = mcr_dl.all_reduce(at.backend, x, async_op=True)
            second = mcr_dl.all_reduce(name, y, async_op=True)
            z = x.new_ones(count) * 3
            first.wait()
            second.wait()
            same(x + y + z, 3 * at.total + 3, f"{at.backend} and {name} at once, {count} elements")
