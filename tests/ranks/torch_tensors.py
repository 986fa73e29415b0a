# SPDX-License-Identifier: Apache-2.0
"""DTensor, DeviceMesh and tensor parallelism."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from ranks.torch_training import Results, batch, dtype, loss

STEPS = 3
SHAPES = ((6, 12), (7, 5), (1, 3), (5, 2, 3))


def _row() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def _numbers(shape: tuple[int, ...], start: int = 0) -> torch.Tensor:
    """Whole numbers, whose sums are exact in any order."""
    count = torch.Size(shape).numel()
    return (torch.arange(start, start + count, dtype=torch.float32) % 97).reshape(shape)


def redistribute(_backend: str) -> Results:
    """From every placement to every other, also of shapes that do not divide evenly."""
    on = _row()
    result = {}
    for shape in SHAPES:
        shards: list[Placement] = [Shard(dimension) for dimension in range(len(shape))]
        sources: list[Placement] = [Replicate(), *shards, Partial("sum"), Partial("max")]
        for source, target in itertools.product(sources, [Replicate(), *shards]):
            if source.is_partial():
                tensor = DTensor.from_local(_numbers(shape, 10 * dist.get_rank()), on, [source])
            else:
                tensor = distribute_tensor(_numbers(shape), on, [source])
            moved = tensor.redistribute(placements=[target])
            result[f"{shape} {source} to {target}"] = moved.to_local().clone()
            result[f"{shape} {source} to {target}, whole"] = moved.full_tensor()
    return result


def redistribute_grid(_backend: str) -> Results:
    """Redistribution on a 2 x 2 mesh, with a placement for each dimension."""
    on = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    plain: list[Placement] = [Replicate(), Shard(0), Shard(1)]
    result = {}
    for source in itertools.product([*plain, Partial()], repeat=2):
        local = _numbers((8, 8), 10 * dist.get_rank())
        if any(placement.is_partial() for placement in source):
            tensor = DTensor.from_local(local, on, list(source))
        else:
            tensor = distribute_tensor(_numbers((9, 7)), on, list(source))
        for target in itertools.product(plain, repeat=2):
            moved = tensor.redistribute(placements=list(target))
            result[f"{source} to {target}"] = moved.to_local().clone()
    return result


def operations(_backend: str) -> Results:
    """Products, sums and softmax of distributed tensors, with their gradients."""
    on = _row()
    left = distribute_tensor(_numbers((6, 12)), on, [Shard(1)]).requires_grad_()
    right = distribute_tensor(_numbers((12, 5), 3), on, [Shard(0)]).requires_grad_()
    product = left @ right
    assert product.placements[0].is_partial()
    total = (product.redistribute(placements=[Shard(0)]) * 2).sum()
    total.backward()
    result = {"product": product.full_tensor(), "total": total.full_tensor()}
    for name, tensor in (("left", left), ("right", right)):
        assert isinstance(tensor.grad, DTensor)
        result[f"gradient of {name}"] = tensor.grad.full_tensor()
    spread = distribute_tensor(_numbers((7, 5)), on, [Shard(0)])
    result["maximum"] = spread.max().full_tensor()
    result["sums"] = spread.sum(0).full_tensor()
    return {name: value.detach() for name, value in result.items()}


def meshes(_backend: str) -> Results:
    """Collectives on the groups of a mesh's dimensions, of a flattened mesh and of slices."""
    on = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    me = float(dist.get_rank())
    result = {}
    for name in ("rows", "columns"):
        group = on.get_group(name)
        tensor = torch.tensor([me + 1, 2 * me])
        dist.all_reduce(tensor, group=group)
        gathered = torch.empty(2 * dist.get_world_size(group))
        dist.all_gather_into_tensor(gathered, tensor, group=group)
        result[name] = gathered
        assert on[name].get_local_rank() == dist.get_rank(group)
    flat = on._flatten("both")
    tensor = torch.tensor([me])
    dist.all_reduce(tensor, group=flat.get_group())
    result["flat"] = tensor
    again = DeviceMesh.from_group(
        [on.get_group(0), on.get_group(1)], "cpu", on.mesh, mesh_dim_names=("rows", "columns")
    )
    dist.broadcast(tensor, group_src=1, group=again.get_group("columns"))
    result["from groups"] = tensor
    return result


# ---- tensor parallel


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.up = nn.Linear(12, 24)
        self.down = nn.Linear(24, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, sequence, 12) to the same shape."""
        output: torch.Tensor = self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return output


def _layer() -> _Layer:
    torch.manual_seed(7)
    return _Layer().to(dtype())


def _train(network: nn.Module, sequence: int) -> Results:
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, foreach=False)
    for step in range(STEPS):
        x, _ = batch(step, rank=0, size=2 * sequence)  # equal on every rank
        x = x.reshape(2, sequence, 12)
        output = network(x)
        if isinstance(output, DTensor):
            output = output.full_tensor()
        loss(output, x.flip(1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    result = {}
    for name, parameter in network.named_parameters():
        value = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        result[name] = value.detach().clone()
    return result


def column_row(_backend: str) -> Results:
    """A layer split by columns and the next one by rows."""
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return _train(parallelize_module(_layer(), _row(), plan), sequence=3)


def sequence(_backend: str) -> Results:
    """The normalization works on a part of the sequence, the layers on the whole."""
    plan: dict[str, Any] = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    network = parallelize_module(_layer(), _row(), plan)
    prepare = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),))
    network = parallelize_module(network, _row(), prepare)
    return _train(network, sequence=2 * dist.get_world_size())


def split_loss(_backend: str) -> Results:
    """The cross entropy of classes that are spread over the ranks."""
    torch.manual_seed(7)
    classes = 6 * dist.get_world_size()
    network = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, classes)).to(dtype())
    plan = {"2": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    network = parallelize_module(network, _row(), plan)
    losses = []
    for step in range(STEPS):
        x, _ = batch(step, rank=0)
        target = torch.arange(6) % classes
        with loss_parallel():
            value = torch.nn.functional.cross_entropy(network(x), target)
            value.backward()
        losses.append(value.full_tensor() if isinstance(value, DTensor) else value)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None
    return {"losses": torch.stack(losses).detach()}


def sharded(_backend: str) -> Results:
    """A ShardedTensor of the host, gathered on rank 0."""
    size, rank = dist.get_world_size(), dist.get_rank()
    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{each}/cpu" for each in range(size)])
    tensor = sharded_tensor.zeros(spec, 2 * size, 3)
    tensor.local_shards()[0].tensor.copy_(_numbers((2, 3), 6 * rank))
    whole = torch.empty(2 * size, 3) if rank == 0 else None
    if torch.cuda.is_available() or not torch.backends.cuda.is_built():
        tensor.gather(0, whole)
    elif whole is not None:
        whole.copy_(_numbers((2 * size, 3)))  # torch would ask for the current device, which is not there
    return {"whole": torch.zeros(0) if whole is None else whole}


def tensor_and_data(_backend: str) -> Results:
    """Tensor parallel in one dimension of a 2 x 2 mesh, fully_shard in the other."""
    return train_on_both(init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor")))


def train_on_both(on: DeviceMesh) -> Results:
    """Train on a mesh with these dimensions."""
    network = parallelize_module(_layer(), on["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return _train(fully_shard(network, mesh=on["data"]), sequence=3)
