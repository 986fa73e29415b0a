# SPDX-License-Identifier: Apache-2.0
"""The chain of passes on real groups: passes in Python, agreement on the chain, fusion at different speeds."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

import mcr_dl
from mcr_dl import InvalidArgumentError, InvalidTypeError
from mcr_dl.passes import Fuse, PassedCall
from mcr_dl.testing.expect import expect
from ranks import session

Handle = Callable[[PassedCall], Any]


class Handler:
    """A pass made of a function."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle


@contextlib.contextmanager
def chain(*passes: Any, group: Any = None) -> Iterator[None]:
    """Set the passes for a while."""
    session.start()
    mcr_dl.set_passes(list(passes), group)
    try:
        yield
    finally:
        mcr_dl.set_passes([], group)


@contextlib.contextmanager
def handler(handle: Handle) -> Iterator[None]:
    """Set one pass in Python for a while."""
    mcr_dl.register_pass(Handler(handle), "mine")
    with chain("mine"):
        yield


def _both(tensor: torch.Tensor, backend: str) -> None:
    """An all_reduce in each form."""
    mcr_dl.all_reduce(tensor, backend=backend)
    mcr_dl.all_reduce(tensor, backend=backend, async_op=True).wait()


# ---- passes in Python


def sees(backend: str) -> None:
    """The values that a pass sees of calls of each shape."""
    seen: list[dict[str, Any]] = []
    names = ("op", "backend", "dtype", "reduction", "root", "tag", "async_op", "vectored", "nbytes", "input_counts")

    def handle(call: PassedCall) -> Any:
        facts = {name: getattr(call, name) for name in names}
        facts["input"] = None if call.input is None else call.input.tolist()
        facts["output"] = None if call.output is None else call.output.numel()
        facts["same group"] = call.group is mcr_dl.group.WORLD
        seen.append(facts)
        return call.proceed()

    session.start()
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    with handler(handle):
        mcr_dl.all_reduce(torch.ones(2, 3), op=mcr_dl.ReduceOp.MAX, backend=backend)
        mcr_dl.broadcast(torch.ones(4, dtype=torch.int64), 1, async_op=True).wait()
        counts = [2] * size
        mcr_dl.all_to_allv(torch.zeros(2 * size), torch.full((2 * size,), float(rank)), counts, counts, backend=backend)
        mcr_dl.all_gather([torch.zeros(1) for _ in range(size)], torch.full((1,), float(rank)))
        mcr_dl.all_reduce(torch.ones(0))  # nothing to do: not seen
    common = {"tag": 0, "same group": True, "input_counts": [], "vectored": False}
    expected = [
        {"op": "all_reduce", "backend": backend, "dtype": torch.float32, "reduction": "MAX", "root": None}
        | {"async_op": False, "nbytes": 24, "input": None, "output": 6},
        {"op": "broadcast", "backend": None, "dtype": torch.int64, "reduction": None, "root": 1}
        | {"async_op": True, "nbytes": 32, "input": None, "output": 4},
        {"op": "all_to_all", "backend": backend, "dtype": torch.float32, "reduction": None, "root": None}
        | {"async_op": False, "nbytes": 8 * size, "input": [float(rank)] * 2 * size, "output": 2 * size}
        | {"vectored": True, "input_counts": counts},
        {"op": "all_gather", "backend": None, "dtype": torch.float32, "reduction": None, "root": None}
        | {"async_op": False, "nbytes": 4 * size, "input": [float(rank)], "output": size},
    ]
    assert seen == [common | facts for facts in expected]


def changes(backend: str) -> None:
    """Other memory, another dtype, another backend, and a step at the end: values are as the pass makes them."""
    backends: list[str | None] = []

    def handle(call: PassedCall) -> Any:
        short = call.output.to(torch.bfloat16)
        output = call.output
        call.after(lambda: output.copy_(short))
        other = "gloo" if backend == "mpi" else "mpi"
        return call.proceed(output=short, backend=other)

    def see(call: PassedCall) -> Any:
        backends.append(call.backend)
        return call.proceed()

    session.start()
    size = mcr_dl.get_world_size()
    mcr_dl.register_pass(Handler(handle), "mine")
    mcr_dl.register_pass(Handler(see), "sees")
    with chain("mine", "sees"):
        tensor = torch.full((1000,), 1.00390625)  # bfloat16 rounds it to 1
        _both(tensor, backend)
    assert backends == ["gloo" if backend == "mpi" else "mpi"] * 2
    assert tensor.tolist() == [float(size * size)] * 1000


