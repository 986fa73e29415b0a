# SPDX-License-Identifier: Apache-2.0
"""The guarantees of a Work, and progress while Python does other things."""

from __future__ import annotations

import gc
import threading
import time
from datetime import timedelta
from unittest.mock import patch

import torch

import mcr_dl
from mcr_dl import _C, CollectiveTimeoutError
from mcr_dl.testing.expect import expect
from ranks import session


def _next() -> int:
    return (mcr_dl.get_rank() + 1) % mcr_dl.get_world_size()


def _previous() -> int:
    return (mcr_dl.get_rank() - 1) % mcr_dl.get_world_size()


def finished(backend: str) -> None:
    """A completed work: waited for again, by every method, with its result and future."""
    session.start()
    tensor = torch.full((50,), 1.0)
    work = mcr_dl.all_reduce(tensor, backend=backend, async_op=True)
    assert work.wait() is True
    assert work.wait() is True
    assert work.wait(timedelta(seconds=1)) is True
    work.synchronize()
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert [result.data_ptr() for result in work.result()] == [tensor.data_ptr()]
    assert tensor.tolist() == [float(mcr_dl.get_world_size())] * 50
    assert f"{backend}.all_reduce" in repr(work)
    assert "complete" in repr(work)
    future = work.get_future()
    assert future.done()
    assert future.value()[0].data_ptr() == tensor.data_ptr()


def future(backend: str) -> None:
    """The runtime completes a future requested before the end, without any wait for the work."""
    session.start()
    tensor = torch.full((3,), 2.0)
    seen: list[list[float]] = []
    chained = (
        mcr_dl.all_reduce(tensor, backend=backend, async_op=True)
        .get_future()
        .then(lambda done: seen.append(done.value()[0].tolist()))
    )
    chained.wait()
    assert seen == [[2.0 * mcr_dl.get_world_size()] * 3]


def timeout(backend: str) -> None:
    """wait(timeout) raises while the operation cannot end; the operation still ends once the peer comes."""
    session.start()
    tensor = torch.zeros(10)
    if mcr_dl.get_rank() == 0:
        work = mcr_dl.irecv(tensor, 1, tag=5, backend=backend)
        words = (f"{backend}.recv (group 'default', rank 0", "200 ms")
        expect(CollectiveTimeoutError, lambda: work.wait(timedelta(milliseconds=200)), *words)
        expect(CollectiveTimeoutError, lambda: work.wait(0.2), *words)
        expect(CollectiveTimeoutError, lambda: work.wait(timeout=1), words[0], "1000 ms")
        assert not work.is_completed()
        assert not work.is_success()
        assert work.exception() is None
        assert "running" in repr(work)
        mcr_dl.barrier(backend=backend)
        assert work.wait(timedelta(days=150_000)) is True  # longer than a clock of nanoseconds counts
        assert work.wait(3)
        assert work.wait(10**12)
        assert work.wait(timedelta(0))  # the group's, as in torch
        for wrong in ("3", float("nan"), 10**400):
            expected = "expected a datetime.timedelta, seconds or None"
            expect(mcr_dl.InvalidTypeError, lambda wrong=wrong: work.wait(wrong), expected)
        for wrong in (-5, -0.0005, timedelta(microseconds=-1), -(10**12)):
            expect(mcr_dl.InvalidArgumentError, lambda wrong=wrong: work.wait(wrong), "timeout: expected a time of 0")
        assert tensor.tolist() == [7.0] * 10
    else:
        mcr_dl.barrier(backend=backend)
        if mcr_dl.get_rank() == 1:
            mcr_dl.send(torch.full((10,), 7.0), 0, tag=5, backend=backend)
    mcr_dl.barrier(backend=backend)


def dropped(backend: str) -> None:
    """A dropped work completes, and keeps its tensors until then."""
    session.start()
    tensor = torch.full((1000,), float(mcr_dl.get_rank()))
    mcr_dl.isend(tensor, _next(), backend=backend)
    received = torch.empty(1000)
    mcr_dl.irecv(received, _previous(), backend=backend)
    del tensor
    gc.collect()
    junk = [torch.full((1000,), -5.0) for _ in range(50)]  # would reuse memory that was freed too early
    mcr_dl.synchronize()
    assert received.tolist() == [float(_previous())] * 1000
    assert len(junk) == 50
    mcr_dl.barrier(backend=backend)


def kept_alive(backend: str) -> None:
    """Tensors of a running work stay alive although the caller has dropped them."""
    session.start()
    works = []
    for number in range(20):
        outgoing = torch.full((20_000,), float(number))
        incoming = torch.empty(20_000)
        works.append((number, mcr_dl.irecv(incoming, _previous(), tag=number, backend=backend)))
        works.append((number, mcr_dl.isend(outgoing, _next(), tag=number, backend=backend)))
        del outgoing, incoming
    trash = [torch.full((20_000,), -1.0) for _ in range(40)]
    for number, work in works:
        work.wait()
        result = work.result()
        if result:
            assert bool((result[0] == number).all()), f"message {number} was overwritten"
    assert len(trash) == 40
    mcr_dl.barrier(backend=backend)


