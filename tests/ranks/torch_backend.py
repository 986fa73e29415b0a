# SPDX-License-Identifier: Apache-2.0
"""Calls of torch.distributed on the backend "mcr", beyond the operation table."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import mcr_dl
from mcr_dl import CollectiveTimeoutError, InvalidArgumentError, InvalidTypeError, NotInitializedError, UnsupportedError
from mcr_dl.testing.expect import expect
from ranks import session

Tensors = list[torch.Tensor]


def _pg() -> dist.ProcessGroup:
    session.start()
    group = dist.group.WORLD
    assert group is not None
    return group


def _mine(count: int = 5) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32) + 10 * dist.get_rank()


def _sum(count: int = 5) -> torch.Tensor:
    size = dist.get_world_size()
    return torch.arange(count, dtype=torch.float32) * size + 10 * sum(range(size))


def messages() -> None:
    """Tags tell messages apart, recv without a source returns the sender, isend and irecv of torch return works."""
    _pg()
    me, size = dist.get_rank(), dist.get_world_size()
    if me > 0:
        dist.send(torch.full((3,), float(me)), 0, tag=me)
        second = dist.isend(torch.full((2,), 100.0 + me), 0, tag=50)
        assert second is not None
        second.wait()
    else:
        for source in reversed(range(1, size)):  # not in the order of sending
            buffer = torch.zeros(3)
            assert dist.recv(buffer, source, tag=source) == source
            assert buffer.tolist() == [source] * 3
        senders = set()
        for _ in range(1, size):
            buffer = torch.zeros(2)
            sender = dist.recv(buffer, tag=50)
            assert buffer.tolist() == [100.0 + sender] * 2
            senders.add(sender)
        assert senders == set(range(1, size))
    dist.barrier()


def coalescing() -> None:
    """torch's coalescing manager, with and without async_ops: one work for all calls of the block."""
    group = _pg()
    for asynchronous in (False, True):
        tensors = [_mine(count) for count in (1, 5, 1000)]
        with dist._coalescing_manager(group, async_ops=asynchronous) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if asynchronous:
            manager.wait()
        for tensor in tensors:
            assert torch.equal(tensor, _sum(tensor.numel()))
    # With a device each call goes to the backend separately.
    size = dist.get_world_size()
    gathered, tensor = torch.empty(5 * size), _mine()
    with dist._coalescing_manager(group, torch.device("cpu"), async_ops=True) as manager:
        group.allreduce([tensor])
        group._allgather_base(gathered, _mine())
    manager.wait()
    assert torch.equal(tensor, _sum())
    assert torch.equal(gathered, torch.cat([torch.arange(5.0) + 10 * rank for rank in range(size)]))
    expect(InvalidArgumentError, lambda: group._end_coalescing(torch.device("cpu")), "endCoalescing")


def blocks_of_threads() -> None:
    """A blocking call of another thread is in no block: it returns when it is complete."""
    group = _pg()
    begun, over, results = threading.Event(), threading.Event(), []

    def block() -> None:
        group._start_coalescing(torch.device("cpu"))
        begun.set()
        assert over.wait(60)
        results.append(group._end_coalescing(torch.device("cpu")).result())

    thread = threading.Thread(target=block)
    thread.start()
    assert begun.wait(60)
    tensor = _mine(300_000)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, _sum(300_000))
    over.set()
    thread.join()
    assert results == [[]]


