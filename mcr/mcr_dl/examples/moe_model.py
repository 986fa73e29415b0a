# SPDX-License-Identifier: Apache-2.0
"""A byte-level transformer language model with mixture-of-experts layers, its experts sharded over the ranks.

As in DeepSpeed-MoE (Rajbhandari et al., 2022): every second block has experts; a gate sends each token to its best one
or two, each of which takes a limited number; a dense MLP parallel to the experts serves every token (Residual-MoE).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import mcr_dl as dist
from mcr_dl.examples.comm import Comm
from mcr_dl.examples.parallel import Exchange, mark_expert
from mcr_dl.examples.text import BYTES


@dataclass(frozen=True)
class Shape:
    """Sizes of the model."""

    width: int = 128
    heads: int = 4
    blocks: int = 4
    hidden: int = 512
    context: int = 128
    experts: int = 8
    choices: int = 1  # experts per token
    capacity: float = 1.25  # tokens that an expert takes, relative to an equal load

    @property
    def expert_blocks(self) -> int:
        """How many blocks have experts."""
        return self.blocks // 2

    def slots(self, tokens: int) -> int:
        """How many of a rank's tokens one expert takes."""
        return math.ceil(self.capacity * self.choices * tokens / self.experts)


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix along the second dimension of a (batch, length, width) tensor."""
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


def mlp(shape: Shape) -> nn.Sequential:
    """The dense two-layer perceptron."""
    return nn.Sequential(nn.Linear(shape.width, shape.hidden), nn.GELU(), nn.Linear(shape.hidden, shape.width))


@dataclass
class Route:
    """The destinations of a gate's tokens.

    ``slot`` and ``weight`` have one entry per (choice, token): the index in the experts' buffers, and the gate's
    confidence. Slot ``experts * slots`` is the bin for tokens that found their expert full.
    """

    slot: torch.Tensor
    weight: torch.Tensor
    balance: torch.Tensor


class Gate(nn.Module):
    """Chooses the experts of each token, first come, first served."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.score = nn.Linear(shape.width, shape.experts, bias=False)

    def forward(self, x: torch.Tensor) -> Route:
        """Route a (tokens, width) tensor."""
        experts, slots = self.shape.experts, self.shape.slots(x.shape[0])
        probability = self.score(x).softmax(dim=-1)
        weight, chosen = probability.topk(self.shape.choices, dim=-1)
        # All first choices come before all second ones.
        weight, chosen = weight.t().reshape(-1), chosen.t().reshape(-1)
        wanted = functional.one_hot(chosen, experts)
        place = wanted.cumsum(dim=0).gather(1, chosen[:, None]).squeeze(1) - 1
        slot = torch.where(place < slots, chosen * slots + place, experts * slots)
        # Load balance (Shazeer et al.): 1 when all experts are equally busy, `experts` when one has all tokens.
        share = wanted[: x.shape[0]].float().mean(dim=0)
        balance = experts * (share * probability.mean(dim=0)).sum()
        return Route(slot, weight, balance)


