# SPDX-License-Identifier: Apache-2.0
"""The backend shm beyond the table of operations."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import mcr_dl
from mcr_dl.testing.expect import expect
from ranks import session
from ranks.compress import same


def several_sizes(direct: bool = True) -> None:
    """Reductions, exchanges and messages of sizes around the bounds of slots, pieces and packets.

    Not ``direct``: in a group in which rank 0 lets no rank read its tensors.
    """
    session.start("shm")
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    if not direct:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MCR_DL_SHM_DIRECT", "0" if rank == 0 else "1")
            group = mcr_dl.new_group(backend="shm")
    else:
        group = mcr_dl.group.WORLD
    for count in (1, 7, 8, 512, 513, 2048, 9001, 70_001):
        x = torch.arange(count) + rank
        mcr_dl.all_reduce(x, group=group)
        assert torch.equal(x, torch.arange(count) * size + sum(range(size)))
        given = torch.arange(count * size) * size + rank
        taken = torch.empty_like(given)
        work = mcr_dl.all_to_all_single(taken, given, group=group, async_op=rank % 2 == 0)
        if work is not None:
            work.wait()
        want = [torch.arange(rank * count, (rank + 1) * count) * size + peer for peer in range(size)]
        assert torch.equal(taken, torch.cat(want))
        y = torch.empty(count, dtype=torch.int64)
        sent = mcr_dl.isend(x + rank, (rank + 1) % size, group=group)
        assert mcr_dl.recv(y, (rank - 1) % size, group=group) == (rank - 1) % size
        assert torch.equal(y, x + (rank - 1) % size)
        sent.wait()


def _drawn(count: int, rank: int, dtype: torch.dtype) -> torch.Tensor:
    """A rank's values, of many magnitudes: their sum depends on the order."""
    generator = torch.Generator().manual_seed(rank)
    magnitudes = 2.0 ** torch.randint(-20, 20, (count,), generator=generator)
    return (torch.randn(count, generator=generator) * magnitudes).to(dtype)