def coalesced_forms() -> None:
    """The forms that take several tensors at once."""
    group = _pg()
    size = dist.get_world_size()
    tensors = [_mine(3), _mine(7)]
    group.allreduce_coalesced(tensors).wait()
    assert [torch.equal(tensor, _sum(tensor.numel())) for tensor in tensors] == [True] * 2
    inputs = [_mine(3), _mine(4)]
    outputs = [[torch.empty(3), torch.empty(4)] for _ in range(size)]
    dist.all_gather_coalesced(outputs, inputs)
    for rank, row in enumerate(outputs):
        assert all(torch.equal(tensor, torch.arange(float(tensor.numel())) + 10 * rank) for tensor in row)
    flat = [torch.empty(3 * size), torch.empty(4 * size)]
    group.allgather_into_tensor_coalesced(flat, inputs).wait()
    assert torch.equal(flat[1], torch.cat([row[1] for row in outputs]))
    parts = [torch.empty(2), torch.empty(1)]
    sources = [torch.arange(2.0 * size), torch.arange(1.0 * size)]
    group.reduce_scatter_tensor_coalesced(parts, sources).wait()
    assert torch.equal(parts[0], size * torch.arange(2.0 * size).view(size, 2)[dist.get_rank()])
    expect(InvalidArgumentError, lambda: group.allgather_into_tensor_coalesced(flat, inputs[:1]), "all_gather", "got 2")


def batches() -> None:
    """torch's batch_isend_irecv in a ring, sends first on all ranks."""
    _pg()
    me, size = dist.get_rank(), dist.get_world_size()
    for count in (1, 300_000):
        source, target = torch.full((count,), float(me)), torch.empty(count)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, source, (me + 1) % size),
                dist.P2POp(dist.irecv, target, (me - 1) % size),
            ]
        )
        for work in works:
            work.wait()
        assert torch.equal(target, torch.full((count,), float((me - 1) % size)))


def broken_batches() -> None:
    """An error in a batch ends it: what it had started is sent, and later batches and blocking calls are whole."""
    group = _pg()
    me, peer = dist.get_rank(), 1 - dist.get_rank()
    mine, theirs = torch.full((3,), float(me)), torch.empty(3)
    wrong = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.isend, torch.ones(6)[::2], peer)]
    right = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]
    for _ in range(2):
        expect(InvalidArgumentError, lambda: dist.batch_isend_irecv(wrong), "send", "contiguous")
        tensor = _mine()
        dist.all_reduce(tensor)
        assert torch.equal(tensor, _sum())
        large = torch.full((1 << 22,), float(me))
        dist.broadcast(large, 1)
        assert bool((large == 1).all())
        theirs.fill_(-1)
        dist.recv(theirs, peer)
        assert theirs.tolist() == [float(peer)] * 3
    for start in (lambda: None, lambda: group._start_coalescing(torch.device("cpu"))):  # also one that torch has left
        start()
        theirs.fill_(-1)
        for work in dist.batch_isend_irecv(right):
            work.wait()
        assert theirs.tolist() == [float(peer)] * 3
        large = torch.full((1 << 22,), float(me))
        dist.broadcast(large, 0)
        assert bool((large == 0).all())
    # A program that catches the error inside the block still waits for the calls before it.
    tensor = _mine(300_000)
    with dist._coalescing_manager(group, torch.device("cpu"), async_ops=True) as manager:
        group.allreduce([tensor])
        expect(InvalidArgumentError, lambda: group.allreduce([torch.ones(6)[::2]]), "contiguous")
    manager.wait()
    assert torch.equal(tensor, _sum(300_000))
    # A block of one group in that of another.
    other = dist.new_group(backend="mcr")
    tensors = [_mine(size) for size in (3, 300_000, 5)]
    with dist._coalescing_manager(group, torch.device("cpu"), async_ops=True) as manager:
        group.allreduce([tensors[0]])
        with dist._coalescing_manager(other, torch.device("cpu"), async_ops=True) as inner:
            other.allreduce([tensors[1]])
        inner.wait()
        group.allreduce([tensors[2]])
    manager.wait()
    assert all(torch.equal(each, _sum(each.numel())) for each in tensors)
    dist.destroy_process_group(other)


