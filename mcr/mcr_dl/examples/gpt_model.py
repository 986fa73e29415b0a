# SPDX-License-Identifier: Apache-2.0
"""A dense byte-level transformer language model whose layers are split over the ranks of a tensor-parallel group.

As in Megatron-LM (Shoeybi et al., 2019): in attention and in the perceptron, the first linear layer is split by its
outputs and the second by its inputs. So a block communicates twice forward, to sum the parts of the second layers'
outputs, and twice backward, for the gradients of the first layers' inputs. Every rank has the embeddings and the
norms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from mcr_dl.examples.comm import ACTIVATIONS, Comm
from mcr_dl.examples.text import BYTES


@dataclass(frozen=True)
class Shape:
    """Sizes of the model."""

    width: int = 128
    heads: int = 4
    blocks: int = 4
    hidden: int = 512
    context: int = 128


@dataclass(frozen=True)
class Place:
    """Which part of every layer this rank has, and the operation that joins the parts."""

    comm: Comm
    parts: int = 1
    part: int = 0

    def cut(self, weight: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's part of a whole weight."""
        return weight.chunk(self.parts, dim)[self.part].detach().clone()


class _ByOutputs(torch.autograd.Function):
    """x @ weight.T + bias. Backward, the inputs' gradient is summed over the ranks during the weight's product."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, place: Place) -> torch.Tensor:
        ctx.place = place
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        x, weight = ctx.saved_tensors
        flat = gradient.flatten(0, -2)
        inputs = flat @ weight
        pending = ctx.place.comm.all_reduce(inputs, ACTIVATIONS) if ctx.place.parts > 1 else None
        weights = flat.t() @ x.flatten(0, -2)
        biases = flat.sum(0)
        if pending is not None:
            pending.wait()
        return inputs.view_as(x), weights, biases, None


class _Sum(torch.autograd.Function):
    """The sum over the ranks; each part's gradient is the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, place: Place) -> torch.Tensor:
        del ctx
        x = x.clone(memory_format=torch.contiguous_format)
        place.comm.all_reduce(x, ACTIVATIONS).wait()
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        del ctx
        return gradient, None


class ByOutputs(nn.Module):
    """A linear layer of which each rank has a part of the outputs.

    ``groups``: the outputs consist of this many equal pieces, each of which is split (3 for query, key, value).
    """

    def __init__(self, inputs: int, outputs: int, place: Place, groups: int = 1) -> None:
        super().__init__()
        whole = nn.Linear(inputs, outputs)  # made as a whole, so that its values do not depend on the number of parts
        self.place = place
        self.weight = nn.Parameter(place.cut(whole.weight.view(groups, -1, inputs), 1).flatten(0, 1))
        self.bias = nn.Parameter(place.cut(whole.bias.view(groups, -1), 1).flatten())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., inputs) to (..., outputs / parts)."""
        result: torch.Tensor = _ByOutputs.apply(x, self.weight, self.bias, self.place)  # type: ignore[no-untyped-call]
        return result


class ByInputs(nn.Module):
    """A linear layer of which each rank has a part of the inputs; the outputs are summed over the ranks."""

    def __init__(self, inputs: int, outputs: int, place: Place) -> None:
        super().__init__()
        whole = nn.Linear(inputs, outputs)
        self.place = place
        self.weight = nn.Parameter(place.cut(whole.weight, 1))
        self.bias = nn.Parameter(whole.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., inputs / parts) to (..., outputs)."""
        x = functional.linear(x, self.weight)
        if self.place.parts > 1:
            x = _Sum.apply(x, self.place)  # type: ignore[no-untyped-call]
        return x + self.bias


class Attention(nn.Module):
    """Causal self-attention; each rank has some of the heads."""

    def __init__(self, shape: Shape, place: Place) -> None:
        super().__init__()
        self.heads = shape.heads // place.parts
        self.qkv = ByOutputs(shape.width, 3 * shape.width, place, groups=3)
        self.out = ByInputs(shape.width, shape.width, place)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix along the second dimension of a (batch, length, width) tensor."""
        batch, length, _ = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return result


class Block(nn.Module):
    """Attention, then a perceptron."""

    def __init__(self, shape: Shape, place: Place) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(shape.width)
        self.attention = Attention(shape, place)
        self.before_feed = nn.LayerNorm(shape.width)
        self.into = ByOutputs(shape.width, shape.hidden, place)
        self.out = ByInputs(shape.hidden, shape.width, place)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, width) to the same shape."""
        x = x + self.attention(self.before_attention(x))
        result: torch.Tensor = x + self.out(functional.gelu(self.into(self.before_feed(x))))
        return result


class LanguageModel(nn.Module):
    """Predicts each next byte."""

    def __init__(self, shape: Shape, place: Place, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.byte = nn.Embedding(BYTES, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        for embedding in (self.byte, self.position):
            nn.init.normal_(embedding.weight, std=0.02)
        self.blocks = nn.Sequential(*(Block(shape, place) for _ in range(shape.blocks)))
        self.norm = nn.LayerNorm(shape.width)
        self.predict = nn.Linear(shape.width, BYTES)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean loss in nats per byte of (batch, length) bytes."""
        x = self.blocks(self.byte(inputs) + self.position.weight[: inputs.shape[1]])
        return functional.cross_entropy(self.predict(self.norm(x)).flatten(0, 1), targets.flatten())
