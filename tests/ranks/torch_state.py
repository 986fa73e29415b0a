# SPDX-License-Identifier: Apache-2.0
"""Optimizer states that are spread over the ranks, and checkpoints."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ranks import torch_fsdp
from ranks.torch_training import Results, batch, block, dtype, loss, weights


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder that all ranks see, named by rank 0."""
    names = [tempfile.mkdtemp(prefix="mcr-checkpoint-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names, src=0)
    assert names[0] is not None
    try:
        yield Path(names[0])
        dist.barrier()
    finally:
        if dist.get_rank() == 0:
            shutil.rmtree(names[0], ignore_errors=True)


def zero_optimizer(_backend: str) -> Results:
    """Each rank keeps a part of Adam's state; the state as a whole is collected on rank 0."""
    model = DistributedDataParallel(block())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    optimizer.consolidate_state_dict(to=0)
    result = weights(model.module)
    if dist.get_rank() == 0:
        for index, state in optimizer.state_dict()["state"].items():
            result[f"state {index}"] = state["exp_avg"].clone()
    return result


def _convolutions() -> nn.Module:
    torch.manual_seed(7)
    layers = (nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 2), nn.Flatten(), nn.Linear(16, 4))
    return nn.Sequential(*layers).to(dtype()).to(memory_format=torch.channels_last)


def _images(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    images = torch.randn(6, 3, 5, 5, generator=source, dtype=dtype()).to(memory_format=torch.channels_last)
    return images, torch.randn(6, 4, generator=source, dtype=dtype())


def channels_last(_backend: str) -> Results:
    """Convolutions in channels_last, whose weights and gradients are not stored row by row: reduced by hand, blocking
    and not, and by ZeRO, which broadcasts the weights."""
    model = _convolutions()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for step in range(3):
        x, y = _images(step)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert not all(gradient.is_contiguous() for gradient in gradients)
        works = [dist.all_reduce(gradient, async_op=step == 1) for gradient in gradients]
        for work in works:
            if work is not None:
                work.wait()
        optimizer.step()
    optimizer.consolidate_state_dict(to=0)
    return weights(model)


def channels_last_ddp(_backend: str) -> Results:
    """The network of ``channels_last`` under DDP, gathered at the end."""
    model = DistributedDataParallel(_convolutions())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(3):
        x, y = _images(step)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    weight = model.module[0].weight.detach()
    everyones = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, weight)
    return {**weights(model.module), **{f"rank {rank}": each for rank, each in enumerate(everyones)}}


def zero_optimizer_buckets(_backend: str) -> Results:
    """With parameters as views of buckets, and in a join with uneven inputs."""
    from torch.distributed.algorithms.join import Join

    model = DistributedDataParallel(block())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, parameters_as_bucket_view=True, lr=0.05, momentum=0.9
    )
    with Join([model, optimizer]):
        for step in range(2 + dist.get_rank()):
            x, y = batch(step)
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
    return weights(model.module)


def _trained() -> tuple[Any, torch.optim.Optimizer]:
    network = torch_fsdp.sharded(torch_fsdp.mesh())
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for step in range(2):
        x, y = batch(step)
        loss(network(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return network, optimizer


def _blank(network: nn.Module) -> None:
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()


def save_and_load(_backend: str) -> Results:
    """fully_shard's weights and Adam's state are saved by all ranks, and read into a network of zeros."""
    network, optimizer = _trained()
    before = torch_fsdp.whole(network)
    with _folder() as folder:
        model_state, optimizer_state = get_state_dict(network, optimizer)
        checkpoint.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
        network, optimizer = _trained()
        _blank(network)
        model_state, optimizer_state = get_state_dict(network, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        checkpoint.load(state, checkpoint_id=folder)
        set_state_dict(network, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    after = torch_fsdp.whole(network)
    assert all(bool((before[name] == after[name]).all()) for name in before)
    assert any(bool(value.any()) for value in after.values())
    x, y = batch(9)
    loss(network(x), y).backward()
    optimizer.step()
    return torch_fsdp.whole(network)


def reshard_on_load(_backend: str) -> Results:
    """Rank 0 alone reads, as whole tensors, the parts that all ranks have saved."""
    network, _ = _trained()
    saved = torch_fsdp.whole(network)
    result = {}
    with _folder() as folder:
        checkpoint.save({"model": network.state_dict()}, checkpoint_id=folder)
        if dist.get_rank() == 0:
            plain = {name: torch.zeros_like(value) for name, value in saved.items()}
            checkpoint.load({"model": plain}, checkpoint_id=folder, no_dist=True)
            assert all(bool((plain[name] == saved[name]).all()) for name in saved)
            result = plain
        dist.barrier()
    return result or saved


def save_asynchronously(_backend: str) -> Results:
    """A thread writes a checkpoint with its own collectives while training continues."""
    network, optimizer = _trained()
    saved = torch_fsdp.whole(network)
    group = dist.new_group()
    with _folder() as folder:
        pending = checkpoint.async_save({"model": network.state_dict()}, checkpoint_id=folder, process_group=group)
        x, y = batch(5)
        loss(network(x), y).backward()
        optimizer.step()
        pending.result(timeout=30)
        trained = torch_fsdp.whole(network)
        _blank(network)
        state = {"model": network.state_dict()}
        checkpoint.load(state, checkpoint_id=folder)
        network.load_state_dict(state["model"])
    loaded = torch_fsdp.whole(network)
    assert all(bool((loaded[name] == saved[name]).all()) for name in saved)
    return trained


def full_state(_backend: str) -> Results:
    """Weights gathered on rank 0, and handed out from there into an empty network."""
    network, optimizer = _trained()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model_state, _ = get_state_dict(network, optimizer, options=options)
    assert bool(model_state) == (dist.get_rank() == 0)
    before = torch_fsdp.whole(network)
    _blank(network)
    spread = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    from torch.distributed.checkpoint.state_dict import set_model_state_dict

    set_model_state_dict(network, model_state, options=spread)
    after = torch_fsdp.whole(network)
    assert all(bool((before[name] == after[name]).all()) for name in before)
    return after


def objects(_backend: str) -> Results:
    """torch's object collectives, then tensors whose size differs between ranks."""
    me, size = dist.get_rank(), dist.get_world_size()
    everything: list[Any] = [None] * size
    dist.all_gather_object(everything, {"rank": me, "values": torch.arange(me + 1)})
    assert [entry["rank"] for entry in everything] == list(range(size))
    collected: list[Any] | None = [None] * size if me == size - 1 else None
    dist.gather_object(os.path.sep * me, collected, dst=size - 1)
    handed: list[Any] = [None]
    dist.scatter_object_list(handed, [{"for": rank} for rank in range(size)] if me == 0 else None, src=0)
    assert handed == [{"for": me}]
    if me == 0:
        dist.send_object_list(["a", 1], dst=1)
    elif me == 1:
        received: list[Any] = [None, None]
        dist.recv_object_list(received, src=0)
        assert received == ["a", 1]
    result = {f"values of {rank}": entry["values"] for rank, entry in enumerate(everything)}
    if collected is not None:
        assert collected == [os.path.sep * rank for rank in range(size)]
    return result


def whole_tensors(_backend: str) -> Results:
    """DTensor's own way to a state dict: parameters of all ranks, as they are distributed."""
    network, _ = _trained()
    local = {}
    for name, parameter in network.named_parameters():
        assert isinstance(parameter, DTensor)
        local[name] = parameter.to_local().detach().clone()
    return local
