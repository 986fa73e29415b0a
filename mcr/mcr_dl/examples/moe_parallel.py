# SPDX-License-Identifier: Apache-2.0
"""What makes the model parallel: who carries which operation, the exchange of tokens, the average of gradients."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.function import once_differentiable

import mcr_dl as dist

ALL_TO_ALL = "all_to_all"
ALL_REDUCE = "all_reduce"


class Pending:
    """A started operation. The time that its wait() takes is time lost to communication."""

    def __init__(self, work: Any, operation: str, comm: Comm) -> None:
        self._work = work
        self._operation = operation
        self._comm = comm

    def wait(self) -> None:
        """Return once the result is there."""
        with self._comm.timed(self._operation):
            self._work.wait()


class Comm:
    """The collectives of the training, each on the backend that this mode gives it, and the time they take. With a
    codec they travel compressed.

    ``seconds`` holds, by operation, how long the program has been in calls and waits since it was last cleared; what
    passes while the program computes is not in it.
    """

    def __init__(self, all_to_all: str, all_reduce: str, codec: str = "none") -> None:
        self.backends = {ALL_TO_ALL: all_to_all, ALL_REDUCE: all_reduce}
        self.codec = codec
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        """Add the time of the block to the operation's."""
        start = time.perf_counter()
        yield
        self.seconds[operation] += time.perf_counter() - start

    def all_to_all(self, output: torch.Tensor, input: torch.Tensor) -> Pending:
        """Start sending block i of the input to rank i, and receiving block j of the output from rank j."""
        with self.timed(ALL_TO_ALL):
            backend = self.backends[ALL_TO_ALL]
            work = dist.all_to_all_single(output, input, async_op=True, backend=backend, codec=self.codec)
        return Pending(work, ALL_TO_ALL, self)

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        """Start replacing the tensor by its sum over the ranks."""
        with self.timed(ALL_REDUCE):
            work = dist.all_reduce(tensor, async_op=True, backend=self.backends[ALL_REDUCE], codec=self.codec)
        return Pending(work, ALL_REDUCE, self)


# ---- tokens to their experts and back


