# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel in its forms; each case returns the weights after some steps."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging import averagers
from torch.nn.parallel import DistributedDataParallel

from mcr_dl.testing.expect import expect
from ranks.torch_training import Results, batch, block, loss, weights, wide

STEPS = 3


def _train(model: DistributedDataParallel, steps: int = STEPS, **forward: Any) -> Results:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(steps):
        x, y = batch(step)
        optimizer.zero_grad()
        loss(model(x, **forward), y).backward()
        optimizer.step()
    return weights(model.module)


def plain(_backend: str) -> Results:
    """As in the tutorial, with several buckets."""
    model = DistributedDataParallel(wide(), bucket_cap_mb=1)
    result = _train(model)
    assert model._get_ddp_logging_data()["num_buckets_reduced"] > 1
    return result


def no_sync(_backend: str) -> Results:
    """Gradients of two micro-batches are added up before they are reduced."""
    model = DistributedDataParallel(block())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            x, y = batch(2 * step)
            loss(model(x), y).backward()
        x, y = batch(2 * step + 1)
        loss(model(x), y).backward()
        optimizer.step()
    return weights(model.module)


def static_graph(_backend: str) -> Results:
    """The graph of the first step is used for all."""
    return _train(DistributedDataParallel(block(unused=True), static_graph=True), side=True)


def find_unused_parameters(_backend: str) -> Results:
    """Ranks use different layers: an unused layer gets the other ranks' gradient."""
    model = DistributedDataParallel(block(unused=True), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step)
        loss(model(x, side=(step + dist.get_rank()) % 2 == 0), y).backward()
        optimizer.step()
    return weights(model.module)


def gradient_as_bucket_view(_backend: str) -> Results:
    """Gradients are views of the reduced buckets."""
    return _train(DistributedDataParallel(block(), gradient_as_bucket_view=True))


def buffers(_backend: str) -> Results:
    """All ranks use rank 0's running statistics in each step."""
    torch.manual_seed(7)
    # A bias before the normalization would have rounding errors for a gradient, which the optimizer scales up.
    first = nn.Linear(12, 10, bias=False)
    network = nn.Sequential(first, nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 4)).to(batch(0)[0].dtype)
    return _train(DistributedDataParallel(network, broadcast_buffers=True))


def parameters_of_rank_0(_backend: str) -> Results:
    """Parameters that differ at first are replaced by rank 0's."""
    network = block()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(float(dist.get_rank()))
    return _train(DistributedDataParallel(network, broadcast_buffers=False, init_sync=True))


class _Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(50, 8, mode="sum", sparse=True)
        self.out = nn.Linear(8, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.out(self.table(words))
        return output


def sparse(_backend: str) -> Results:
    """Gradients of an embedding are sparse tensors, with a different number of rows on each rank."""
    torch.manual_seed(7)
    model = DistributedDataParallel(_Words().to(batch(0)[0].dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        source = torch.Generator().manual_seed(10 * step + dist.get_rank())
        words = torch.randint(0, 50, (6, 3 + dist.get_rank()), generator=source)
        optimizer.zero_grad()
        loss(model(words), batch(step)[1]).backward()
        optimizer.step()
    return weights(model.module)


# ---- hooks


def bf16_hook(_backend: str) -> Results:
    """Gradients travel as bfloat16: torch's hook, wrapped, as torch takes it under its own name only for NCCL."""

    def hook(state, bucket):  # type: ignore[no-untyped-def]
        return default_hooks.bf16_compress_hook(state, bucket)

    model = DistributedDataParallel(block())
    model.register_comm_hook(None, hook)
    return _train(model)


def fp16_hook(_backend: str) -> Results:
    """Gradients travel as float16."""
    model = DistributedDataParallel(block())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return _train(model)


def own_hook(_backend: str) -> Results:
    """A user's hook: futures of asynchronous calls, chained by then(), with the value of the last one."""

    # Without annotations: DDP would compare them to its classes and not to their names.
    def hook(calls, bucket):  # type: ignore[no-untyped-def]
        calls.append(bucket.index())
        work = dist.all_reduce(bucket.buffer(), async_op=True)

        mean = work.get_future().then(lambda done: done.value()[0].div_(dist.get_world_size()))
        return mean.then(lambda done: done.value() * 2)

    calls: list[int] = []
    model = DistributedDataParallel(wide(), bucket_cap_mb=1)
    model.register_comm_hook(calls, hook)
    result = _train(model)
    assert len(calls) > STEPS, f"several buckets a step, got {calls}"
    return result


def power_sgd_hook(_backend: str) -> Results:
    """Low-rank gradients with error feedback, after two ordinary steps."""
    model = DistributedDataParallel(block())
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1.0
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return _train(model, steps=5)


def local_sgd(_backend: str) -> Results:
    """Post-local SGD: weights instead of gradients are averaged, every second step."""
    model = DistributedDataParallel(block())
    mine, _ = dist.new_subgroups(1)
    state = post_localSGD_hook.PostLocalSGDState(process_group=None, subgroup=mine, start_localSGD_iter=1)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = averagers.PeriodicModelAverager(period=2, warmup_steps=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(5):
        x, y = batch(step)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    return weights(model.module)


# ---- uneven inputs


def join(_backend: str) -> Results:
    """Rank r has 2 r more batches than rank 0: ranks without inputs shadow the others' collectives."""
    model = DistributedDataParallel(block())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with model.join():
        for step in range(2 + 2 * dist.get_rank()):
            x, y = batch(step)
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
    return weights(model.module)


def join_error(_backend: str) -> Results:
    """With throw_on_early_termination all ranks get an error when the first one is done."""
    model = DistributedDataParallel(block())
    done = []

    def uneven() -> None:
        with model.join(throw_on_early_termination=True):
            for step in range(2 + 2 * dist.get_rank()):
                x, y = batch(step)
                loss(model(x), y).backward()
                done.append(step)

    expect(RuntimeError, uneven, "exhausted")
    return {"steps": torch.tensor(done)}


# ---- on a group that is not the default one


def two_models(_backend: str) -> Results:
    """Two models on two groups of the same ranks train side by side."""
    first = DistributedDataParallel(block())
    second = DistributedDataParallel(block(), process_group=dist.new_group())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (first, second)]
    for step in range(STEPS):
        x, y = batch(step)
        losses = [loss(model(x * factor), y) for model, factor in ((first, 1), (second, 2))]
        for optimizer, value in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    one, two = (weights(model.module) for model in (first, second))
    return {**one, **{f"second {name}": value for name, value in two.items()}}