def widened(backend: str) -> None:
    """Another dtype for the output of a list, or of tensors in another order: they get the pass's values."""

    def handle(call: PassedCall) -> Any:
        output, wide = call.output, torch.zeros(call.output.numel(), dtype=torch.float64)
        call.after(lambda: output.copy_(wide + 1))
        return call.proceed(input=call.input.double(), output=wide)

    session.start()
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    expected = [float(each) + 1 for each in range(size) for _ in range(4)]
    for asynchronous in (False, True):
        base = torch.zeros(16 * size)
        parts = [base[16 * each : 16 * each + 4] for each in range(size)]
        columns = torch.zeros(4, size).t()
        mine = torch.full((4,), float(rank))
        with handler(handle):
            works = [
                mcr_dl.all_gather(parts, mine, backend=backend, async_op=asynchronous),
                mcr_dl.all_gather_single(columns, mine, backend=backend, async_op=asynchronous),
            ]
            for work in works:
                if work is not None:
                    work.wait()
        assert torch.cat(parts).tolist() == columns.flatten().tolist() == expected
        assert base.count_nonzero() == 4 * size  # memory between the tensors stays unchanged


def keeps_views(backend: str) -> None:
    """Tensors of a call that a pass keeps stay valid, although the program has dropped its own."""
    kept: list[torch.Tensor] = []
    held: list[PassedCall] = []

    def handle(call: PassedCall) -> Any:
        kept.append(call.output)
        if not call.async_op or call.op != "all_gather":
            return call.proceed()
        held.append(call)
        return call.hold()

    session.start()
    size = mcr_dl.get_world_size()
    with handler(handle):
        for _ in range(4):
            _both(torch.full((1 << 20,), 2.0), backend)
            mcr_dl.all_gather([torch.zeros(1 << 18) for _ in range(size)], torch.ones(1 << 18), backend=backend)
            gathered = [torch.zeros(1 << 18) for _ in range(size)]
            work = mcr_dl.all_gather(gathered, torch.ones(1 << 18), async_op=True)
            kept.append(held[-1].output)
            held[-1].proceed()
            work.wait()
            del gathered, work
        expect(InvalidArgumentError, lambda: held[0].output, "the call is over")
        held.clear()
    for each in kept:
        each.add_(1)  # memory of its own
    assert kept[0][:2].tolist() == kept[1][:2].tolist() == [2.0 * size * size + 2] * 2, "two calls on one tensor"


def keeps_views_of_held_calls(backend: str) -> None:
    """The same behind passes that hold calls."""
    kept: list[torch.Tensor] = []
    held: list[PassedCall] = []

    def keep(call: PassedCall) -> Any:
        kept.append(call.output)
        return call.proceed()

    def hold(call: PassedCall) -> Any:
        held.append(call)
        return call.hold()

    session.start()
    size, count = mcr_dl.get_world_size(), 16_000
    mcr_dl.register_pass(Handler(keep), "keeps")
    mcr_dl.register_pass(Handler(hold), "holds")
    for first in (Fuse(buffer_bytes=4 * count, largest_bytes=4 * count), "holds"):
        with chain(first, "keeps"):
            for _ in range(4):
                tensor = torch.full((count,), 2.0)
                work = mcr_dl.all_reduce(tensor, backend=backend, async_op=True)
                while held:
                    held.pop().proceed()
                work.wait()
                del tensor, work
        others = [torch.full((count,), 7.0) for _ in range(20)]
        assert [view.unique().tolist() for view in kept] == [[2.0 * size]] * len(kept), first
        assert len(kept) == 4
        assert all(bool(other.eq(7).all()) for other in others)
        kept.clear()