class Experts(nn.Module):
    """This rank's experts: perceptrons whose weights are stacked."""

    def __init__(self, shape: Shape, seed: int) -> None:
        super().__init__()
        mine = shape.experts // dist.get_world_size()
        first = dist.get_rank() * mine
        into, out = [], []
        for expert in range(first, first + mine):
            # An expert's initial values depend on its number, not on its rank.
            random = torch.Generator().manual_seed(seed * 1000 + expert)
            into.append(torch.randn(shape.width, shape.hidden, generator=random) / math.sqrt(shape.width))
            out.append(torch.randn(shape.hidden, shape.width, generator=random) / math.sqrt(shape.hidden))
        self.into = mark_expert(nn.Parameter(torch.stack(into)))
        self.out = mark_expert(nn.Parameter(torch.stack(out)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give block e of an (experts, tokens, width) tensor to expert e."""
        return functional.gelu(x @ self.into) @ self.out


class MixtureOfExperts(nn.Module):
    """A dense MLP for every token plus, for each token, the experts that its gate chooses, on any rank."""

    def __init__(self, shape: Shape, comm: Comm, seed: int) -> None:
        super().__init__()
        self.shape = shape
        self.comm = comm
        self.gate = Gate(shape)
        self.experts = Experts(shape, seed)
        self.mlp = mlp(shape)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map (tokens, width) to the same shape; also returns the gate's load-balance loss."""
        tokens, width = x.shape
        ranks, slots = dist.get_world_size(), self.shape.slots(tokens)
        route: Route = self.gate(x)

        # Dispatch: sort the tokens into the slots of all experts, and send each expert's slots to its rank ...
        buffer = x.new_zeros(self.shape.experts * slots + 1, width)
        buffer = buffer.index_copy(0, route.slot, x.repeat(self.shape.choices, 1))
        there = Exchange(self.comm)
        travelling = there.start(buffer[:-1].contiguous())
        # ... and meanwhile compute the dense part. (In the backward pass, autograd overlaps the same two.)
        dense = self.mlp(x)
        arrived = there.finish(travelling)

        # (ranks, experts here, slots, width): each expert gets its tokens from all ranks in one batch.
        arrived = arrived.view(ranks, -1, slots, width).transpose(0, 1)
        done = self.experts(arrived.reshape(-1, ranks * slots, width))
        done = done.view(-1, ranks, slots, width).transpose(0, 1)

        # Combine: send the results back, and give each token its own. Tokens without a slot get zero.
        back = Exchange(self.comm)
        returned = back.finish(back.start(done.reshape(-1, width)))
        returned = torch.cat([returned, returned.new_zeros(1, width)])
        picked = returned.index_select(0, route.slot) * route.weight[:, None]
        return dense + picked.view(-1, tokens, width).sum(dim=0), route.balance


class Block(nn.Module):
    """Attention, then an MLP or a mixture of experts."""

    def __init__(self, shape: Shape, feed: nn.Module) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.before_feed = nn.LayerNorm(shape.width)
        self.feed = feed

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map (batch, length, width) to the same shape; also returns a load-balance loss, 0 without experts."""
        x = x + self.attention(self.before_attention(x))
        inside = self.before_feed(x)
        if not isinstance(self.feed, MixtureOfExperts):
            return x + self.feed(inside), x.new_zeros(())
        out, balance = self.feed(inside.view(-1, x.shape[-1]))
        return x + out.view_as(x), balance


class LanguageModel(nn.Module):
    """Predicts each next byte. Equal on all ranks, except for the experts: a rank has only its own."""

    def __init__(self, shape: Shape, comm: Comm, seed: int) -> None:
        super().__init__()
        if shape.experts % dist.get_world_size() != 0:
            raise ValueError(f"experts: expected a multiple of {dist.get_world_size()} ranks, got {shape.experts}")
        torch.manual_seed(seed)
        self.byte = nn.Embedding(BYTES, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        for embedding in (self.byte, self.position):
            nn.init.normal_(embedding.weight, std=0.02)
        feeds = [
            MixtureOfExperts(shape, comm, seed + index) if index % 2 == 1 else mlp(shape)
            for index in range(shape.blocks)
        ]
        self.blocks = nn.ModuleList(Block(shape, feed) for feed in feeds)
        self.norm = nn.LayerNorm(shape.width)
        self.predict = nn.Linear(shape.width, BYTES)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean loss in nats per byte of (batch, length) bytes, and the sum of the load-balance losses."""
        x = self.byte(inputs) + self.position.weight[: inputs.shape[1]]
        balance = x.new_zeros(())
        for block in self.blocks:
            x, loss = block(x)
            balance = balance + loss
        scores = self.predict(self.norm(x))
        return functional.cross_entropy(scores.flatten(0, 1), targets.flatten()), balance
