# SPDX-License-Identifier: Apache-2.0
"""Exceptions in users' code that a call runs: passes, their steps, codecs, hooks, callbacks of futures."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import mcr_dl
from mcr_dl import _C, BackendError, CollectiveTimeoutError
from mcr_dl.passes import Compress, Fuse, PassedCall
from mcr_dl.testing.expect import expect
from ranks import session
from ranks.passes import Handler, chain

LIMIT = timedelta(seconds=1)  # for calls in which a rank is missing
CALLS = 3  # asynchronous ones per case
TEXT = "bad batch"


def fail() -> None:
    """The failure of a user's function."""
    raise ValueError(TEXT)


# ---- where the exception is raised: each entry makes a group whose calls raise it while `raises` is set


@dataclass
class Switch:
    """Whether the user's code of this rank raises now."""

    raises: bool = False

    def __call__(self) -> None:
        if self.raises:
            fail()


switch = Switch()
place = ""  # the entry under test


def _handle(call: PassedCall) -> Any:
    assert call.dtype == torch.float32 or "compress" in place, "a pass sees the program's calls alone"
    switch()
    return call.proceed()


def _step(call: PassedCall) -> Any:
    call.after(switch)
    return call.proceed()


held: list[PassedCall] = []


def _hold(call: PassedCall) -> Any:
    if not call.async_op:
        return call.proceed()
    held.append(call)
    return call.hold()


class Fragile:
    """A codec of full size whose methods raise on demand."""

    fixed = True
    dtypes = ("float32", "float64")

    def __init__(self, method: str) -> None:
        self.name = f"fragile-{method}"
        self._method = method

    def capacity(self, count: int, dtype: str) -> int:
        return count * np.dtype(dtype).itemsize

    def _work(self, method: str) -> None:
        if self._method == method:
            switch()

    def encode(self, values: Any, out: Any) -> int:
        self._work("encode")
        out[: values.nbytes] = values.view(np.uint8)
        return int(values.nbytes)

    def decode(self, data: Any, out: Any) -> None:
        self._work("decode")
        out[:] = data.view(out.dtype)[: len(out)]


@functools.cache
def _codec(method: str) -> str:
    codec = Fragile(method)
    mcr_dl.passes.register_codec(codec)
    return codec.name


def _registered() -> None:
    for name, handle in (("mine", _handle), ("steps", _step), ("holds", _hold)):
        mcr_dl.register_pass(Handler(handle), name)


_FUSE = Fuse(hold_microseconds=60_000_000, buffer_bytes=4 * sum(range(5, 5 + CALLS)))  # full with the last call
_HALF = Compress("bf16", smallest=0)
CHAINS: dict[str, Callable[[], list[Any]]] = {
    "pass": lambda: ["mine"],
    "before fuse": lambda: ["mine", _FUSE],
    "behind fuse": lambda: [_FUSE, "mine"],
    "before compress": lambda: ["mine", _HALF],
    "behind compress": lambda: [_HALF, "mine"],
    "behind a held call": lambda: ["holds", "mine"],
    "step": lambda: ["steps"],
    "step behind fuse": lambda: [_FUSE, "steps"],
    "encode": lambda: [Compress(_codec("encode"), smallest=0)],
    "decode": lambda: [Compress(_codec("decode"), smallest=0)],
    "encode with feedback": lambda: ["compress"],
}
ASYNCHRONOUS = ("behind a held call",)  # blocking calls are not held
COMPLETE = ("step", "step behind fuse")  # the communication has ended: other ranks do not notice
IN_MPI = ("pass", "before fuse", "behind fuse")  # other ranks wait in a blocking call that cannot be interrupted
TOGETHER = ("encode", "decode", "encode with feedback")  # the failure travels instead of the data: all ranks get it


@contextlib.contextmanager
def group_of(where: str, limit: timedelta | None = None) -> Iterator[Any]:
    """A group with the passes of an entry."""
    global place
    session.start()
    _registered()
    place = where
    made = mcr_dl.new_group(timeout=limit)
    mcr_dl.set_passes(CHAINS[where](), made)
    held.clear()
    yield made
    switch.raises = False


