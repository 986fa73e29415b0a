# SPDX-License-Identifier: Apache-2.0
"""Parts of parallel models: an exchange that gradients pass through, and the average of gradients over ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from mcr_dl.examples.comm import ALL_REDUCE, Comm, Pending

# ---- tokens to their experts and back


class Exchange:
    """An all_to_all that gradients pass through. Between start() and finish() the program can compute other things.

    The gradient of an all_to_all is the all_to_all of the gradient. The backward pass of finish() starts it, and the
    backward pass of start() waits for it; autograd runs the program's computation between the two in between again.
    """

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        self.pending: Pending | None = None

    def start(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start the exchange. Pass the result to finish(); it holds no values before that."""
        result: torch.Tensor = _Start.apply(tensor, self)  # type: ignore[no-untyped-call]
        return result

    def finish(self, tensor: torch.Tensor) -> torch.Tensor:
        """Wait for the exchange; returns the received tensor."""
        result: torch.Tensor = _Finish.apply(tensor, self)  # type: ignore[no-untyped-call]
        return result

    def issue(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start the operation on plain tensors."""
        tensor = tensor.contiguous()
        output = torch.empty_like(tensor)
        self.pending = self.comm.all_to_all(output, tensor)
        return output

    def wait(self) -> None:
        """Wait for the operation that issue() started."""
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

    def __init__(self, parameters: Sequence[torch.nn.Parameter], flat: torch.Tensor) -> None:
        self.flat = flat
        parts = torch.split(flat, [parameter.numel() for parameter in parameters])
        self.places = {parameter: part.view_as(parameter) for parameter, part in zip(parameters, parts, strict=True)}
        self.missing = len(parameters)
        self.pending: Pending | None = None


class GradientAverage:
    """Averages gradients over the ranks while the backward pass is still running.

    Parameters are put into buckets in the order in which their gradients become known, the last layer first. As soon as
    a bucket is full its all_reduce starts, in the same order on every rank; only finish() waits for it.

    Experts live on one rank and need no sum: the backward all_to_all has collected the gradients of all ranks' tokens.
    These are gradients of each rank's mean loss, so they only have to be divided by the number of ranks.

    The modes can be compared because no sum depends on the order in which a library adds. Two ranks allow only one
    order. With more ranks, the sums are taken in float64, in which adding a few float32 numbers is exact unless one of
    them is 2**27 times another. (In float32, on four ranks, gloo and MPI differ in every third element, and weights
    differ by 2e-4 after 30 steps.)

    Args:
        model: all its parameters are averaged, except those of experts.
        comm: carries them.
        bucket_bytes: size of a bucket, counted in the parameters' own type; 0: one parameter each.
        kind: the kind of operation, which determines the group.
        exact: whether sums must not depend on their order. False: float32 on any number of ranks, half the bytes.
    """

    def __init__(
        self, model: torch.nn.Module, comm: Comm, bucket_bytes: int, *, kind: str = ALL_REDUCE, exact: bool = True
    ) -> None:
        self._comm = comm
        self._kind = kind
        self._ranks = comm.ranks(kind)
        self._experts = [parameter for parameter in model.parameters() if is_expert(parameter)]
        flat = bucket_tensors(model, self._ranks, bucket_bytes, exact=exact)
        self.buckets = list(map(_Bucket, _grouped(model, bucket_bytes), flat))
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
            bucket.pending = self._comm.all_reduce(bucket.flat, self._kind)

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
    """Mark a parameter as belonging to experts of this rank."""
    parameter.expert = True  # type: ignore[attr-defined]
    return parameter


def is_expert(parameter: torch.Tensor) -> bool:
    """Whether a parameter belongs to experts of this rank, and so differs between ranks."""
    return getattr(parameter, "expert", False)


def bucket_tensors(model: torch.nn.Module, ranks: int, bucket_bytes: int, *, exact: bool = True) -> list[torch.Tensor]:
    """The tensors in which GradientAverage sums a model's gradients over this number of ranks, as zeros."""
    dtype = torch.float64 if exact and ranks > 2 else torch.float32
    groups = _grouped(model, bucket_bytes)
    return [torch.zeros(sum(parameter.numel() for parameter in group), dtype=dtype) for group in groups]


def _grouped(model: torch.nn.Module, limit: int) -> Iterator[list[torch.nn.Parameter]]:
    """The parameters of each bucket, without those of experts."""
    group: list[torch.nn.Parameter] = []
    size = 0
    for parameter in reversed(list(model.parameters())):
        if is_expert(parameter):
            continue
        bytes_ = parameter.numel() * parameter.element_size()
        if group and size + bytes_ > limit:
            yield group
            group, size = [], 0
        group.append(parameter)
        size += bytes_
    if group:
        yield group