def many(backend: str) -> None:
    """Several hundred operations in flight, waited for backwards."""
    session.start()
    size = mcr_dl.get_world_size()
    tensors = [torch.full((n % 50 + 1,), float(n)) for n in range(300)]
    works = [mcr_dl.all_reduce(tensor, backend=backend, async_op=True) for tensor in tensors]
    for n in reversed(range(300)):
        works[n].wait()
        assert bool((tensors[n] == float(n * size)).all()), n


def while_python_computes(backend: str) -> None:
    """Rank 0 starts a large exchange and never calls the runtime again; its peer still gets everything.

    Rank 0 spins until the peer reports, through the store, that its side is complete: without background progress
    neither rank would ever continue.
    """
    session.start()
    store = mcr_dl.runtime.state.current().store
    count = 2_000_000  # far beyond what a library sends eagerly
    tensor = torch.full((count,), float(mcr_dl.get_rank() + 1))
    work = mcr_dl.all_reduce(tensor, backend=backend, async_op=True)
    key = f"done-{backend}-{store.add(f'while-{backend}-{mcr_dl.get_rank()}', 1)}"
    if mcr_dl.get_rank() == 0:
        while not store.check([key]):  # the peer may be done before this rank looks for the first time
            sum(range(10_000))  # Python, holding the GIL
        work.wait()
    else:
        work.wait()
        store.set(key, "yes")
    size = mcr_dl.get_world_size()
    assert bool((tensor == size * (size + 1) / 2).all())
    mcr_dl.barrier(backend=backend)


def threads(backend: str) -> None:
    """Four threads, each on its own group, in any order.

    On mpi the calls are asynchronous: blocking ones from several threads need MPI_THREAD_MULTIPLE
    (programs/threads.py).
    """
    session.start()
    four_threads(backend, blocking=backend != "mpi")


def four_threads(backend: str, blocking: bool) -> None:
    """The work of `threads`, with blocking and asynchronous calls mixed, or only asynchronous ones."""
    groups = [mcr_dl.new_group() for _ in range(4)]
    size = mcr_dl.get_world_size()
    failures: list[BaseException] = []

    def work_on(index: int) -> None:
        try:
            for number in range(60):
                tensor = torch.full((1 + number * 37 % 3000,), float(number + index))
                if number % 2 and blocking:
                    mcr_dl.all_reduce(tensor, group=groups[index], backend=backend)
                else:
                    mcr_dl.all_reduce(tensor, group=groups[index], backend=backend, async_op=True).wait()
                assert bool((tensor == float((number + index) * size)).all()), (index, number)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work_on, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    for group in groups:
        mcr_dl.destroy_process_group(group)


def synchronize(backend: str) -> None:
    """synchronize() returns when all started operations are complete, on the named backend or on all."""
    session.start()
    size = mcr_dl.get_world_size()
    for names in (None, backend, [backend]):
        tensors = [torch.ones(5000) for _ in range(30)]
        works = [mcr_dl.all_reduce(tensor, backend=backend, async_op=True) for tensor in tensors]
        if mcr_dl.get_rank() == 0:
            time.sleep(0.05)
        mcr_dl.synchronize(names)
        assert all(work.is_completed() for work in works)
        assert all(bool((tensor == size).all()) for tensor in tensors)


def mixed() -> None:
    """The paper's mixing: two backends at once, each waiting for the other's in opposite orders on different ranks."""
    session.start()
    size = mcr_dl.get_world_size()
    for _ in range(50):
        one, two = torch.ones(3000), torch.arange(float(size * 100))
        out = torch.empty_like(two)
        first = mcr_dl.all_reduce("mpi", one, async_op=True)
        second = mcr_dl.all_to_all_single("gloo", out, two, async_op=True)
        for work in (first, second) if mcr_dl.get_rank() % 2 else (second, first):
            work.wait()
        assert bool((one == size).all())
        mine = two.view(size, 100)[mcr_dl.get_rank()]
        assert torch.equal(out.view(size, 100), mine.expand(size, 100))


def thread_names() -> list[str]:
    """Names of this process's threads while communication runs."""
    session.start()
    mcr_dl.all_reduce(torch.ones(1), async_op=True).wait()
    return sorted(thread.name for thread in threading.enumerate())


class _HighPriority(mcr_dl.Options):
    """In place of NCCL's options, which some builds of torch lack."""

    is_high_priority_stream = True


def priorities() -> None:
    """torch's option for streams of high priority is that of one life of the runtime."""
    session.stop()
    chosen: list[bool] = []
    with patch.object(_C, "prefer_high_priority", chosen.append):
        for options in (_HighPriority(), None):
            mcr_dl.init_process_group("null", pg_options=options)
            mcr_dl.destroy_process_group()
    assert chosen == [True, False]