def sparse() -> None:
    """all_reduce of sparse tensors: entries in different places, and none on one rank."""
    _pg()
    me, size = dist.get_rank(), dist.get_world_size()
    indices = torch.tensor([[me, me + 1], [0, 1]]) if me else torch.empty(2, 0, dtype=torch.int64)
    values = torch.tensor([1.0 + me, 2.0 + me]) if me else torch.empty(0)
    tensor = torch.sparse_coo_tensor(indices, values, (size + 1, 2))
    want = torch.zeros(size + 1, 2)
    for rank in range(1, size):
        want[rank, 0] += 1.0 + rank
        want[rank + 1, 1] += 2.0 + rank
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    assert torch.equal(tensor.to_dense(), want)
    rows = torch.sparse_coo_tensor(torch.tensor([[me]]), torch.full((1, 3), 1.0 + me), (size, 3))  # dense rows
    dist.all_reduce(rows)
    assert torch.equal(rows.to_dense(), torch.arange(1.0, size + 1).unsqueeze(1).expand(size, 3))
    expect(UnsupportedError, lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX), "all_reduce (", "SUM, got MAX")
    assert work.wait(timedelta(seconds=2))
    (result,) = work.result()
    assert result is tensor
    assert work.get_future().wait()[0] is tensor
    for shape in ((size + me, 2), (size, 2 + me)):
        other = torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, shape[1]), shape)
        expect(InvalidArgumentError, lambda other=other: dist.all_reduce(other), "equal shapes", "rank 1 of the group")
    dist.all_reduce(rows)


def premultiplied_sum() -> None:
    """A reduction with a factor is a multiplication and a sum."""
    _pg()
    tensor = _mine()
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(2.0))
    assert torch.equal(tensor, 2 * _sum())


def works() -> None:
    """The methods of torch's Work."""
    _pg()
    tensor = _mine()
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    assert work.wait() is True
    assert work.wait(timedelta(seconds=5)) is True
    assert work.is_completed()
    assert work.is_success()
    assert torch.equal(work.get_future().value()[0], _sum())
    assert work.get_future_result().wait() == 0  # WorkResult.SUCCESS
    assert dist.all_reduce(tensor) is None


def futures() -> None:
    """Futures get results without a wait, run chained functions, and may be requested late."""
    _pg()
    size = dist.get_world_size()
    for count in (3, 300_000):
        tensor = _mine(count)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        chained = work.get_future().then(lambda future: future.value()[0] / size)
        del work
        assert torch.equal(chained.wait(), _sum(count) / size)
    outputs = [torch.empty(4) for _ in range(size)]
    work = dist.all_gather(outputs, _mine(4), async_op=True)
    assert work is not None
    work.wait()
    assert torch.equal(torch.cat(work.get_future().wait()), torch.cat(outputs))
    several = _pg().allreduce_coalesced([_mine(2), _mine(3)])
    future = several.get_future()
    del several  # the future keeps what it needs
    assert [tensor.numel() for tensor in future.wait()] == [2, 3]


def failing_futures() -> None:
    """A message longer than its receiver's tensor: the future gets the error too, and its result reports it."""
    _pg()
    if dist.get_rank() == 0:
        dist.send(torch.zeros(8), 1)
    else:
        with mcr_dl.use("mpi"):
            work = dist.irecv(torch.zeros(4), 0)
        assert work is not None
        future, result = work.get_future(), work.get_future_result()
        expect(InvalidArgumentError, work.wait, "mpi.recv", "4 elements")
        expect(InvalidArgumentError, future.wait, "mpi.recv")
        assert result.wait() != 0
        assert not work.is_success()
    dist.barrier()


def barriers() -> None:
    """barrier and torch's monitored barrier, which names the missing rank."""
    group = _pg()
    dist.barrier()
    work = dist.barrier(async_op=True)
    assert work is not None
    work.wait()
    group.monitored_barrier(timedelta(seconds=20))
    if dist.get_rank() != 1:
        expect(CollectiveTimeoutError, lambda: group.monitored_barrier(timedelta(seconds=1)), "rank 1 ")
    dist.barrier()


def objects() -> None:
    """torch's object collectives."""
    _pg()
    me, size = dist.get_rank(), dist.get_world_size()
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, {"rank": me, "text": "x" * me})
    assert everyone == [{"rank": rank, "text": "x" * rank} for rank in range(size)]
    some = ["a", 2] if me == 1 else [None, None]
    dist.broadcast_object_list(some, src=1)
    assert some == ["a", 2]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [10, 11, 12][:size] if me == 0 else None, src=0)
    assert mine == [10 + me]
    gathered = [None] * size if me == 2 % size else None
    dist.gather_object(me, gathered, dst=2 % size)
    assert gathered is None or gathered == list(range(size))


