# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training whose optimizer state is sharded, with a copy of each shard in another rank's memory.

Each rank updates its shard of the parameters with Adam and keeps, for the last two steps, its shard and that of the
rank before it. Any ranks may be lost, as long as no two of them are neighbors: the others have every shard of the last
step that all of them completed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import mcr_dl as dist

BATCH = 24  # samples of a step, divided over the ranks
INPUTS = 32
_HELD_OUT = 10_000_019  # number of the batch that is not trained on
_RATE, _DECAYS, _TINY = 3e-3, (0.9, 0.999), 1e-8
_VALUES, _FIRST, _SECOND = range(3)  # rows of a shard: parameters, first and second moments of their gradients


class UnrecoverableError(RuntimeError):
    """Two neighboring ranks are lost, and with them a shard and its copy."""


@dataclass
class Copies:
    """One rank's part of the state after a step."""

    version: int  # grows with every step and every restoration, alike on all ranks
    step: int
    ranks: list[int]  # global ranks of the group at that step
    own: torch.Tensor
    before: torch.Tensor  # the shard of the rank before this one


def _model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(INPUTS, 128),
        torch.nn.Tanh(),
        torch.nn.Linear(128, 128),
        torch.nn.Tanh(),
        torch.nn.Linear(128, 1),
    )


def _samples(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All samples of a step, equal on all ranks."""
    source = torch.Generator().manual_seed(number)
    inputs = torch.randn(BATCH, INPUTS, generator=source)
    return inputs, torch.tanh(inputs.cumsum(1)[:, ::8].sum(1, keepdim=True) / 4)


class Trainer:
    """A model in training on the ranks of a group. Every rank has all parameters, and the moments of its shard."""

    def __init__(self, group: Any | None) -> None:
        """``group``: None on a rank that comes back, which gets its state by ``regroup``."""
        self.kept: list[Copies] = []
        self.losses: list[float] = []
        self._model = _model()
        values = parameters_to_vector(self._model.parameters()).detach()
        self.parameters = len(values)
        self._version = 0
        if group is None:
            return
        self._take(group, 0, torch.stack([values, torch.zeros_like(values), torch.zeros_like(values)]))
        self.keep()

    def _take(self, group: Any, step: int, state: torch.Tensor) -> None:
        """Go on with this state (3 x parameters) on these ranks."""
        self.group, self.steps = group, step
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._ranks = dist.get_process_group_ranks(group)
        self._length = -(-self.parameters // self.size)
        padded = torch.zeros(3, self._length * self.size)
        padded[:, : self.parameters] = state
        self._shard = padded[:, self.rank * self._length :][:, : self._length].clone()
        vector_to_parameters(state[_VALUES], self._model.parameters())

    def step(self) -> None:
        """Train on the next batch: reduce_scatter of the gradients, Adam on the shard, all_gather of the parameters."""
        inputs, targets = _samples(self.steps)
        part = slice(self.rank * BATCH // self.size, (self.rank + 1) * BATCH // self.size)
        self._model.zero_grad()
        loss = (self._model(inputs[part]) - targets[part]).square().sum() / BATCH
        loss.backward()
        gradients = torch.zeros(self._length * self.size)
        found = [each.grad.flatten() for each in self._model.parameters() if each.grad is not None]
        gradients[: self.parameters] = torch.cat(found)
        gradient = torch.empty(self._length)
        dist.reduce_scatter_tensor(gradient, gradients, group=self.group)
        shard = self._shard.clone()
        self._adam(shard, gradient)
        values = torch.empty(self._length * self.size)
        dist.all_gather_into_tensor(values, shard[_VALUES], group=self.group)
        total = loss.detach()
        dist.all_reduce(total, group=self.group)
        vector_to_parameters(values[: self.parameters], self._model.parameters())
        self._shard, self.steps = shard, self.steps + 1
        self.losses[self.steps - 1 :] = [float(total)]
        self.keep()

    def _adam(self, shard: torch.Tensor, gradient: torch.Tensor) -> None:
        step = self.steps + 1
        for row, decay, value in ((_FIRST, _DECAYS[0], gradient), (_SECOND, _DECAYS[1], gradient.square())):
            shard[row].mul_(decay).add_(value, alpha=1 - decay)
        first, second = (shard[row] / (1 - decay**step) for row, decay in ((_FIRST, _DECAYS[0]), (_SECOND, _DECAYS[1])))
        shard[_VALUES].sub_(_RATE * first / (second.sqrt() + _TINY))

    def keep(self) -> None:
        """Send this rank's shard to the next rank. Ranks may be one step apart, so the last two steps are kept."""
        before = torch.empty_like(self._shard)
        if self.size > 1:
            sent = dist.isend(self._shard, self._ranks[(self.rank + 1) % self.size], group=self.group)
            dist.recv(before, self._ranks[self.rank - 1], group=self.group)
            sent.wait()
        self._version += 1
        self.kept = [*self.kept[-1:], Copies(self._version, self.steps, self._ranks, self._shard, before)]

    def restore(self, group: Any) -> None:
        """Go on from the last step that all ranks of a group of survivors have completed, with their copies.

        Raises UnrecoverableError on all ranks if a shard has been lost with its copy.
        """
        newest = torch.tensor(self.kept[-1].version)
        dist.all_reduce(newest, dist.ReduceOp.MIN, group=group)
        copies = next(each for each in self.kept if each.version == int(newest))
        pieces = [self._piece(copies, owner, holder, group) for owner, holder in _holders(copies.ranks, group)]
        self._take(group, copies.step, torch.cat(pieces, dim=1)[:, : self.parameters])
        self._version, self.kept = copies.version, [copies]
        self.keep()

    def regroup(self, group: Any) -> None:
        """Go on on a larger group: the ranks that have come back get the state from the others."""
        told: list[Any] = [None] * dist.get_world_size(group)
        mine = (self._version, self.steps, self._ranks, self.losses) if self.kept else None
        dist.all_gather_object(told, mine, group=group)
        self._version, step, owners, losses = next(filter(None, told))
        length = -(-self.parameters // len(owners))
        pieces = []
        for owner in owners:
            piece = self._shard.clone() if owner == dist.get_rank() else torch.empty(3, length)
            dist.broadcast(piece, owner, group=group)
            pieces.append(piece)
        self.losses = list(losses)
        self._take(group, step, torch.cat(pieces, dim=1)[:, : self.parameters])
        self.kept = []
        self.keep()

    @staticmethod
    def _piece(copies: Copies, owner: int, holder: int, group: Any) -> torch.Tensor:
        """The shard of one rank, from the rank that has it."""
        piece = copies.own.clone() if dist.get_rank() == owner else copies.before.clone()
        dist.broadcast(piece, holder, group=group)
        return piece

    def held_out_loss(self) -> float:
        """The loss on samples that are not trained on. Every rank computes it alone."""
        inputs, targets = _samples(_HELD_OUT)
        with torch.no_grad():
            return float((self._model(inputs) - targets).square().mean())


def _holders(ranks: list[int], group: Any) -> Iterator[tuple[int, int]]:
    """Each former rank and the survivor that has its shard."""
    left = set(dist.get_process_group_ranks(group))
    pairs = [
        (owner, owner if owner in left else after) for owner, after in zip(ranks, ranks[1:] + ranks[:1], strict=True)
    ]
    for owner, holder in pairs:
        if holder not in left:
            raise UnrecoverableError(f"ranks {owner} and {holder} are lost, and with them a shard and its copy")
    return iter(pairs)
