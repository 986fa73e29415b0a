# SPDX-License-Identifier: Apache-2.0
"""The pass ``fuse`` on real groups: ranks of different speeds, other calls between, and chains with ``compress``."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import torch

import mcr_dl
from mcr_dl import _C
from mcr_dl.passes import Compress, Fuse, Log, PassedCall
from ranks import session
from ranks.passes import Handler, chain, handler


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


def encoded_broadcasts(backend: str) -> None:
    """Of one call or several in a buffer: the root gets the decoded values too."""
    session.start()
    size = mcr_dl.get_world_size()
    with chain(Fuse(hold_microseconds=60_000_000), Compress("bf16", ops=["broadcast"], smallest=0)):
        for count in (1, 2, 3):
            tensors = [torch.full((64,), 1.0 + 2**-12) for _ in range(count)]  # bfloat16 rounds it to 1
            root = count % size
            for work in [mcr_dl.broadcast(each, root, backend=backend, async_op=True) for each in tensors]:
                work.wait()
            assert [each.unique().tolist() for each in tensors] == [[1.0]] * count


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


def held_while_a_group_is_made(backend: str) -> None:
    """A rank makes a group while a call is held, which another rank waits for before it makes the group."""
    with chain(Fuse()):
        for turn in range(4):
            late = (mcr_dl.get_rank() + turn) % 2 == 1
            time.sleep(0.1 * late)
            tensor = torch.ones(5)
            work = mcr_dl.all_reduce(tensor, async_op=True, backend=backend)
            if late:
                work.wait()
            made = mcr_dl.new_group(backend=backend, timeout=20)
            work.wait()
            assert bool(tensor.eq(mcr_dl.get_world_size()).all())
            mcr_dl.destroy_process_group(made)


def names_no_backend(backend: str) -> None:
    """Calls that a pass and its steps make do not follow ``use()``, on whichever thread they run."""
    session.start()
    inner = mcr_dl.new_group(timeout=10)
    named: list[str | None] = []

    def see(call: PassedCall) -> Any:
        named.append(call.backend)
        return call.proceed()

    def ask() -> None:
        mcr_dl.all_reduce(torch.ones(1), group=inner)

    def handle(call: PassedCall) -> Any:
        ask()
        call.after(ask)
        return call.proceed()

    mcr_dl.register_pass(Handler(see), "sees")
    with chain("sees", group=inner), handler(handle), mcr_dl.use(backend):
        ask()
        mcr_dl.all_reduce(torch.ones(2))
        ask()
    assert named == [backend, None, None, backend]
    mcr_dl.destroy_process_group(inner)


def names_no_backend_on_autograds_thread(backend: str) -> None:
    """A pass on a thread that torch has given the name of a block of ``use()`` leaves the block as it is."""
    session.start()
    inner = mcr_dl.new_group(timeout=10)
    inside, go_on = threading.Event(), threading.Event()
    named: list[str | None] = []

    def see(call: PassedCall) -> Any:
        named.append(call.backend)
        return call.proceed()

    def handle(call: PassedCall) -> Any:
        inside.set()
        assert go_on.wait(20), "the other thread has not come back"
        return call.proceed()

    def differentiate() -> None:
        torch._C._stash_obj_in_tls("mcr_dl.use", backend)  # as torch does for autograd's threads
        mcr_dl.all_reduce(torch.ones(2))

    mcr_dl.register_pass(Handler(see), "sees")
    thread = threading.Thread(target=differentiate)
    with chain("sees", group=inner), handler(handle), mcr_dl.use(backend):
        thread.start()
        assert inside.wait(20)
        mcr_dl.all_reduce(torch.ones(1), group=inner)
        go_on.set()
        thread.join()
    assert named == [backend]
    mcr_dl.destroy_process_group(inner)


# ---- calls of passes behind it


def asks_while_others_are_held(backend: str) -> None:
    """A pass makes a blocking call of a group while another group holds calls, on some ranks before and on some after.

    The flush runs on a thread of MCR-DL, which must not keep the library from the thread that makes the other calls.
    """
    session.start()
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    asking, holding, asked = (mcr_dl.new_group(backend=backend, timeout=10) for _ in range(3))
    begun = threading.Event()
    sums: list[float] = []

    def ask(call: PassedCall) -> Any:
        begun.set()
        total = torch.ones(1)
        mcr_dl.all_reduce(total, group=asked)
        sums.append(total.item())
        return call.proceed()

    mcr_dl.register_pass(Handler(ask), "asks")
    mcr_dl.set_passes([Fuse(hold_microseconds=20_000), "asks"], asking)
    mcr_dl.set_passes([Fuse(hold_microseconds=60_000_000)], holding)
    for _ in range(10):
        begun.clear()
        tensors = [torch.ones(4), torch.ones(4)]
        works = [mcr_dl.all_reduce(tensors[0], group=asking, async_op=True)]
        if rank == 0:
            assert begun.wait(20)
        works.append(mcr_dl.all_reduce(tensors[1], group=holding, async_op=True))
        for work in works:
            work.wait()
        assert [tensor.tolist() for tensor in tensors] == [[float(size)] * 4] * 2
    assert sums == [size] * 10
    for group in (asking, holding):
        mcr_dl.set_passes([], group)
    for group in (asking, holding, asked):
        mcr_dl.destroy_process_group(group)


def asks_its_own_group(backend: str) -> None:
    """A call that a pass makes on its group, where no other calls go around ``fuse``, is not held behind itself."""
    session.start()
    size = mcr_dl.get_world_size()
    sums: list[float] = []
    inside = threading.local()

    def ask(call: PassedCall) -> Any:
        if getattr(inside, "asks", False):
            return call.proceed()
        inside.asks = True
        for mode in (False, True):
            total = torch.ones(2)
            work = mcr_dl.all_reduce(total, backend=backend, async_op=mode)
            if work is not None:
                work.wait()
            sums.append(total[0].item())
        inside.asks = False
        return call.proceed()

    mcr_dl.register_pass(Handler(ask), "asks")
    with chain(Fuse(hold_microseconds=60_000_000), "asks"):
        for _ in range(3):
            tensor = torch.ones(4)
            mcr_dl.all_reduce(tensor, backend=backend, async_op=True).wait()
            assert tensor.tolist() == [float(size)] * 4
    assert sums == [size] * 6


def asks_in_a_step(backend: str) -> None:
    """A step makes calls of a group; on some ranks it runs in a flush of ``fuse``, on others not: calls have one form.

    The calls of the step are not held, as this flush could not flush them.
    """
    session.start()
    size = mcr_dl.get_world_size()
    own = mcr_dl.new_group(backend=backend, timeout=10)
    sums: list[float] = []

    def ask() -> None:
        for mode in (False, True):
            total = torch.ones(1)
            work = mcr_dl.all_reduce(total, group=own, async_op=mode)
            if work is not None:
                work.wait()
            sums.append(total.item())

    def handle(call: PassedCall) -> Any:
        call.after(ask)
        return call.proceed()

    mcr_dl.register_pass(Handler(handle), "asks")
    mcr_dl.set_passes([Fuse(hold_microseconds=0)], own)
    with chain(Fuse(hold_microseconds=0), "asks"):
        for _ in range(200):
            tensor = torch.ones(4)
            mcr_dl.all_reduce(tensor, backend="shm", async_op=True).wait()
            assert tensor.tolist() == [float(size)] * 4
    assert sums == [size] * 400
    mcr_dl.set_passes([], own)
    mcr_dl.destroy_process_group(own)