def asks(backend: str) -> None:
    """A pass behind ``fuse`` may make a blocking call of another group."""
    session.start()
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    other = mcr_dl.new_group(backend=backend, timeout=10)
    sums: list[float] = []

    def ask(call: PassedCall) -> Any:
        total = torch.ones(1)
        mcr_dl.all_reduce(total, group=other)
        sums.append(total.item())
        return call.proceed()

    mcr_dl.register_pass(Handler(ask), "asks")
    with chain(Fuse(hold_microseconds=60_000_000), "asks"):
        for _ in range(3):
            tensors = [torch.ones(count) for count in (3, 4)]
            works = [mcr_dl.all_reduce(tensor, backend=backend, async_op=True) for tensor in tensors]
            for work in works[:: -1 if rank % 2 else 1]:
                work.wait()
            assert [tensor.tolist() for tensor in tensors] == [[float(size)] * 3, [float(size)] * 4]
    assert 3 <= len(sums) <= 6
    assert set(sums) == {size}
    mcr_dl.destroy_process_group(other)


def answers(backend: str) -> None:
    """A pass may do the whole call itself; nothing is sent."""

    def handle(call: PassedCall) -> Any:
        call.output.fill_(7)
        return call.done()

    session.start()
    with handler(handle):
        for rank in range(mcr_dl.get_world_size()):  # one after the other: they do not meet
            if mcr_dl.get_rank() == rank:
                tensor = torch.zeros(3)
                _both(tensor, backend)
                assert tensor.tolist() == [7, 7, 7]
                lists = [torch.zeros(2) for _ in range(mcr_dl.get_world_size())]
                mcr_dl.all_gather(lists, torch.ones(2), backend=backend)
                assert [part.tolist() for part in lists] == [[7, 7]] * len(lists)
                assert mcr_dl.recv(tensor, backend=backend) == -1, "a receive from any rank, which no rank has sent"
            mcr_dl.monitored_barrier()


def holds(backend: str) -> None:
    """A held call completes after proceed(), in the pass's order; a wait that is too early times out."""
    held: list[PassedCall] = []

    def handle(call: PassedCall) -> Any:
        if not call.async_op:
            return call.proceed()
        held.append(call)
        return call.hold()

    session.start()
    size = mcr_dl.get_world_size()
    with handler(handle):
        tensors = [torch.full((10,), float(i)) for i in range(4)]
        works = [mcr_dl.all_reduce(tensor, backend=backend, async_op=True) for tensor in tensors]
        lists = [torch.zeros(2) for _ in range(size)]
        works.append(mcr_dl.all_gather(lists, torch.full((2,), 3.0), backend=backend, async_op=True))
        assert not any(work.is_completed() for work in works)
        mcr_dl.barrier()
        assert [call.op for call in held] == ["all_reduce"] * 4 + ["all_gather"]
        for call in reversed(held):
            call.proceed()
        for work in works:
            work.wait()
        for i, tensor in enumerate(tensors):
            assert tensor.tolist() == [float(i * size)] * 10
        assert [part.tolist() for part in lists] == [[3.0, 3.0]] * size
        expect(InvalidArgumentError, held[0].proceed, "mine", "has gone on")
        if mcr_dl.get_rank() == 1:
            mcr_dl.send(torch.full((2,), 5.0), 0, backend=backend)
        elif mcr_dl.get_rank() == 0:
            received = torch.zeros(2)
            work = mcr_dl.irecv(received, backend=backend)
            held[-1].proceed()
            work.wait()
            assert (work.source_rank(), received.tolist()) == (1, [5.0, 5.0])


def releases(backend: str) -> None:
    """Another thread may release a held call before handle() has returned."""
    held: queue.SimpleQueue[PassedCall] = queue.SimpleQueue()
    released: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    handled: list[PassedCall] = []

    def release() -> None:
        for _ in range(4):
            try:
                released.put(held.get().proceed())
            except Exception as error:
                released.put(error)

    def handle(call: PassedCall) -> Any:
        if not call.async_op:
            return call.proceed()
        work, view = call.hold(), call.output
        held.put(call)
        assert released.get(timeout=20) is None
        expect(InvalidArgumentError, call.proceed, "has gone on")
        assert call.output.data_ptr() == view.data_ptr()
        assert (call.op, view.numel()) == ("all_reduce", 3)
        handled.append(call)
        return work

    session.start()
    thread = threading.Thread(target=release, daemon=True)
    thread.start()
    with handler(handle):
        for _ in range(4):
            tensor = torch.ones(3)
            mcr_dl.all_reduce(tensor, backend=backend, async_op=True).wait()
            assert tensor.tolist() == [float(mcr_dl.get_world_size())] * 3
            expect(InvalidArgumentError, lambda: handled[-1].output, "the call is over")
    thread.join()