def sequence_numbers() -> None:
    """Collectives are counted, messages are not."""
    backend = _pg()._get_backend(torch.device("cpu"))
    backend._set_sequence_number_for_group()
    before = backend._get_sequence_number_for_group()
    dist.all_reduce(_mine())
    dist.barrier()
    assert backend._get_sequence_number_for_group() == before + 2
    peer = 1 - dist.get_rank()
    work = dist.isend(_mine(), peer)
    dist.recv(torch.empty(5), peer)
    assert work is not None
    work.wait()
    assert backend._get_sequence_number_for_group() == before + 2


def hooks_and_times() -> None:
    """A hook is called for every collective, and works record their times, once that is enabled."""
    _pg()
    made = dist.new_group(backend="mcr")
    seen: list[Any] = []
    work = dist.all_reduce(_mine(), group=made, async_op=True)
    assert work is not None
    work.wait()
    expect(InvalidArgumentError, work._get_duration, "not enabled")
    made._register_on_completion_hook(seen.append)
    made._enable_collectives_timing()
    dist.all_reduce(_mine(), group=made)
    work = dist.all_reduce(_mine(), group=made, async_op=True)
    assert work is not None
    work.wait()
    made._wait_for_pending_works()
    assert len(seen) == 2
    with dist._coalescing_manager(made, torch.device("cpu"), async_ops=True) as block:
        for _ in range(3):
            made.allreduce([_mine()])
    block.wait()
    # A message of another group that is still to come is not waited for.
    peer = 1 - dist.get_rank()
    message = dist.irecv(torch.empty(5), peer)
    made._wait_for_pending_works()
    dist.send(_mine(), peer)
    message.wait()
    assert len(seen) == 5
    del seen[2:]
    assert all(info.active_duration > timedelta(0) for info in seen)
    assert 0 < work._get_duration() < 60_000
    expect(InvalidArgumentError, lambda: made._register_on_completion_hook(seen.append), "hook")
    dist.destroy_process_group(made)


def a_hook_that_waits() -> None:
    """A hook may wait for another operation, although no thread of the program waits for the first one."""
    _pg()
    made, other = dist.new_group(backend="mcr"), dist.new_group(backend="mcr")
    sums: list[torch.Tensor] = []

    def hook(_: Any) -> None:
        tensor = _mine()
        work = dist.all_reduce(tensor, group=other, async_op=True)
        assert work is not None
        work.get_future().wait()
        sums.append(tensor)

    made._register_on_completion_hook(hook)
    large = torch.ones(1 << 20)  # not complete at once
    work = dist.all_reduce(large, group=made, async_op=True)
    assert work is not None
    made._wait_for_pending_works()
    assert torch.equal(sums[0], _sum())
    dist.destroy_process_group(made)
    dist.destroy_process_group(other)


def errors_of_calls() -> None:
    """Wrong calls raise mcr_dl's error, nothing is sent, and the group stays usable."""
    group = _pg()
    size, backend = dist.get_world_size(), group._get_backend(torch.device("cpu"))
    wrong: list[tuple[type[Exception], Any, tuple[str, ...]]] = [
        (InvalidArgumentError, lambda: dist.all_gather_single(torch.empty(3), torch.empty(2)), ("all_gather", "got 3")),
        (InvalidArgumentError, lambda: dist.all_reduce(torch.ones(6)[::2]), ("contiguous", "all_reduce")),
        (InvalidTypeError, lambda: dist.all_reduce(_mine(), dist.ReduceOp.BAND), ("BAND", "float32")),
        (InvalidTypeError, lambda: dist.all_reduce(torch.empty(2, dtype=torch.float8_e4m3fnuz)), ("Float8_e4m3fnuz",)),
        (
            InvalidArgumentError,
            lambda: dist.all_to_all_single(torch.empty(4), torch.empty(4), [1, 1], [2, 2]),
            ("output_split_sizes", "got 2"),
        ),
        (InvalidArgumentError, lambda: group.allreduce([_mine(), _mine()]), ("tensors", "got 2")),
        (InvalidArgumentError, lambda: group.broadcast(_mine(), size), ("root", f"got {size}")),
    ]
    for error, call, words in wrong:
        before = backend._get_sequence_number_for_group()
        expect(error, call, *words)
        tensor = _mine()
        dist.all_reduce(tensor)
        assert torch.equal(tensor, _sum())
        assert backend._get_sequence_number_for_group() == before + 1