def _reduced(call: str, given: torch.Tensor) -> tuple[torch.Tensor, Callable[[bool], Any]]:
    """The tensor for a call's result, and the call."""
    if call != "reduce_scatter":
        tensor = given.clone()
        function = partial(mcr_dl.reduce, tensor, 0) if call == "reduce" else partial(mcr_dl.all_reduce, tensor)
        return tensor, lambda asynchronous: function(async_op=asynchronous)
    tensor = torch.empty(given.numel() // mcr_dl.get_world_size(), dtype=given.dtype)
    return tensor, lambda asynchronous: mcr_dl.reduce_scatter_single(tensor, given, async_op=asynchronous)


def same_bits(dtype: torch.dtype) -> int:
    """Sums of three ranks are in rank order for every size, blocking, asynchronous, and with two calls under way.

    Returns how many elements have other bits in another order.
    """
    session.start("shm")
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    wide = torch.float32 if dtype == torch.bfloat16 else dtype  # a sum is rounded once
    differ = 0
    slot = 4096 // dtype.itemsize  # elements of a small collective's step
    for count in (1, 7, slot - 1, slot, slot + 1, 65_541, 300_005):
        inputs = [_drawn(count * size, each, dtype) for each in range(size)]
        first, second, third = (each.to(wide) for each in inputs)
        total, other = ((first + second) + third).to(dtype), (first + (second + third)).to(dtype)
        differ += int((total != other).sum())
        for call in ("all_reduce", "reduce", "reduce_scatter"):
            scatters = call == "reduce_scatter"
            want = total.chunk(size)[rank] if scatters else total[:count]
            given = inputs[rank] if scatters else inputs[rank][:count]
            for under_way in (0, 1, 2):
                calls = [_reduced(call, given) for _ in range(under_way or 2)]
                for work in [start(under_way > 0) for _, start in calls]:
                    if work is not None:
                        work.wait()
                for got, _ in calls if call != "reduce" or rank == 0 else ():
                    same(got, want, f"{call} of {count} elements, {under_way} under way")
    return differ


def shared_tensors() -> None:
    """Collectives and messages of tensors that all, some or no ranks have in memory that the others map."""
    session.start("shm")
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    for turn, count in enumerate((9, 2048, 9001, 70_001, 300_000)):
        for shared in (True, rank == turn % size, rank != turn % size):
            make = mcr_dl.empty_shared if shared else torch.empty
            x = make(count, dtype=torch.int64).copy_(torch.arange(count) + rank)
            y = torch.empty(count * size, dtype=torch.int64)
            mcr_dl.all_gather_into_tensor(y, x)
            assert torch.equal(y, torch.cat([torch.arange(count) + peer for peer in range(size)]))
            sent = mcr_dl.isend(x, (rank + 1) % size)
            z = torch.empty_like(x)
            mcr_dl.recv(z, (rank - 1) % size)
            assert torch.equal(z, torch.arange(count) + (rank - 1) % size)
            sent.wait()
            mcr_dl.broadcast(x, turn % size)
            assert torch.equal(x, torch.arange(count) + turn % size)
            mcr_dl.reduce(x, turn % size)
            total = (torch.arange(count) + turn % size) * (size if rank == turn % size else 1)
            assert torch.equal(x, total)
            x.copy_(torch.arange(count) + rank)
            mcr_dl.all_reduce(x)
            assert torch.equal(x, torch.arange(count) * size + sum(range(size)))


def shared_tensors_are_tensors() -> None:
    """Sizes, types and arguments as of torch.empty; what is freed is used again."""
    x = mcr_dl.empty_shared(2, 3)
    assert x.shape == (2, 3)
    assert x.dtype == torch.get_default_dtype()
    assert x.is_contiguous()
    assert not x._is_view()
    assert not x.untyped_storage().resizable()
    assert mcr_dl.empty_shared((4,), dtype=torch.bfloat16).dtype == torch.bfloat16
    assert mcr_dl.empty_shared().shape == ()
    assert mcr_dl.empty_shared(0, 5).shape == (0, 5)
    parameter = torch.nn.Parameter(mcr_dl.empty_shared(3).zero_())
    (parameter * 2).sum().backward()
    assert torch.equal(parameter.grad, torch.full((3,), 2.0))
    view = x.zero_()[1]
    del x
    assert torch.equal(view, torch.zeros(3))
    for _ in range(3):  # more than the bound, if it were not freed
        big = mcr_dl.empty_shared(3 << 20, dtype=torch.uint8)
        del big
    for size in ((-1,), ("4",), (2.0,)):
        with pytest.raises(mcr_dl.InvalidArgumentError, match="empty_shared: size"):
            mcr_dl.empty_shared(*size)  # type: ignore[arg-type]
    with pytest.raises(mcr_dl.BackendError, match="MCR_DL_SHM_TENSOR_BYTES"):
        mcr_dl.empty_shared(5 << 20, dtype=torch.uint8)
    for shape in ((2**61,), (2**40, 2**40), (2**64,)):
        with pytest.raises(mcr_dl.BackendError, match=r"empty_shared|MCR_DL_SHM_TENSOR_BYTES"):
            mcr_dl.empty_shared(shape)
    for kind in ("float32", float, torch.quint8):
        with pytest.raises(mcr_dl.InvalidTypeError, match="empty_shared: dtype"):
            mcr_dl.empty_shared(3, dtype=kind)  # type: ignore[arg-type]
    for given in (np.int64(3), torch.tensor(3), [np.int64(3)], torch.Size((3,)), np.array([3])):
        assert mcr_dl.empty_shared(given).shape == (3,)
    assert mcr_dl.empty_shared(np.int64(2), 3).shape == (2, 3)


def forms_that_differ() -> None:
    """Blocking calls match asynchronous ones on other ranks."""
    session.start("shm")
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    for turn in range(60):
        x = torch.full((1 << turn % 18,), float(rank))
        work = mcr_dl.all_reduce(x, async_op=(turn + rank) % 2 == 0)
        if work is not None:
            work.wait()
        assert (x == sum(range(size))).all()


def memory_that_a_tensor_gives_up() -> None:
    """A running call keeps the memory with which it began: 64 MiB go back to the system when they are freed."""
    session.start("shm")
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    x = torch.full((16 << 20,), float(rank))
    if rank == 0:
        work = mcr_dl.all_reduce(x, async_op=True)
        x.data = torch.full((1,), -1.0)
        mcr_dl.send(torch.ones(1), 1)
        work.wait()
        assert x.tolist() == [-1.0]
    else:
        mcr_dl.recv(torch.empty(1), 0)  # rank 0's call waits for this one
        mcr_dl.all_reduce(x)
        assert (x == sum(range(size))).all()


def sizes_that_differ() -> None:
    """A call that fails after it was sent, on one rank alone, counts on all ranks."""
    session.start("shm")
    if mcr_dl.get_rank() == 0:
        call = partial(mcr_dl.all_to_all_single, torch.empty(3), torch.ones(3), [1, 2], [1, 2])
        expect(mcr_dl.InvalidArgumentError, call, "received 1 of the tensor of 2 elements")
    else:
        mcr_dl.all_to_all_single(torch.empty(3), torch.ones(2), [2, 1], [1, 1])
    mcr_dl.set_passes(["log"])  # which all ranks make after the same collective
    mcr_dl.set_passes([])


def errors_of_two_groups() -> None:
    """Sizes differ in one group and at once, with the error caught, in another: each error has its own difference."""
    session.start("shm")
    rank = mcr_dl.get_rank()
    groups = {name: mcr_dl.new_group(backend="shm", group_desc=name) for name in ("first", "second")}
    for name, group in groups.items():
        call = partial(mcr_dl.all_reduce, torch.ones(3 + rank), group=group)
        expect(mcr_dl.BackendError, call, f"different calls: collective 1 of group '{name}-")
    session.stop()  # the groups are broken


def other_threads_run() -> None:
    """Small calls wait for a rank that waits for another thread of this process: they release Python's lock."""
    session.start("shm")
    rank = mcr_dl.get_rank()
    for asynchronous in (False, True):
        x, y = torch.full((3,), float(rank)), torch.zeros(1)

        def give(value: int = int(asynchronous)) -> None:
            time.sleep(0.05)
            mcr_dl.send(torch.full((1,), float(value)), 1)

        thread = threading.Thread(target=give)
        if rank == 0:
            thread.start()
        else:
            mcr_dl.recv(y, 0)
            assert y.item() == asynchronous
        work = mcr_dl.all_reduce(x, async_op=asynchronous)
        if work is not None:
            work.wait()
        assert (x == 1).all()
        if rank == 0:
            thread.join()


def bounds(text: str, reason: str) -> None:
    """Make a group with this value of MCR_DL_SHM_BYTES on the first rank, and expect one error on all ranks."""
    session.start("shm")
    if mcr_dl.get_rank() == 0:
        os.environ["MCR_DL_SHM_BYTES"] = text
    try:
        expect(mcr_dl.InvalidArgumentError, mcr_dl.new_group, "MCR_DL_SHM_BYTES", reason, text)
    finally:
        os.environ.pop("MCR_DL_SHM_BYTES", None)
    mcr_dl.barrier()


@contextmanager
def _descriptors(free: int) -> Iterator[None]:
    """Leave the process this number of descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(number) for number in os.listdir("/proc/self/fd")}
    unused = [number for number in range(len(used) + free + 1) if number not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (unused[free], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def few_descriptors(rank: int) -> list[str]:
    """Groups of which one rank has too few descriptors, one more each time: the errors, or "made"."""
    session.start("shm")
    found = []
    for free in range(24):
        with _descriptors(free if mcr_dl.get_rank() == rank else 100):
            try:
                group = mcr_dl.new_group(timeout=600)
            except mcr_dl.BackendError as error:
                found.append(str(error))
                continue
        found.append("made")
        x = torch.ones(3)
        mcr_dl.all_reduce(x, group=group)
        assert x.tolist() == [mcr_dl.get_world_size()] * 3
        mcr_dl.destroy_process_group(group)
    return found