def _calls(group: Any, backend: str, blocking: bool, timeout: timedelta | None = None) -> list[Callable[[], Any]]:
    """The functions that raise each call's exception, if it has one."""
    options = {"group": group, "backend": backend, "timeout": timeout}

    def codec(number: int) -> str | None:
        return f"{_codec('encode')}:feedback=of{number}" if place == "encode with feedback" else None

    if blocking:
        return [lambda: mcr_dl.all_reduce(torch.ones(5), codec=codec(0), **options)]
    attempts: list[Callable[[], Any]] = []
    for number in range(CALLS):
        try:
            work = mcr_dl.all_reduce(torch.ones(5 + number), async_op=True, codec=codec(number), **options)
            attempts.append(work.wait)
        except Exception as error:
            attempts.append(functools.partial(_again, error))
    for call in held:
        call.proceed()
    held.clear()
    return attempts


def _again(error: Exception) -> None:
    raise error


def _check_works(group: Any, backend: str) -> None:
    """Check calls of both forms, with the same passes."""
    switch.raises = False
    size = mcr_dl.get_world_size(group)
    for blocking in (True, False):
        for call in _calls(group, backend, blocking):
            call()
    tensor = torch.ones(5)
    mcr_dl.all_reduce(tensor, group=group, backend=backend)
    assert tensor.tolist() == [float(size)] * 5


def _check_refused(group: Any, backend: str, blocking: bool) -> None:
    """No rank knows that all have failed: fused calls then raise, and others still work."""
    switch.raises = False
    mcr_dl.all_reduce(torch.ones(5), group=group, backend=backend)
    if blocking:  # not fused
        return
    words = (f"{backend}.all_reduce", "cannot agree on fused calls any more", TEXT, "go on with a new group")
    for call in _calls(group, backend, blocking=False):
        expect(BackendError, call, *words)


def _expect_own(where: str, call: Callable[[], Any], backend: str) -> None:
    """The exception on a rank where the user's code has raised."""
    if where in TOGETHER:
        expect(BackendError, call, f"{backend}.all_reduce", "codec fragile", TEXT)
        return
    error = expect(ValueError, call, TEXT)
    assert str(error) == TEXT
    told = "".join(traceback.format_exception(error))
    station = "steps" if "step" in where else "mine"
    operation = "all_to_all" if where == "behind compress" else "all_reduce"  # the call that the pass sees
    assert f"pass '{station}' in {backend}.{operation} (group " in told, told
    assert "in fail" in told, told  # the traceback of the user's function


def _check_one_shadow(group: Any, *, broken: bool = True) -> None:
    """The group that broke with its pass has ended; one that did not break stays."""
    name = mcr_dl.runtime.handles.core_group(group).name()
    shadows = [each for each in mcr_dl.runtime.state.current().groups if each.startswith(f"{name}/fuse")]
    assert len([each for each in shadows if each.count("/") == 1]) == 1, shadows
    assert (shadows[0] != f"{name}/fuse") == broken


def in_chain(where: str, backend: str, blocking: bool, everywhere: bool) -> None:
    """Each rank's exception is the right one, others do not hang, and later calls work."""
    lasts = everywhere or where in (*COMPLETE, *TOGETHER)
    with group_of(where, None if lasts else LIMIT) as group:
        switch.raises = everywhere or mcr_dl.get_rank() == 0
        for call in _calls(group, backend, blocking):
            if switch.raises:
                _expect_own(where, call, backend)
                if not blocking and where not in TOGETHER:
                    assert expect(ValueError, call) is expect(ValueError, call)  # a Work raises the very same exception
            elif where in COMPLETE:
                call()
            elif where in TOGETHER:
                expect(BackendError, call, f"{backend}.all_reduce", "codec fragile", TEXT)
            else:
                own = BackendError if backend == "gloo" else ()  # gloo's own timeout may come first
                with contextlib.suppress(own):
                    expect(CollectiveTimeoutError, call, f"{backend}.all_reduce")
        if everywhere and where == "behind fuse":
            _check_refused(group, backend, blocking)
            mcr_dl.set_passes(CHAINS[where](), group)
            _check_one_shadow(group, broken=not blocking)  # blocking calls are not fused
        if not lasts and where == "behind fuse" and not blocking:
            mcr_dl.barrier()  # the others come after their timeout
            mcr_dl.set_passes(CHAINS[where](), group)  # their buffer is on communicators that are not used any more
            _check_one_shadow(group)
            _check_works(group, backend)
        if lasts:
            _check_works(group, backend)
            mcr_dl.destroy_process_group(group)
    with group_of(where) as group:
        _check_works(group, backend)
        mcr_dl.destroy_process_group(group)


# ---- calls that a rank never joins