def timeouts() -> None:
    """The timeout of a group, and of one call."""
    _pg()
    made = dist.new_group(backend="mcr", timeout=timedelta(seconds=1.5))
    made._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(seconds=1))
    if dist.get_rank() == 0:
        buffer = torch.zeros(1)
        work = dist.irecv(buffer, 1, group=made)
        assert work is not None
        start = time.monotonic()
        expect(CollectiveTimeoutError, work.wait, "1000 ms")
        expect(CollectiveTimeoutError, lambda: work.wait(timedelta(milliseconds=20)), "20 ms")
        expect(InvalidArgumentError, lambda: made.set_timeout(timedelta(0)), "timeout", "positive", "got 0 ms")
        assert time.monotonic() - start >= 1.0
    dist.barrier()
    if dist.get_rank() == 1:
        dist.send(torch.ones(1), 0, group=made)
    else:
        work.wait(timedelta(days=150_000))  # longer than a clock of nanoseconds counts
        assert buffer.item() == 1
    dist.destroy_process_group(made)


def _backends_of(calls: Any) -> list[str]:
    """The backends that did the calls of a function, in order."""
    mcr_dl.set_passes(["log"])
    mcr_dl.reset_log()
    calls()
    done = [record.backend for record in mcr_dl.log_records()]
    mcr_dl.set_passes([])
    return done


def use() -> None:
    """mcr_dl.use() sets the backend of torch's calls and of mcr_dl's, block by block, including a backward pass."""
    _pg()

    def calls() -> None:
        dist.all_reduce(_mine())
        with mcr_dl.use("gloo"):
            dist.all_reduce(_mine())
            mcr_dl.all_reduce(_mine())
            mcr_dl.all_reduce(_mine(), backend="mpi")
            with mcr_dl.use("mpi"):
                dist.barrier()
            dist.barrier()
        mcr_dl.all_reduce(_mine())

    assert _backends_of(calls) == ["mpi", "gloo", "gloo", "mpi", "mpi", "gloo", "mpi"]

    def backward() -> None:
        torch.manual_seed(1)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        with mcr_dl.use("gloo"):
            model(torch.ones(2, 4)).sum().backward()

    assert _backends_of(backward)[-1] == "gloo"

    def in_callbacks() -> None:
        with mcr_dl.use("gloo"):
            time.sleep(0.2 * dist.get_rank())  # on rank 0, another thread calls the function, later
            work = dist.all_reduce(_mine(), async_op=True)
            assert work is not None
            work.get_future().then(lambda _: dist.all_reduce(_mine())).wait()

    assert _backends_of(in_callbacks) == ["gloo", "gloo"]
    expect(InvalidArgumentError, mcr_dl.use("nothing").__enter__, "'nothing'", "mpi")
    only = mcr_dl.new_group(backend="mpi")
    with mcr_dl.use("gloo"):
        expect(NotInitializedError, lambda: dist.all_reduce(_mine(), group=only), "gloo", "mpi")
    mcr_dl.destroy_process_group(only)


def with_gloo() -> None:
    """A group of torch's gloo and one of mcr_dl in one program, with pending calls on both."""
    _pg()
    theirs = dist.new_group(backend="gloo")
    pairs = [(_mine(1000), theirs if index % 2 else None) for index in range(20)]
    started = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in pairs]
    for work in reversed(started):
        assert work is not None
        work.wait()
    assert all(torch.equal(tensor, _sum(1000)) for tensor, _ in pairs)
    dist.destroy_process_group(theirs)
