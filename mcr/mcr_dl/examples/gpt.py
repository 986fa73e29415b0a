# SPDX-License-Identifier: Apache-2.0
"""Trains a dense, tensor-parallel language model on real text, on single libraries, a mix, and `auto`.

    python -m mcr_dl.examples.gpt --nproc 2          # starts its own ranks
    torchrun --nproc-per-node 4 -m mcr_dl.examples.gpt

The MCR-DL paper's third workload. Every two ranks share a model, each with one half of every layer, and all_reduce its
activations (forward) and their gradients (backward). With four ranks or more there are several such pairs, each with
its own text, which average their weights' gradients by a second kind of all_reduce while the backward pass runs.

The mixed mode: with four ranks or more the two kinds go to different libraries, in the faster assignment. With two
ranks there is only the first kind, whose results the next layer waits for; so a stripe splits each call over
two libraries, in proportion to their speeds. The final losses of all modes must agree.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import mcr_dl as dist
from mcr_dl.examples import program, text
from mcr_dl.examples import record as records
from mcr_dl.examples.comm import ACTIVATIONS, GRADIENTS, Comm, Layout, Pending
from mcr_dl.examples.gpt_model import LanguageModel, Place, Shape
from mcr_dl.examples.parallel import GradientAverage, bucket_tensors

RATE = 3e-3
MODEL_RANKS = 2  # that share a model


@dataclass(frozen=True)
class Grid:
    """The arrangement of the ranks: pairs that share a model, and groups with the same part of it."""

    rank: int
    ranks: int

    @property
    def parts(self) -> int:
        """Ranks that share a model: 2, or 1 if the number of ranks is odd."""
        return MODEL_RANKS if self.ranks % MODEL_RANKS == 0 else 1

    @property
    def copies(self) -> int:
        """Number of models in training, each on its own text."""
        return self.ranks // self.parts

    @property
    def part(self) -> int:
        """Which part of the model this rank has."""
        return self.rank % self.parts

    @property
    def copy(self) -> int:
        """Which of the models this rank trains."""
        return self.rank // self.parts

    def layout(self) -> Layout:
        """Kinds of operations, with their groups; kinds with only one rank are left out."""
        everyone = list(range(self.ranks))
        models = [everyone[first : first + self.parts] for first in range(0, self.ranks, self.parts)]
        same = [everyone[part :: self.parts] for part in range(self.parts)]
        found = {ACTIVATIONS: models if self.parts > 1 else [], GRADIENTS: same if self.copies > 1 else []}
        return {kind: groups for kind, groups in found.items() if groups}


class Trainer(program.Trainer):
    """One model in training, whose collectives use one choice of backends."""

    def __init__(self, mode: str, comm: Comm, workload: Workload, bucket_bytes: int) -> None:
        super().__init__(mode, comm)
        grid, shape, corpus = workload.grid, workload.shape, workload.corpus
        self.model = LanguageModel(shape, Place(comm, grid.parts, grid.part), workload.seed)
        # Two copies have only one order of summation; exact sums, in twice the bytes, are for more copies.
        self.gradients = GradientAverage(self.model, comm, bucket_bytes, kind=GRADIENTS) if grid.copies > 1 else None
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, betas=(0.9, 0.95))
        shard = corpus.shard(grid.copy, grid.copies)
        self.batches = text.Batches(shard, workload.windows, shape.context, workload.seed + grid.copy)
        self.held_out = corpus.held_out_windows(shape.context, grid.copy, grid.copies)

    def train(self) -> torch.Tensor:
        """Train on one batch."""
        program.rise(self.optimizer, RATE, self.steps)
        loss = self.model(*self.batches.next())
        loss.backward()
        if self.gradients is not None:
            self.gradients.finish()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        result: torch.Tensor = loss.detach()
        return result

    def held_out_loss(self) -> float:
        """Mean loss in nats per byte on held-out text, over all ranks."""
        with torch.no_grad():
            return program.sum_over_ranks(self.model(*self.held_out)) / dist.get_world_size()


class Workload(program.Workload):
    """The language model and its text.

    Args:
        shape: sizes of the model.
        windows: windows of text per step, all models together.
        source: files to read; None: Python's standard library.
        megabytes: how much of them to read.
        seed: of the initial values and of the choice of text.

    Raises program.WorkloadError if there is too little text.
    """

    title = "a dense language model on several communication libraries"
    tolerance = 1e-5
    least_gain = 1.5
    trains = Trainer

    def __init__(
        self,
        shape: Shape,
        windows: int,
        source: Path | None = None,
        megabytes: float = 4.0,
        *,
        seed: int = program.SEED,
    ) -> None:
        self.grid = Grid(dist.get_rank(), dist.get_world_size())
        self.shape = shape
        self.seed = seed
        self.windows = max(1, windows // self.grid.copies)
        self.corpus = text.load(source, limit=int(megabytes * 1e6), least=100 * self.grid.ranks * shape.context)
        model = LanguageModel(shape, Place(Comm({}), self.grid.parts, self.grid.part), seed)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.buckets: list[torch.Tensor] = []
        if self.grid.copies > 1:
            self.buckets = bucket_tensors(model, self.grid.copies, program.BUCKET_BYTES)
        self.reduces = 4 * shape.blocks if self.grid.parts > 1 else 0  # two forward, two backward
        self.activations = torch.zeros(self.windows * shape.context * shape.width)  # of the rehearsal

    def layout(self) -> Layout:
        """Activations in pairs of ranks, gradients among the ranks with the same part of the model."""
        return self.grid.layout()

    def rehearse(self, comm: Comm) -> None:
        """Run the activations in sequence; the gradients start among those of the backward pass."""
        pending: list[Pending] = []
        forward = self.reduces // 2
        for index in range(self.reduces):
            if index > forward:  # a bucket is full after the first layers of the backward pass
                share = self.buckets[index - forward - 1 :: self.reduces - forward - 1]
                pending += [comm.all_reduce(bucket, GRADIENTS) for bucket in share]
            comm.all_reduce(self.activations, ACTIVATIONS).wait()
        if not self.reduces:
            pending += [comm.all_reduce(bucket, GRADIENTS) for bucket in self.buckets]
        for work in pending:
            work.wait()

    def setting(self) -> records.Setting:
        """The training's model and data."""
        grid, shape = self.grid, self.shape
        tokens = grid.copies * self.windows * shape.context
        reduce = sum(bucket.nbytes for bucket in self.buckets)
        details: dict[str, Any] = {
            "text": self.corpus.name,
            "text_bytes": self.corpus.train.numel() + self.corpus.held_out.numel(),
            "width": shape.width,
            "blocks": shape.blocks,
            "parameters": self.parameters,
            "ranks_of_a_model": grid.parts,
            "models": grid.copies,
            "activation_reduces": self.reduces,
            "activation_bytes": self.activations.nbytes,
            "buckets": len(self.buckets),
            "reduce_bytes": reduce,
        }
        lines = [
            f"{details['text_bytes'] / 1e6:.1f} MB of {self.corpus.name}",
            f"{grid.copies} model{'s' * (grid.copies > 1)} on {grid.parts} rank{'s' * (grid.parts > 1)} each, "
            f"{self.parameters / 1e6:.2f} M parameters a rank, {tokens} tokens a step",
            f"Each step and rank: {self.reduces} all_reduce of activations of {self.activations.nbytes / 1e6:.2f} MB, "
            f"{len(self.buckets)} of gradients of {reduce / 1e6:.2f} MB together",
        ]
        return records.Setting(
            title=f"Dense language model, {grid.copies} x {grid.parts} ranks, {tokens:,} bytes of text a step",
            unit="tokens",
            per_step=tokens,
            loss_unit="nats per byte",
            lines=lines,
            details=details,
        )