ENDS = ("blocking", "waited for", "not waited for")  # the calls that end at their timeout
STEPPED: dict[str, Callable[[], list[Any]]] = {
    "compress": lambda: [_HALF],
    "fuse, compress": lambda: [_FUSE, _HALF],
    "held, compress": lambda: ["holds", _HALF],
}


def never_joined(chain_of: str, ends: str) -> None:
    """Calls of other groups go on after a call in steps that the last rank never joins."""
    session.start()
    _registered()
    late, plain = mcr_dl.new_group(), mcr_dl.new_group(timeout=timedelta(seconds=30))
    mcr_dl.set_passes(STEPPED[chain_of](), late)
    held.clear()
    if mcr_dl.get_rank() != mcr_dl.get_world_size() - 1:
        if ends == "not waited for":
            works = [_started(late, number) for number in range(CALLS)]
            for call in held:
                call.proceed()
            while not all(work.is_completed() for work in works):
                time.sleep(0.01)
            for work in works:
                expect(CollectiveTimeoutError, work.wait, "mpi.all_reduce")
        else:
            for call in _calls(late, "mpi", ends == "blocking", LIMIT):
                expect(CollectiveTimeoutError, call, "mpi.all_reduce")
    begun, total = time.monotonic(), torch.ones(4)
    mcr_dl.all_reduce(total, group=plain, backend="mpi")
    assert total.tolist() == [float(mcr_dl.get_world_size())] * 4
    assert time.monotonic() - begun < 25


def _started(group: Any, number: int) -> Any:
    return mcr_dl.all_reduce(torch.ones(5 + number), group=group, backend="mpi", async_op=True, timeout=LIMIT)


# ---- a backward pass


def _undecodable(call: PassedCall) -> Any:
    if switch.raises:
        raise UnicodeDecodeError("utf-8", b"x", 0, 1, TEXT)
    return call.proceed()


def in_backward() -> None:
    """torch makes exceptions from their class and text; one that cannot be made so becomes a RuntimeError."""
    group = _torch_group(None)
    model = DistributedDataParallel(torch.nn.Linear(3, 3), process_group=group)
    mcr_dl.register_pass(Handler(_undecodable), "undecodable")
    mcr_dl.set_passes(["undecodable"], group)
    switch.raises = True
    expect(RuntimeError, lambda: model(torch.ones(2, 3)).sum().backward(), "can't decode byte 0x78", TEXT)
    switch.raises = False
    dist.destroy_process_group(group)


# ---- completion hooks and futures


def _torch_group(hook: Callable[[Any], None] | None) -> Any:
    session.start()
    made = dist.new_group(backend="mcr")
    if hook is not None:
        made._register_on_completion_hook(hook)
    return made


def _all_reduce(group: Any, backend: str, blocking: bool) -> Any:
    """torch's all_reduce; checks nothing."""
    with mcr_dl.use(backend):
        return dist.all_reduce(torch.ones(5), group=group, async_op=not blocking)


def in_hook(backend: str, blocking: bool, everywhere: bool) -> None:
    """The hook's exception is the call's, by every way to request it; other ranks and later calls continue."""
    group = _torch_group(lambda _: switch())
    words = (f"{backend}.all_reduce (group", "the completion hook has raised ValueError: bad batch", "fail")
    switch.raises = everywhere or mcr_dl.get_rank() == 0
    if not switch.raises:
        work = _all_reduce(group, backend, blocking)
        assert work is None or work.wait()
    elif blocking:
        expect(BackendError, lambda: _all_reduce(group, backend, blocking), *words)
    else:
        work = _all_reduce(group, backend, blocking)
        for ask in (work.wait, work.wait, work.get_future().wait):
            expect(BackendError, ask, *words)
        assert work.is_completed()
        assert not work.is_success()
        assert TEXT in str(work.exception())
    switch.raises = False
    for again in (True, False):
        work = _all_reduce(group, backend, again)
        assert work is None or (work.wait() and work.is_success())
    dist.destroy_process_group(group)


def unasked_hook(backend: str) -> None:
    """The hook's exception on a dropped work goes to Python's handler for unraisable exceptions."""
    seen: list[str] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: seen.append(str(unraisable.exc_value))
    try:
        group = _torch_group(lambda _: switch())
        switch.raises = True
        _all_reduce(group, backend, blocking=False)
        group._wait_for_pending_works()
        switch.raises = False
        dist.destroy_process_group(group)
    finally:
        sys.unraisablehook = before
    assert len(seen) == 1
    assert "the completion hook has raised ValueError: bad batch" in seen[0]


