# SPDX-License-Identifier: Apache-2.0
"""Collectives as functions: eager, compiled, and with gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from mcr_dl.testing.expect import expect
from ranks.torch_training import Results, batch, dtype, life, loss, weights, wide


def _mine(*shape: int) -> torch.Tensor:
    """Whole numbers that differ between ranks."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count, dtype=dtype()) * 3 + 7 * dist.get_rank()) % 13).reshape(shape)


def _world() -> str:
    """The default group's name, by which compiled programs know it."""
    group = dist.group.WORLD
    assert group is not None
    return str(group.group_name)


def _all(x: torch.Tensor, world: str) -> list[torch.Tensor]:
    """Every functional collective of a tensor of (4 n, 3) values on n ranks, in a row."""
    size = dist.get_world_size()
    return [
        functional.all_reduce(x, "sum", world) + 1,
        functional.all_reduce(x, "avg", world),
        functional.all_reduce(x, "max", world) * 2,
        functional.broadcast(x, size - 1, world) - x,
        functional.all_gather_tensor(x, 0, world) + 1,
        functional.all_gather_tensor(x, 1, world) + 1,
        functional.reduce_scatter_tensor(x, "sum", 0, world) * 2,
        functional.reduce_scatter_tensor(x, "avg", 0, world),
        functional.all_to_all_single(x, None, None, world) + 1,
        *functional.all_reduce_coalesced([x, x * 2], "sum", world),
        *functional.all_gather_into_tensor_coalesced([x, x * 2], world),
        *functional.reduce_scatter_tensor_coalesced([x, x * 2], "sum", [0, 0], world),
    ]


def _named(values: list[torch.Tensor], name: str = "") -> Results:
    """Copies; results of functional collectives are waited for when they are used."""
    result = {}
    for index, value in enumerate(values):
        plain = value.wait() if isinstance(value, functional.AsyncCollectiveTensor) else value
        result[f"{name} {index}"] = plain.detach().clone()
    return result


def eager(_backend: str) -> Results:
    """Every functional collective on the world, on a mesh, on a group; splits that differ by rank."""
    size, me = dist.get_world_size(), dist.get_rank()
    result = _named(_all(_mine(4 * size, 3), _world()))
    mesh = init_device_mesh("cpu", (size,))
    result["mesh"] = functional.all_reduce(_mine(5), "sum", (mesh, 0)).clone()
    result["group"] = functional.all_reduce(_mine(5), "min", dist.new_group()).clone()
    sends = [1 + (me + peer) % 3 for peer in range(size)]  # symmetric: rank r gets as much from p as it sends to p
    moved = functional.all_to_all_single(_mine(sum(sends), 2), sends, sends, _world())
    result["splits"] = moved.clone()
    result["permuted"] = functional.permute_tensor(_mine(4), [*range(1, size), 0], list(range(size))).clone()
    return result


def gradients(_backend: str) -> Results:
    """The functional collectives that autograd supports."""
    size = dist.get_world_size()
    world = _world()
    calls: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: functional.all_gather_tensor_autograd(x, 0, world),
        lambda x: functional.reduce_scatter_tensor_autograd(x, "sum", 0, world),
        lambda x: functional.all_to_all_single_autograd(x, [2] * size, [2] * size, world),
    ]
    result = {}
    for index, call in enumerate(calls):
        x = _mine(2 * size, 3).requires_grad_()
        output = call(x)
        (output * _mine(*output.shape)).sum().backward()
        assert x.grad is not None
        result[f"value {index}"] = output.detach().clone()
        result[f"gradient {index}"] = x.grad
    return result