@dataclass
class Options(program.Options):
    """The options from the command line."""

    text: Path | None = None
    megabytes: float = 4.0
    windows: int = 16
    shape: Shape = field(default_factory=Shape)


def run(options: Options) -> int:
    """Run one rank, once the runtime is up. Returns the exit status, equal on all ranks."""
    return program.run(partial(Workload, options.shape, options.windows, options.text, options.megabytes), options)


def parse(argv: Sequence[str] | None = None) -> Options:
    """Read the command line; exits with an error text if something in it is wrong."""
    summary = "Train a dense language model on gloo, MPI, shared memory, a mix of them, and auto."
    parser = program.parser("mcr_dl.examples.gpt", summary, steps=80)
    text.add_arguments(parser)
    parser.add_argument(
        "--batch",
        type=program.COUNT,
        default=16,
        help="windows of 128 bytes per step, all ranks together (default: 16)",
    )
    parser.add_argument(
        "--width", type=program.COUNT, default=128, help="features of a byte, a multiple of 8 (default: 128)"
    )
    given = program.parse(parser, argv)
    if given.width % (2 * Shape.heads) != 0:
        parser.error(f"--width: expected a multiple of {2 * Shape.heads}, got {given.width}")
    return Options(
        **program.common(given),
        text=given.text,
        megabytes=given.megabytes,
        windows=given.batch,
        shape=Shape(width=given.width, hidden=4 * given.width),
    )


if __name__ == "__main__":
    sys.exit(program.main(run, parse()))