def mends(backend: str) -> None:
    """A wrong proceed() changes nothing: a pass that catches its error may call it again."""

    def handle(call: PassedCall) -> Any:
        count = call.output.numel()
        wrong: list[tuple[type[Exception], dict[str, Any], str]] = [
            (InvalidArgumentError, {"backend": "nonsense"}, "nonsense"),
            (InvalidArgumentError, {"output": torch.zeros(count + 1)}, f"output: expected {count} elements"),
            (InvalidArgumentError, {"output": torch.zeros(count), "backend": "nonsense"}, "nonsense"),
        ]
        if call.input is not None:
            wide = torch.zeros(call.input.numel(), dtype=torch.float64)
            wrong += [
                (InvalidTypeError, {"input": wide}, "must have one dtype"),
                (InvalidTypeError, {"input": wide, "output": torch.zeros(count)}, "float64"),
            ]
        for kind, arguments, words in wrong:
            expect(kind, lambda a=arguments: call.proceed(**a), words)
        return call.proceed()

    session.start()
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    with handler(handle):
        tensor = torch.ones(3)
        _both(tensor, backend)
        assert tensor.tolist() == [float(size**2)] * 3
        for asynchronous in (False, True):
            parts = [torch.zeros(2) for _ in range(size)]
            mine = torch.full((2,), float(rank))
            work = mcr_dl.all_gather(parts, mine, backend=backend, async_op=asynchronous)
            if work is not None:
                work.wait()
            assert torch.stack(parts).tolist() == [[float(each)] * 2 for each in range(size)]


def _suppressed(action: Callable[[], Any]) -> None:
    with contextlib.suppress(InvalidArgumentError, ValueError):
        action()


def mistakes() -> None:
    """Mistakes of a pass raise in the call, name the pass, and leave the group usable."""
    session.start()

    def raises(call: PassedCall) -> Any:
        raise ValueError(f"no {call.op} today")

    twice = "pass 'mine': expected a call that the pass still holds, got one that it has issued"
    cases: list[tuple[Handle, type[Exception], str]] = [
        (raises, ValueError, "no all_reduce today"),
        (lambda _: None, InvalidArgumentError, "pass 'mine': handle() must call"),
        (lambda call: [call.proceed(), call.proceed()], InvalidArgumentError, twice),
        (lambda call: call.proceed(output=torch.zeros(1)), InvalidArgumentError, "output: expected 3 elements, got 1"),
        (lambda call: call.proceed(output=torch.zeros(3, dtype=torch.bool)), InvalidTypeError, "AVG is not defined"),
        (lambda call: call.proceed(input=torch.zeros(3)), InvalidArgumentError, "input: expected"),
        (lambda call: call.proceed(backend="ncll"), InvalidArgumentError, "ncll"),
        (lambda call: call.proceed(ouput=call.output), InvalidTypeError, "output and backend, got ouput"),
        (lambda call: _suppressed(lambda: call.proceed(backend="ncll")), InvalidArgumentError, "handle() must call"),
    ]
    for handle, kind, words in cases:
        with handler(handle):
            for mode in (False, True):
                tensor = torch.ones(3)
                expect(kind, lambda t=tensor, m=mode: mcr_dl.all_reduce(t, op=mcr_dl.ReduceOp.AVG, async_op=m), words)
    with handler(lambda call: call.proceed() and None):
        expect(InvalidTypeError, lambda: mcr_dl.all_reduce(torch.ones(3), async_op=True), "must return the Work")
    former = mcr_dl.all_reduce(torch.ones(3), async_op=True)
    with handler(lambda call: call.proceed() and former):
        words = "expected handle() to return the Work of this call"
        expect(InvalidArgumentError, lambda: mcr_dl.all_reduce(torch.ones(3), async_op=True), words)
    former.wait()
    with handler(lambda call: call.hold()):
        expect(InvalidArgumentError, lambda: mcr_dl.all_reduce(torch.ones(3)), "only an asynchronous call")
    # A pass cannot hide that the call has failed.
    mcr_dl.register_pass(Handler(raises), "inner")
    mcr_dl.register_pass(Handler(lambda call: _suppressed(call.proceed)), "outer")
    with chain("outer", "inner"):
        for mode in (False, True):
            expect(ValueError, lambda m=mode: mcr_dl.all_reduce(torch.ones(3), async_op=m), "no all_reduce today")
    kept: list[PassedCall] = []
    with handler(lambda call: (kept.append(call), call.proceed())[1]):
        mcr_dl.all_reduce(torch.ones(3))
        expect(InvalidArgumentError, lambda: kept[0].op, "the call is over")

    def fails_late(call: PassedCall) -> Any:
        call.after(lambda: 1 / 0)
        return call.proceed()

    with handler(fails_late):
        expect(ZeroDivisionError, lambda: mcr_dl.all_reduce(torch.ones(3)), "division by zero")
        work = mcr_dl.all_reduce(torch.ones(3), async_op=True)
        expect(ZeroDivisionError, work.wait, "division by zero")
    mcr_dl.synchronize()
    tensor = torch.ones(3)
    _both(tensor, "auto")
    assert tensor.tolist() == [float(mcr_dl.get_world_size() ** 2)] * 3