class Exchange:
    """An all_to_all that gradients pass through. Between start() and finish() the program can compute other things.

    The gradient of an all_to_all is the all_to_all of the gradient. The backward pass of finish() starts it, that of
    start() waits for it; autograd runs what the program did between the two in between them again.
    """

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        self.pending: Pending | None = None

    def start(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start the exchange. The result is to be given to finish(), and holds nothing before."""
        result: torch.Tensor = _Start.apply(tensor, self)  # type: ignore[no-untyped-call]
        return result

    def finish(self, tensor: torch.Tensor) -> torch.Tensor:
        """Wait for the exchange; returns what has come."""
        result: torch.Tensor = _Finish.apply(tensor, self)  # type: ignore[no-untyped-call]
        return result

    def issue(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start the operation on plain tensors."""
        tensor = tensor.contiguous()
        output = torch.empty_like(tensor)
        self.pending = self.comm.all_to_all(output, tensor)
        return output

    def wait(self) -> None:
        """Wait for what issue() started."""
        if self.pending is not None:
            self.pending.wait()
        self.pending = None


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        ctx.exchange = exchange
        return exchange.issue(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.exchange.wait()
        return gradient, None


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        ctx.exchange = exchange
        exchange.wait()
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.exchange.issue(gradient), None


# ---- gradients


class _Bucket:
    """Parameters whose gradients travel in one all_reduce."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], dtype: torch.dtype) -> None:
        self.flat = torch.empty(sum(parameter.numel() for parameter in parameters), dtype=dtype)
        parts = torch.split(self.flat, [parameter.numel() for parameter in parameters])
        self.places = {parameter: part.view_as(parameter) for parameter, part in zip(parameters, parts, strict=True)}
        self.missing = len(parameters)
        self.pending: Pending | None = None


class GradientAverage:
    """Averages gradients over the ranks while the backward pass is still running.

    Parameters are put into buckets in the order in which their gradients become known, the last layer first. As soon as
    a bucket is full its all_reduce starts, on every rank in the same order, and nobody waits for it before finish().

    Experts live on one rank and need no sum: through the backward all_to_all they have collected the gradients of all
    ranks' tokens. Of each rank's mean loss, that is: what is missing is the division by the number of ranks.

    The modes can be compared because no sum depends on the order in which a library adds. With two ranks there is only
    one order. With more, the sums are taken in float64, in which adding a few float32 numbers is exact unless one of
    them is 2**27 times another. (In float32, on four ranks, gloo and MPI differ in every third element, and weights are
    apart by 2e-4 after 30 steps.)
    """

    def __init__(self, model: torch.nn.Module, comm: Comm, bucket_bytes: int) -> None:
        self._comm = comm
        self._ranks = dist.get_world_size()
        self.dtype = torch.float32 if self._ranks <= 2 else torch.float64
        self._experts = [parameter for parameter in model.parameters() if is_expert(parameter)]
        dense = [parameter for parameter in model.parameters() if not is_expert(parameter)]
        self.buckets = [_Bucket(group, self.dtype) for group in _grouped(reversed(dense), bucket_bytes)]
        for bucket in self.buckets:
            for parameter in bucket.places:
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda ready, bucket=bucket: self._add(ready, bucket)
                )

    def _add(self, parameter: torch.Tensor, bucket: _Bucket) -> None:
        assert parameter.grad is not None
        bucket.places[parameter].copy_(parameter.grad)  # type: ignore[index]
        bucket.missing -= 1
        if bucket.missing == 0:
            bucket.pending = self._comm.all_reduce(bucket.flat)

    def finish(self) -> None:
        """Wait until every gradient is the average over the ranks. Called once after each backward pass."""
        for bucket in self.buckets:
            assert bucket.pending is not None, "a parameter has got no gradient"
            bucket.pending.wait()
            bucket.flat.div_(self._ranks)
            for parameter, average in bucket.places.items():
                assert parameter.grad is not None
                parameter.grad.copy_(average)
            bucket.missing = len(bucket.places)
            bucket.pending = None
        for parameter in self._experts:
            assert parameter.grad is not None
            parameter.grad.div_(self._ranks)


def mark_expert(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """Say that a parameter belongs to experts of this rank."""
    parameter.expert = True  # type: ignore[attr-defined]
    return parameter


def is_expert(parameter: torch.Tensor) -> bool:
    """Whether a parameter belongs to experts of this rank, and is not the same on all ranks."""
    return getattr(parameter, "expert", False)


def _grouped(parameters: Iterable[torch.nn.Parameter], limit: int) -> Iterator[list[torch.nn.Parameter]]:
    group: list[torch.nn.Parameter] = []
    size = 0
    for parameter in parameters:
        bytes_ = parameter.numel() * parameter.element_size()
        if group and size + bytes_ > limit:
            yield group
            group, size = [], 0
        group.append(parameter)
        size += bytes_
    if group:
        yield group


# ---- which backend for which operation


def step_seconds(
    comm: Comm, tokens: torch.Tensor, exchanges: int, buckets: Sequence[torch.Tensor], repeats: int
) -> float:
    """Median time of the communication of one training step, without the computation in between.

    The all_reduces are started among the exchanges of the backward pass, as training does.
    """
    output = torch.empty_like(tokens)
    times = []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        pending = []
        for index in range(exchanges):
            if index >= exchanges // 2:
                share = buckets[index - exchanges // 2 :: exchanges - exchanges // 2]
                pending += [comm.all_reduce(bucket) for bucket in share]
            comm.all_to_all(output, tokens).wait()
        for work in pending:
            work.wait()
        times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 2]


def measure(
    backends: Sequence[str], tokens: int, exchanges: int, buckets: Sequence[torch.Tensor], *, repeats: int = 7
) -> dict[tuple[str, str], float]:
    """Communication time of a step in seconds by (backend of all_to_all, backend of all_reduce), equal on all ranks.

    Args:
        backends: the names to combine.
        tokens: float32 elements of one exchange.
        exchanges: how many exchanges a step has.
        buckets: tensors of the sizes of the gradient buckets.

    Rank 0's figures are taken, as two ranks that trusted their own watches could choose differently, and hang.
    """
    data = torch.zeros(tokens)
    zeros = [torch.zeros_like(bucket) for bucket in buckets]
    pairs = [(first, second) for first in backends for second in backends]
    rounds: dict[tuple[str, str], list[float]] = {pair: [] for pair in pairs}
    for _ in range(3):
        for pair in pairs:
            rounds[pair].append(step_seconds(Comm(*pair), data, exchanges, zeros, repeats))
    figures = [{pair: min(times) for pair, times in rounds.items()}]
    dist.broadcast_object_list(figures, src=0)
    return figures[0]


def best_mix(seconds: dict[tuple[str, str], float]) -> tuple[str, str]:
    """The fastest pair of two different backends."""
    return min((pair for pair in seconds if pair[0] != pair[1]), key=lambda pair: seconds[pair])