def compiled_graph(_backend: str) -> Results:
    """One graph of all functional collectives, and one of torch's own in-place ones."""
    size = dist.get_world_size()
    world = _world()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [value + 1 for value in _all(x, world)]

    @torch.compile(fullgraph=True, backend="aot_eager")
    def in_place(x: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        dist.all_gather_into_tensor(whole, y)
        return whole + 1

    x = _mine(4 * size, 3)
    first, second = _named(program(x), "first"), _named(program(x + 1), "second")
    expected = _named([value + 1 for value in _all(x, world)])
    assert all(bool((a == b).all()) for a, b in zip(first.values(), expected.values(), strict=True))
    return {**first, **second, "in place": in_place(x, torch.empty(4 * size * size, 3, dtype=dtype()))}


def compiled_code(_backend: str) -> Results:
    """Through inductor, which reuses buffers and decides itself when to wait."""
    world = _world()

    @torch.compile(fullgraph=True, backend="inductor")
    def program(x: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(x + 1, "sum", world)
        whole = functional.all_gather_tensor(total * 2, 0, world)
        moved = functional.all_to_all_single(whole - 1, None, None, world)
        return functional.reduce_scatter_tensor(moved, "sum", 0, world) + total

    x = _mine(4 * dist.get_world_size(), 3)
    return {"first": program(x), "second": program(x * 2)}


def compiled_ddp(_backend: str) -> Results:
    """DDP around a compiled network, whose graph is cut where its buckets end."""
    model = DistributedDataParallel(wide(), bucket_cap_mb=1)
    program = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss(program(x), y).backward()
        optimizer.step()
    return weights(model.module)


def autograd_functions(_backend: str) -> Results:
    """torch.distributed.nn.functional: values and gradients."""
    size, me = dist.get_world_size(), dist.get_rank()
    world = dist.group.WORLD  # given explicitly: the functions' default is the group at import time

    def scaled(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * (peer + 1) for peer in range(size)]

    def like(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.empty_like(x) for _ in range(size)]

    calls: dict[str, Callable[[torch.Tensor], Sequence[torch.Tensor]]] = {
        "broadcast": lambda x: [autograd.broadcast(x, 1, world)],
        "gather": lambda x: autograd.gather(x, 0, world),
        "scatter": lambda x: [autograd.scatter(scaled(x), 0, world)],
        "reduce": lambda x: [autograd.reduce(x, 0, group=world) * (me == 0)],
        "reduce_scatter": lambda x: [autograd.reduce_scatter(torch.empty_like(x), scaled(x), group=world)],
        "all_gather": lambda x: autograd.all_gather(x, world),
        "all_to_all": lambda x: autograd.all_to_all(like(x), scaled(x), world),
        "all_to_all_single": lambda x: [autograd.all_to_all_single(torch.empty_like(x), x, group=world)],
        "all_reduce": lambda x: [autograd.all_reduce(x, group=world)],
    }
    result = {}
    for name, call in calls.items():
        x = _mine(2 * size, 3).requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch has newer names for some
            outputs = call(x)
            total = torch.stack([(value * _mine(*value.shape)).sum() for value in outputs]).sum()
            total.backward()
        assert x.grad is not None, name
        result.update(_named(list(outputs), name))
        result[f"{name} gradient"] = x.grad
    return result


def a_gather_without_a_gradient() -> None:
    """torch.distributed.nn.functional has one for _all_gather_base on backends that it knows by name."""
    with life("mcr"):
        size = dist.get_world_size()
        x = torch.ones(2, requires_grad=True)
        out = autograd._all_gather_base(torch.empty(2 * size), x, dist.group.WORLD)
        assert out.tolist() == [1.0] * 2 * size
        expect(RuntimeError, out.sum().backward, "Backend not supported")


def a_sparse_leaf() -> None:
    """all_reduce changes a sparse tensor that requires a gradient, as it does a dense one; the methods of its work."""
    with life("mcr"):
        size = dist.get_world_size()
        leaf = torch.sparse_coo_tensor(torch.tensor([[dist.get_rank()]]), torch.ones(1), (size,), requires_grad=True)
        work = dist.all_reduce(leaf, async_op=True)
        assert work is not None
        work.wait()
        assert leaf.detach().to_dense().tolist() == [1.0] * size
        assert leaf.is_leaf
        assert leaf.requires_grad
        assert work.get_future_result().wait() == 0  # WorkResult.SUCCESS
