# SPDX-License-Identifier: Apache-2.0
"""The chain of passes on real groups: passes in Python, agreement on the chain, fusion at different speeds."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import mcr_dl
from mcr_dl import _C, InvalidArgumentError, InvalidTypeError
from mcr_dl.passes import Compress, Fuse, Log, PassedCall
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
        work = call.proceed(output=short, backend=other)
        backends.append(call.backend)
        return work

    session.start()
    size = mcr_dl.get_world_size()
    with handler(handle):
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

    cases: list[tuple[Handle, type[Exception], str]] = [
        (raises, ValueError, "no all_reduce today"),
        (lambda _: None, InvalidArgumentError, "pass 'mine': handle() must call"),
        (lambda call: [call.proceed(), call.proceed()], InvalidArgumentError, "pass 'mine': the call has gone on"),
        (lambda call: call.proceed(output=torch.zeros(1)), InvalidArgumentError, "output: expected 3 elements, got 1"),
        (lambda call: call.proceed(output=torch.zeros(3, dtype=torch.bool)), InvalidTypeError, "AVG is not defined"),
        (lambda call: call.proceed(input=torch.zeros(3)), InvalidArgumentError, "input: expected"),
        (lambda call: call.proceed(backend="ncll"), InvalidArgumentError, "ncll"),
        (lambda call: _suppressed(lambda: call.proceed(backend="ncll")), InvalidArgumentError, "handle() must call"),
    ]
    for handle, kind, words in cases:
        with handler(handle):
            for mode in (False, True):
                tensor = torch.ones(3)
                expect(kind, lambda t=tensor, m=mode: mcr_dl.all_reduce(t, op=mcr_dl.ReduceOp.AVG, async_op=m), words)
    with handler(lambda call: call.proceed() and None):
        expect(InvalidTypeError, lambda: mcr_dl.all_reduce(torch.ones(3), async_op=True), "must return the Work")
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
            expect(InvalidArgumentError, lambda p=passes: mcr_dl.set_passes(p), "" if rank == 0 else words)
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


def _statistics(group: Any = None) -> dict[str, int]:
    (station,) = _C.passes(_C.world() if group is None else _C.group_of(group))
    assert isinstance(station, _C.FusePass)
    return station.statistics()


class Batch:
    """Calls of one operation, with their expected results."""

    def __init__(self, operation: str, dtype: torch.dtype, average: bool, group: Any, backend: str) -> None:
        self.operation, self.dtype, self.group, self.backend = operation, dtype, group, backend
        self.reduction = mcr_dl.ReduceOp.AVG if average else mcr_dl.ReduceOp.SUM
        self.rank, self.size = mcr_dl.get_rank(group), mcr_dl.get_world_size(group)
        self.results: list[tuple[torch.Tensor, torch.Tensor]] = []

    def _values(self, count: int, rank: int, number: int) -> torch.Tensor:
        return (torch.arange(count) % 3 + rank + number % 5).to(self.dtype)

    def start(self, count: int, number: int) -> Any:
        """One call with ``count`` elements per rank."""
        ranks, mine = range(self.size), self._values(count, self.rank, number)
        options = {"group": self.group, "backend": self.backend, "async_op": True}
        if self.operation == "broadcast":
            root = number % self.size
            self.results.append((mine, self._values(count, root, number)))
            return mcr_dl.broadcast(mine, group_src=root, **options)
        if self.operation == "all_reduce":
            self.results.append((mine, self._reduced([self._values(count, r, number) for r in ranks])))
            return mcr_dl.all_reduce(mine, op=self.reduction, **options)
        if self.operation == "all_gather":
            out = [torch.empty(count, dtype=self.dtype) for _ in ranks]
            self.results += [(out[r], self._values(count, r, number)) for r in ranks]
            return mcr_dl.all_gather(out, mine, **options)
        whole = [self._values(count * self.size, r, number) for r in ranks]
        out_block = torch.empty(count, dtype=self.dtype)
        self.results.append((out_block, self._reduced(whole).view(self.size, count)[self.rank]))
        return mcr_dl.reduce_scatter_tensor(out_block, whole[self.rank], op=self.reduction, **options)

    def _reduced(self, parts: list[torch.Tensor]) -> torch.Tensor:
        total = torch.stack(parts).sum(0).to(self.dtype)
        return total / self.size if self.reduction == mcr_dl.ReduceOp.AVG else total

    def check(self) -> None:
        for number, (got, expected) in enumerate(self.results):
            assert torch.equal(got, expected), (self.operation, self.dtype, number)


MOVES = ("broadcast", "all_gather")
OPERATIONS = ("all_reduce", "reduce_scatter", *MOVES)
KINDS = ((torch.float32, False), (torch.float32, True), (torch.int64, False), (torch.bool, False))


def _wait(works: list[Any], how: int) -> None:
    if how == 0:
        for work in works:
            work.wait()
    elif how == 1:
        for work in reversed(works):
            work.wait()
    elif how == 2:
        while not all(work.is_completed() for work in works):
            time.sleep(0.0001)
    else:
        mcr_dl.synchronize()


def fused(backend: str, group_name: str = "world") -> None:
    """Ranks of different speeds, each waiting in its own way: right values, and equal flushes on all ranks."""
    session.start()
    group = session.group(group_name)
    if group is None:
        return
    rank = mcr_dl.get_rank(group)
    source = random.Random(17)  # the calls: equal on all ranks
    pace = random.Random(rank)  # the speed and the ways to wait: different
    mcr_dl.set_passes([Fuse(buffer_bytes=3000, hold_microseconds=300, largest_bytes=1500)], group)
    for _ in range(4):
        batches = [
            Batch(operation, dtype, average, group, backend)
            for operation in OPERATIONS
            for dtype, average in KINDS
            if operation in MOVES or dtype != torch.bool
        ]
        works = []
        for number in range(60):
            works.append(source.choice(batches).start(source.choice([1, 17, 60, 120, 400]), number))
            if pace.random() < 0.1:
                time.sleep(pace.random() * 0.002)
            if pace.random() < 0.05:
                works[-1].wait()
        if pace.random() < 0.5:
            time.sleep(0.003)
        mcr_dl.barrier(group, backend=backend)
        _wait(works, pace.randrange(4))
        for batch in batches:
            batch.check()
    mcr_dl.barrier(group, backend=backend)
    seen = _statistics(group)
    assert 0 < seen["flushes"] <= seen["calls"], seen  # on a slow machine each may be flushed alone
    every: list[Any] = [None] * mcr_dl.get_world_size(group)
    mcr_dl.all_gather_object(every, seen, group=group)
    assert all(one == seen for one in every), every
    mcr_dl.set_passes([], group)


def fused_and_ordinary(backend: str) -> None:
    """Fused calls mixed with blocking ones and other operations: none waits forever for another's hold time."""
    session.start()
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    with chain(Fuse(buffer_bytes=1 << 16, hold_microseconds=60_000_000)):  # only waits and full buffers flush
        for number in range(30):
            small = [torch.full((5,), float(rank + i)) for i in range(3)]
            works = [mcr_dl.all_reduce(tensor, backend=backend, async_op=True) for tensor in small]
            if (number + rank) % size == 0:
                works.pop(0).wait()
            total = torch.ones(4)
            mcr_dl.all_reduce(total, backend=backend)
            mcr_dl.barrier(backend=backend)
            assert total.tolist() == [float(size)] * 4
            for work in works if rank % 2 else reversed(works):
                work.wait()
            for i, tensor in enumerate(small):
                assert tensor.tolist() == [float(sum(range(size)) + size * i)] * 5
        dropped = torch.ones(7)
        mcr_dl.all_reduce(dropped, backend=backend, async_op=True)
        mcr_dl.synchronize()
        assert dropped.tolist() == [float(size)] * 7