def interrupted_hook() -> None:
    """Ctrl-C in a hook reaches the program, in addition to the call's error."""
    group = _torch_group(lambda _: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with contextlib.suppress(BackendError):
            dist.all_reduce(torch.ones(5), group=group)
        for _ in range(1000):  # Python looks for signals
            pass
    except KeyboardInterrupt:
        dist.destroy_process_group(group)
    else:
        raise AssertionError("Ctrl-C is lost")
    finally:
        signal.signal(signal.SIGINT, before)


def in_callback(backend: str, door: str, everywhere: bool) -> None:
    """An exception in a future's callback belongs to the chained future; the work and the group have none."""
    group = _torch_group(None)
    switch.raises = everywhere or mcr_dl.get_rank() == 0
    for _ in range(CALLS):
        if door == "torch":
            work = _all_reduce(group, backend, blocking=False)
        else:
            work = mcr_dl.all_reduce(torch.ones(5), group=group, backend=backend, async_op=True)
        chained = work.get_future().then(lambda _: switch())
        if switch.raises:
            caught = expect_any(chained.wait)
            assert TEXT in str(caught), caught
        else:
            chained.wait()
        assert work.wait()
        assert work.is_success()
    switch.raises = False
    _all_reduce(group, backend, blocking=True)
    dist.destroy_process_group(group)


def expect_any(call: Callable[[], Any]) -> Exception:
    """The exception that the call raises, of whatever class."""
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("expected an exception")


# ---- held calls that are never released, and groups that have ended by then


def dropped_call(backend: str) -> None:
    """A held call that the pass drops fails; its wait does not last until the timeout."""
    session.start()
    mcr_dl.register_pass(Handler(lambda call: call.hold() if call.async_op else call.proceed()), "forgets")
    with chain("forgets"):
        work = mcr_dl.all_reduce(torch.ones(3), backend=backend, async_op=True)
        expect(BackendError, work.wait, f"{backend}.all_reduce", "pass 'forgets' has dropped the call that it held")
        mcr_dl.all_reduce(torch.ones(3), backend=backend)


def held_beyond_the_group(backend: str) -> None:
    """A held call of a destroyed group raises in its wait; one whose backend is given up continues."""
    session.start()
    size = mcr_dl.get_world_size()
    _registered()
    for name in (backend, None):
        group = mcr_dl.new_group()
        mcr_dl.set_passes(["holds"], group)
        held.clear()
        work = mcr_dl.all_reduce(torch.ones(3), group=group, backend=name, async_op=True)
        mcr_dl.destroy_process_group(group)
        held.pop().proceed()
        expect(mcr_dl.NotInitializedError, work.wait, "all_reduce", "the group has been destroyed")
    group = mcr_dl.new_group()
    mcr_dl.set_passes(["holds"], group)
    tensor = torch.ones(3)
    work = mcr_dl.all_reduce(tensor, group=group, backend=backend, async_op=True)
    core = _C.group_of(group)
    assert core is not None
    core._disconnect(backend)
    call = held.pop()
    assert call.backend == backend
    call.proceed()
    work.wait()
    assert tensor.tolist() == [float(size)] * 3
    mcr_dl.destroy_process_group(group)
    mcr_dl.barrier(backend=backend)


# ---- no lock of the library is held while users' code runs


def other_threads_go_on(backend: str) -> None:
    """While a pass behind fuse runs on the library's thread, another thread reads the statistics and makes calls."""
    session.start()
    inside, go_on = threading.Event(), threading.Event()

    def handle(call: PassedCall) -> Any:
        inside.set()
        assert go_on.wait(20), "the other thread has not come back"
        return call.proceed()

    def start(count: int) -> None:
        works.append(mcr_dl.all_reduce(torch.ones(count), backend=backend, async_op=True))

    mcr_dl.register_pass(Handler(handle), "waits")
    works: list[Any] = []
    with chain(Fuse(hold_microseconds=0, buffer_bytes=1 << 16), "waits"):
        # The thread that sees the ranks' agreement runs the pass: the library's, or the call's.
        caller = threading.Thread(target=start, args=(3,))
        caller.start()
        assert inside.wait(20)
        (station, _) = _C.passes(_C.world())
        assert isinstance(station, _C.FusePass)
        assert station.statistics()["calls"] == 1
        start(4)
        assert station.statistics()["calls"] == 2
        go_on.set()
        caller.join()
        for work in works:
            work.wait()
