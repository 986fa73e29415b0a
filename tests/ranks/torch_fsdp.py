# SPDX-License-Identifier: Apache-2.0
"""FSDP2 (fully_shard) on CPU tensors; each case returns the whole weights after some steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from ranks.torch_training import Results, batch, dtype, loss

STEPS = 3


class _Tower(nn.Module):
    """Three layers, of which no dimension is a multiple of two or three."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12, 17), nn.Linear(17, 17), nn.Linear(17, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape (batch, 12) to (batch, 4)."""
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        output: torch.Tensor = self.layers[-1](x)
        return output


def mesh() -> DeviceMesh:
    """All ranks in a row."""
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))


def sharded(on: DeviceMesh, **options: Any) -> Any:
    """A network in which each layer and the rest are separate units."""
    torch.manual_seed(7)
    network = _Tower().to(dtype())
    for layer in network.layers:
        fully_shard(layer, mesh=on, **options)
    return fully_shard(network, mesh=on, **options)


def whole(network: nn.Module) -> Results:
    """All weights, gathered."""
    result = {}
    for name, parameter in network.named_parameters():
        assert isinstance(parameter, DTensor)
        result[name] = parameter.full_tensor().detach().clone()
    return result


def train(network: Any, steps: int = STEPS, before: Callable[[int], None] | None = None) -> Results:
    """Adam on this rank's batches."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for step in range(steps):
        if before is not None:
            before(step)
        x, y = batch(step)
        loss(network(x), y.to(torch.float32) if network_is_mixed(network) else y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return whole(network)


def network_is_mixed(network: Any) -> bool:
    """Whether the network computes in another type than the type of its weights."""
    return network._get_fsdp_state()._mp_policy.param_dtype is not None


def reshard(_backend: str) -> Results:
    """Weights are freed after the forward pass and gathered again."""
    return train(sharded(mesh(), reshard_after_forward=True))


def keep(_backend: str) -> Results:
    """Weights stay whole until the backward pass is over."""
    return train(sharded(mesh(), reshard_after_forward=False))


def mixed_precision(_backend: str) -> Results:
    """Weights are gathered as bfloat16, gradients reduced as float32."""
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32)
    return train(sharded(mesh(), mp_policy=policy))


def low_precision(_backend: str) -> Results:
    """Gradients are reduced as bfloat16 too."""
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16, torch.float32)
    return train(sharded(mesh(), mp_policy=policy))


def accumulate(_backend: str) -> Results:
    """Gradients of two micro-batches are added up before they are reduced."""
    network = sharded(mesh())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for step in range(STEPS):
        for part in range(2):
            network.set_requires_gradient_sync(part == 1)
            x, y = batch(2 * step + part)
            loss(network(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return whole(network)


def divide_factor(_backend: str) -> Results:
    """Gradients are divided by the user's factor, which is a scaled reduction; and in two steps."""
    network = sharded(mesh())
    network.set_gradient_divide_factor(4.0)
    network.set_force_sum_reduction_for_comms(True)
    return train(network)


def prefetch(_backend: str) -> Results:
    """The next layer's weights are gathered in advance, with asynchronous calls."""
    network = sharded(mesh())
    layers = list(network.layers)
    network.set_modules_to_forward_prefetch(layers[:2])
    for here, following in itertools.pairwise(layers):
        here.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([here])

    def unshard(_step: int) -> None:
        handle = network.unshard(async_op=True)
        assert handle is not None
        handle.wait()

    return train(network, before=unshard)


def clipped(_backend: str) -> Results:
    """The norm of all gradients is equal on all ranks."""
    network = sharded(mesh())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    norms = []
    for step in range(STEPS):
        x, y = batch(step)
        loss(network(x), y).backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), 0.1)
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        optimizer.step()
        optimizer.zero_grad()
    return {**whole(network), "norms": torch.stack(norms)}


def other_dimension(_backend: str) -> Results:
    """Weights are split along their second dimension where it is even."""
    torch.manual_seed(7)
    size = dist.get_world_size()
    network = nn.Sequential(nn.Linear(12, 6 * size, bias=False), nn.Tanh(), nn.Linear(6 * size, 4, bias=False))
    on = mesh()
    for layer in (network[0], network[2]):
        fully_shard(layer, mesh=on, shard_placement_fn=lambda _: Shard(1))
    return train(fully_shard(network.to(dtype()), mesh=on))


def hybrid(_backend: str) -> Results:
    """On a 2 x 2 mesh: weights split in one dimension, copied in the other (HSDP)."""
    on = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard"))
    network = sharded(on)
    assert isinstance(network, FSDPModule)
    return train(network)


def hybrid_accumulate(_backend: str) -> Results:
    """HSDP that reduces over the copies only at the last micro-batch."""
    network = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard")))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for step in range(STEPS):
        for part in range(2):
            network.set_requires_all_reduce(part == 1)
            x, y = batch(2 * step + part)
            loss(network(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return whole(network)