def order() -> None:
    """Calls go through the passes in the order of the list; steps at the end run in reverse order."""
    session.start()
    seen: list[str] = []

    def named(name: str) -> Handler:
        def handle(call: PassedCall) -> Any:
            seen.append(f"{name} in")
            call.after(lambda: seen.append(f"{name} out"))
            return call.proceed()

        return Handler(handle)

    for name in ("outer", "inner"):
        mcr_dl.register_pass(named(name), name)
    for names in (["outer", "inner"], ["inner", "outer"]):
        with chain(*names):
            assert mcr_dl.get_passes() == names
            for mode in (False, True):
                seen.clear()
                work = mcr_dl.all_reduce(torch.ones(3), async_op=mode)
                if mode:
                    work.wait()
                first, second = names
                assert seen == [f"{first} in", f"{second} in", f"{second} out", f"{first} out"]
    assert mcr_dl.get_passes() == []


def agreement() -> None:
    """Chains that differ between ranks are rejected on all of them; the group keeps its chain."""
    session.start()
    rank = mcr_dl.get_rank()
    with chain("fuse"):
        wrong: list[tuple[Any, str]] = [
            ([] if rank == 0 else ["fuse"], "passes: expected the same on all ranks"),
            ([Fuse(buffer_bytes=1000 + rank)], "passes: expected the same on all ranks"),
            (["fuse", "fuse"], "every pass once"),
            (["fuze"] if rank else ["fuse"], "fuze"),
        ]
        for passes, words in wrong:
            expect(InvalidArgumentError, lambda p=passes: mcr_dl.set_passes(p), words)
        expect(InvalidTypeError, lambda: mcr_dl.set_passes("fuse"), "a list of passes")
        expect(InvalidTypeError, lambda: mcr_dl.set_passes([3]), "a name or a pass")
        assert mcr_dl.get_passes() == ["fuse"]
        tensor = torch.ones(3)
        mcr_dl.all_reduce(tensor, async_op=True).wait()
        assert tensor.tolist() == [float(mcr_dl.get_world_size())] * 3


def init_gives_them() -> None:
    """Passes of init apply to the default group and to every later one."""
    session.stop()
    mcr_dl.init_process_group(list(session.BACKENDS), passes=[Fuse(buffer_bytes=4096)])
    group = mcr_dl.new_group()
    assert mcr_dl.get_passes() == mcr_dl.get_passes(group) == ["fuse"]
    tensors = [torch.ones(3) for _ in range(10)]
    for tensor, work in [(t, mcr_dl.all_reduce(t, group=group, async_op=True)) for t in tensors]:
        work.wait()
        assert tensor.tolist() == [float(mcr_dl.get_world_size())] * 3
    mcr_dl.destroy_process_group(group)
    session.stop()


# ---- fusion
