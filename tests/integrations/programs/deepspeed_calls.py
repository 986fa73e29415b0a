# SPDX-License-Identifier: Apache-2.0
"""Every function of deepspeed.comm on mcr_dl's object, each result checked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import deepspeed.comm as dist
import pytest
import torch
from deepspeed.comm.reduce_op import ReduceOp

import mcr_dl


def _full(value: float, count: int = 4) -> torch.Tensor:
    return torch.full((count,), float(value))


def _own(count: int = 4) -> torch.Tensor:
    return _full(dist.get_rank() + 1, count)


def _values(tensor: torch.Tensor) -> list[float]:
    return [float(value) for value in tensor]


def reductions() -> None:
    """DeepSpeed's reductions, and torch's own."""
    size = dist.get_world_size()
    numbers = range(1, size + 1)
    wanted = {
        ReduceOp.SUM: sum(numbers),
        ReduceOp.AVG: sum(numbers) / size,
        ReduceOp.MIN: 1,
        ReduceOp.MAX: size,
        torch.distributed.ReduceOp.MAX: size,
    }
    for op, value in wanted.items():
        tensor = _own()
        assert dist.all_reduce(tensor, op=op) is None
        assert _values(tensor) == [value] * 4, op
    bits = torch.tensor([1 << dist.get_rank()])
    dist.all_reduce(bits, op=ReduceOp.BOR)
    assert int(bits) == (1 << size) - 1
    product = _own()
    dist.all_reduce(product, op=ReduceOp.PRODUCT)
    assert float(product[0]) == float(torch.tensor(list(numbers)).prod())
    with pytest.raises(mcr_dl.InvalidArgumentError, match=r"op: expected one of SUM.*got UNUSED"):
        dist.all_reduce(_own(), op=ReduceOp.UNUSED)


def all_reduces() -> None:
    """Asynchronous, coalesced, for inference, and reduce."""
    size = dist.get_world_size()
    total = size * (size + 1) / 2
    tensor = _own()
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert _values(tensor) == [total] * 4
    assert work.is_completed()
    assert dist.has_all_reduce_coalesced()
    assert dist.has_coalescing_manager()
    tensors = [_own(count) for count in (1, 5, 300)]
    assert dist.all_reduce_coalesced(tensors) is None
    assert all(float(each[0]) == total for each in tensors)
    tensors = [_own(count) for count in (1, 5, 300)]
    work = dist.all_reduce_coalesced(tensors, op=ReduceOp.MAX, async_op=True)
    assert work.wait()
    assert work.is_completed()
    assert all(float(each[-1]) == size for each in tensors)
    tensor = _own()
    dist.inference_all_reduce(tensor)
    assert _values(tensor) == [total] * 4
    tensor = _own()
    dist.reduce(tensor, dst=size - 1)
    assert float(tensor[0]) == (total if dist.get_rank() == size - 1 else dist.get_rank() + 1)


def gathers() -> None:
    """all_gather in all its forms, gather, scatter, broadcast."""
    size, rank = dist.get_world_size(), dist.get_rank()
    wanted = [float(each + 1) for each in range(size) for _ in range(4)]
    parts = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(parts, _own())
    assert _values(torch.cat(parts)) == wanted
    assert dist.has_all_gather_into_tensor()
    cdb = dist.comm.cdb
    for function in (dist.all_gather_into_tensor, dist.allgather_fn, cdb.all_gather_base, cdb.all_gather_function):
        whole = torch.zeros(4 * size)
        function(whole, _own())
        assert _values(whole) == wanted, function
    for asynchronous in (False, True):
        outputs = [torch.zeros(4 * size), torch.zeros(2 * size)]
        work = dist.all_gather_coalesced(outputs, [_own(), _own(2)], async_op=asynchronous)
        if asynchronous:
            assert work.wait()
        assert _values(outputs[0]) == wanted
        assert float(outputs[1][-1]) == size
    lists = [torch.zeros(4) for _ in range(size)] if rank == 0 else None
    dist.gather(_own(), lists, dst=0)
    assert lists is None or _values(torch.cat(lists)) == wanted
    mine = torch.zeros(4)
    dist.scatter(mine, [_full(10 + each) for each in range(size)] if rank == 0 else None, src=0)
    assert _values(mine) == [10.0 + rank] * 4
    tensor = _own()
    dist.broadcast(tensor, src=size - 1)
    assert _values(tensor) == [float(size)] * 4


def scatters() -> None:
    """reduce_scatter and all_to_all in all their forms."""
    size, rank = dist.get_world_size(), dist.get_rank()
    total = size * (size + 1) / 2
    assert dist.has_reduce_scatter_tensor()
    cdb = dist.comm.cdb
    for function in (dist.reduce_scatter_tensor, dist.reduce_scatter_fn, cdb.reduce_scatter_function):
        mine = torch.zeros(4)
        function(mine, _own(4 * size))
        assert _values(mine) == [total] * 4, function
    mine = torch.zeros(4)
    dist.reduce_scatter(mine, [_own() for _ in range(size)], op=ReduceOp.MAX)
    assert _values(mine) == [float(size)] * 4
    received = torch.zeros(size)
    dist.all_to_all_single(received, torch.arange(size) + 10.0 * rank)
    assert _values(received) == [10.0 * each + rank for each in range(size)]
    counts = [each + 1 for each in range(size)]
    received = torch.zeros(size * (rank + 1))
    dist.all_to_all_single(received, _own(sum(counts)), [rank + 1] * size, counts)
    assert _values(received) == [float(each + 1) for each in range(size) for _ in range(rank + 1)]
    outputs = [torch.zeros(2) for _ in range(size)]
    dist.all_to_all(outputs, [_full(10 * rank + each, 2) for each in range(size)])
    assert [float(each[0]) for each in outputs] == [10.0 * each + rank for each in range(size)]


def messages() -> None:
    """Sends and receives around a ring."""
    size, rank = dist.get_world_size(), dist.get_rank()
    after, before = (rank + 1) % size, (rank - 1) % size
    received = torch.zeros(4)
    if rank == 0:
        dist.send(_own(), after, tag=3)
        dist.recv(received, before, tag=3)
    else:
        dist.recv(received, before, tag=3)
        dist.send(_own(), after, tag=3)
    assert _values(received) == [before + 1.0] * 4
    received = torch.zeros(4)
    works = [dist.irecv(received, before), dist.isend(_own(), after)]
    for work in works:
        work.wait()
    assert _values(received) == [before + 1.0] * 4
    received = torch.zeros(4)
    batch = [dist.P2POp(dist.isend, _own(), after), dist.P2POp(dist.irecv, received, before)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert _values(received) == [before + 1.0] * 4


def objects_and_barriers() -> None:
    """Pickled objects; both barriers."""
    size, rank = dist.get_world_size(), dist.get_rank()
    things = [None, None] if rank else [{"a": 1}, "b"]
    dist.broadcast_object_list(things, src=0)
    assert things == [{"a": 1}, "b"]
    everyone = [None] * size
    dist.all_gather_object(everyone, ("rank", rank))
    assert everyone == [("rank", each) for each in range(size)]
    dist.barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=30))


def groups() -> None:
    """A group in another order than the ranks', queried, used and ended."""
    size, rank = dist.get_world_size(), dist.get_rank()
    assert dist.comm.cdb.get_backend() in [*mcr_dl.get_backends(), "mcr"]
    assert dist.get_all_ranks_from_group(dist.get_world_group()) == list(range(size))
    group = dist.new_group([size - 1, 0])
    if rank in (0, size - 1):
        assert dist.get_world_size(group) == 2
        assert dist.get_global_rank(group, 1) == size - 1
        tensor = _own()
        dist.all_reduce(tensor, group=group)
        assert _values(tensor) == [1.0 + size] * 4
    work = dist.all_reduce_coalesced([_own()], group=group, async_op=True)
    assert (work is None) == (rank not in (0, size - 1))
    if work is not None:
        work.wait()
    dist.destroy_process_group(group)
    if rank in (0, size - 1):
        with pytest.raises(mcr_dl.NotInitializedError):
            dist.all_reduce(_own(), group=group)
    assert dist.is_initialized()


def switches() -> None:
    """Operations that DeepSpeed turns off stay off until they are turned on."""
    from deepspeed.comm.torch import backward_comm_off

    backward_comm_off(True)
    mine = _full(-1)
    dist.reduce_scatter(mine, [_own() for _ in range(dist.get_world_size())]).wait()
    assert _values(mine) == [-1.0] * 4
    backward_comm_off(False)
    dist.reduce_scatter(mine, [_own() for _ in range(dist.get_world_size())])
    assert float(mine[0]) > 0


CHECKS: list[Callable[[], None]] = [
    reductions,
    all_reduces,
    gathers,
    scatters,
    messages,
    objects_and_barriers,
    groups,
    switches,
]


def check_all() -> list[str]:
    """Run all checks; returns their names."""
    for check in CHECKS:
        check()
    return [check.__name__ for check in CHECKS]