def multiplied(backend: str) -> None:
    """Sums with a factor of their own each, through passes that would lose it: right values."""
    session.start()
    size = mcr_dl.get_world_size()
    for station in (Fuse(hold_microseconds=60_000_000), Compress("bf16", smallest=0)):
        with chain(station):
            factors = (2.0, 3.0, 0.5)
            sums = [torch.ones(4) for _ in factors]
            parts = [torch.zeros(2) for _ in factors]
            works = []
            for factor, total, part in zip(factors, sums, parts, strict=True):
                op = torch.distributed._make_nccl_premul_sum(factor)
                works.append(mcr_dl.all_reduce(total, op, backend=backend, async_op=True))
                whole = torch.ones(2 * size)
                works.append(mcr_dl.reduce_scatter_tensor(part, whole, op, backend=backend, async_op=True))
            for work in works:
                work.wait()
            for factor, total, part in zip(factors, sums, parts, strict=True):
                assert total.tolist() == [factor * size] * 4, (factor, total)
                assert part.tolist() == [factor * size] * 2, (factor, part)


def held_at_a_change(backend: str) -> None:
    """set_passes releases the calls that the old chain holds; the work of a dropped pass still completes."""
    session.start()
    size = mcr_dl.get_world_size()
    tensor = torch.ones(3)
    mcr_dl.set_passes([Fuse(hold_microseconds=60_000_000)])
    work = mcr_dl.all_reduce(tensor, backend=backend, async_op=True)
    mcr_dl.set_passes([])
    work.wait()
    assert tensor.tolist() == [float(size)] * 3


# ---- all together


def together(backend: str, names: tuple[str, ...]) -> None:
    """All passes at once, in any order, blocking and asynchronous: right values, and every call in the log."""
    session.start()
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    options = {
        "log": Log(),
        "fuse": Fuse(buffer_bytes=2048, hold_microseconds=200),
        "compress": Compress("bf16", smallest=0),
    }
    pace = random.Random(rank)
    with chain(*(options[name] for name in names)):
        first = len(mcr_dl.log_records())
        batches = [Batch(operation, torch.float32, False, None, backend) for operation in OPERATIONS]  # exact in bf16
        works = [batch.start(3 + number % 20, number) for number in range(30) for batch in batches]
        if pace.random() < 0.5:
            time.sleep(0.002)
        total = torch.full((300,), float(rank))
        mcr_dl.all_reduce(total, backend=backend)
        out, into = torch.zeros(2 * size), torch.full((2 * size,), float(rank))
        mcr_dl.all_to_all_single(out, into, backend=backend)
        mcr_dl.barrier(backend=backend)
        _wait(works, pace.randrange(4))
        for batch in batches:
            batch.check()
        assert total.tolist() == [float(sum(range(size)))] * 300
        assert out.tolist() == [float(peer) for peer in range(size) for _ in range(2)]
        mcr_dl.synchronize()
        records = mcr_dl.log_records()[first:]
    if names[0] == "log":
        assert len(records) == len(works) + 3
        assert all(record.state == "completed" for record in records)
        if names[1] == "fuse":
            assert sum(record.fused for record in records) == len(works)
        assert {record.error_bound for record in records if record.codec == "bf16"} == {"2^-8 of each value"}
        summary = mcr_dl.log_summary(return_dict=True)
        assert summary is not None
        assert summary["metadata"]["codecs"]["bf16"]["error_bound"] == "2^-8 of each value"
