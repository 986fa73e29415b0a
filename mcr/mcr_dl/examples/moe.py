# SPDX-License-Identifier: Apache-2.0
"""Trains a mixture-of-experts language model on real text, on single libraries, a mix of them, and `auto`.

    python -m mcr_dl.examples.moe --nproc 2          # starts its own ranks
    torchrun --nproc-per-node 2 -m mcr_dl.examples.moe
    mpiexec -n 2 python -m mcr_dl.examples.moe

One program holds a model for each mode, made from one seed and trained on the same text. They differ only in the
backends that their collectives name: all on gloo, all on mpi, all on shm, a mix (all_to_all on one backend and
all_reduce on another), or `auto`, which chooses by measurements of this machine. They take turns of some steps, so that
a disturbance of the machine affects all of them. The final losses must agree.

With ``--codec bf16`` (or several codecs) the models are one on auto without compression and one for each codec, with
all collectives of the training compressed; their losses must be close.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import mcr_dl as dist
from mcr_dl import _C
from mcr_dl.commands import arguments
from mcr_dl.commands.console import Console
from mcr_dl.examples import program, text
from mcr_dl.examples import record as records
from mcr_dl.examples.comm import ALL_REDUCE, ALL_TO_ALL, Comm, Pending
from mcr_dl.examples.moe_model import LanguageModel, Shape
from mcr_dl.examples.parallel import GradientAverage, bucket_tensors

RATE = 3e-3
BALANCE = 0.01  # weight of the load-balance loss
CODEC_TOLERANCE = 0.02  # as Workload.tolerance, for codecs: different rounding changes the course of training


class Trainer(program.Trainer):
    """One model in training, whose collectives use one choice of backends."""

    def __init__(self, mode: str, comm: Comm, workload: Workload, bucket_bytes: int) -> None:
        super().__init__(mode, comm)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        shape, corpus = workload.shape, workload.corpus
        self.model = LanguageModel(shape, comm, workload.seed)
        self.gradients = GradientAverage(self.model, comm, bucket_bytes)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, betas=(0.9, 0.95))
        self.batches = text.Batches(corpus.shard(rank, ranks), workload.windows, shape.context, workload.seed + rank)
        self.held_out = corpus.held_out_windows(shape.context, rank, ranks)

    def train(self) -> torch.Tensor:
        """Train on one batch."""
        inputs, targets = self.batches.next()
        program.rise(self.optimizer, RATE, self.steps)
        loss, balance = self.model(inputs, targets)
        (loss + BALANCE * balance).backward()
        self.gradients.finish()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        result: torch.Tensor = loss.detach()
        return result

    def held_out_loss(self) -> float:
        """Mean loss in nats per byte on held-out text, over all ranks."""
        with torch.no_grad():
            loss, _ = self.model(*self.held_out)
        return program.sum_over_ranks(loss) / dist.get_world_size()


class Workload(program.Workload):
    """The language model and its text.

    Args:
        shape: its number of experts is rounded to a multiple of the ranks.
        windows: windows of text per step, all ranks together.
        source: files to read; None: Python's standard library.
        megabytes: how much of them to read.
        seed: of the initial values and of the choice of text.

    Raises program.WorkloadError if there is too little text.
    """

    title = "a mixture-of-experts language model on several communication libraries"
    tolerance = 1e-5
    least_gain = 2.0
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
        ranks = dist.get_world_size()
        self.shape = replace(shape, experts=-(-shape.experts // ranks) * ranks)
        self.windows = max(1, windows // ranks)
        self.seed = seed
        self.corpus = text.load(source, limit=int(megabytes * 1e6), least=100 * ranks * shape.context)
        model = LanguageModel(self.shape, Comm({}), seed)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.buckets = bucket_tensors(model, ranks, program.BUCKET_BYTES)
        self.exchanges = 4 * self.shape.expert_blocks  # to the experts and back, forward and backward
        self.exchange_elements = self.shape.experts * self.shape.slots(self.windows * shape.context) * shape.width
        self.rehearsed = [torch.zeros(self.exchange_elements) for _ in range(2)]

    def rehearse(self, comm: Comm) -> None:
        """Run the exchanges in sequence; the all_reduces start among those of the backward pass."""
        tokens, output = self.rehearsed
        pending: list[Pending] = []
        forward = self.exchanges // 2
        for index in range(self.exchanges):
            if index >= forward:
                share = self.buckets[index - forward :: self.exchanges - forward]
                pending += [comm.all_reduce(bucket) for bucket in share]
            comm.all_to_all(output, tokens).wait()
        for work in pending:
            work.wait()

    def setting(self) -> records.Setting:
        """The training's model and data."""
        ranks = dist.get_world_size()
        tokens = ranks * self.windows * self.shape.context
        details: dict[str, Any] = {
            "text": self.corpus.name,
            "text_bytes": self.corpus.train.numel() + self.corpus.held_out.numel(),
            "parameters": self.parameters,
            "experts": self.shape.experts,
            "exchanges": self.exchanges,
            "exchange_bytes": 4 * self.exchange_elements,
            "buckets": len(self.buckets),
            "largest_bucket_bytes": max(bucket.nbytes for bucket in self.buckets),
            "reduce_bytes": sum(bucket.nbytes for bucket in self.buckets),
            "reduce_dtype": str(self.buckets[0].dtype).removeprefix("torch."),
        }
        lines = [
            f"{details['text_bytes'] / 1e6:.1f} MB of {self.corpus.name}",
            f"{self.parameters / 1e6:.2f} M parameters a rank, {self.shape.experts} experts over all ranks, "
            f"{tokens} tokens a step",
            f"Each step and rank: {self.exchanges} all_to_all of {details['exchange_bytes'] / 1e6:.2f} MB, "
            f"{details['buckets']} all_reduce of {details['reduce_bytes'] / 1e6:.2f} MB together "
            f"({details['reduce_dtype']})",
        ]
        return records.Setting(
            title=f"Mixture-of-experts language model, {ranks} rank{'s' * (ranks != 1)}, {self.shape.experts} experts, "
            f"{tokens:,} bytes of text a step",
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
    windows: int = 8
    shape: Shape = field(default_factory=Shape)
    codecs: tuple[str, ...] = ()


class _Explained(Workload):
    """As Workload; prints before the training what auto does with its messages."""

    def setting(self) -> records.Setting:
        found = super().setting()
        exchange, bucket = found.details["exchange_bytes"], found.details["largest_bucket_bytes"]
        for kind, nbytes, dtype in (
            (ALL_TO_ALL, exchange, torch.float32),
            (ALL_REDUCE, bucket, self.buckets[0].dtype),
        ):
            explanation = dist.explain(kind, nbytes, dtype=dtype, async_op=True)  # as Comm makes its calls
            found.lines.append(f"auto: {explanation}")
        return found


def run(options: Options) -> int:
    """Run one rank, once the runtime is up. Returns the exit status, equal on all ranks."""
    make = partial(_Explained, options.shape, options.windows, options.text, options.megabytes)
    return program.run(make, options, partial(_modes, options.codecs) if options.codecs else program.usual_modes)


def _modes(
    codecs: Sequence[str], workload: program.Workload, _console: Console
) -> tuple[dict[str, Comm], dict[str, float]]:
    """Without compression, and with each of the codecs."""
    workload.tolerance = CODEC_TOLERANCE
    dist.set_passes(["compress"])
    auto = dict.fromkeys(workload.kinds, "auto")
    return {"auto": Comm(auto), **{codec: Comm(auto, codec=codec) for codec in codecs}}, {}


def _codec(name: str) -> str:
    """A codec's name as it was given; InvalidArgumentError lists the known ones for another."""
    _C.codec(name)
    return name


def parse(argv: Sequence[str] | None = None) -> Options:
    """Read the command line; exits with an error text if something in it is wrong."""
    summary = "Train a mixture-of-experts language model on gloo, MPI, shared memory, a mix of them, and auto."
    parser = program.parser("mcr_dl.examples.moe", summary, steps=80)
    text.add_arguments(parser)
    parser.add_argument(
        "--batch", type=program.COUNT, default=8, help="windows of 128 bytes per step, all ranks together (default: 8)"
    )
    parser.add_argument("--top-k", type=int, choices=(1, 2), default=1, help="experts per token (default: 1)")
    parser.add_argument(
        "--codec",
        type=arguments.checked(_codec),
        action="append",
        default=[],
        help="compare training with this codec to none; may be given repeatedly",
    )
    given = program.parse(parser, argv)
    return Options(
        **program.common(given),
        text=given.text,
        megabytes=given.megabytes,
        windows=given.batch,
        shape=Shape(choices=given.top_k),
        codecs=tuple(given.codec),
    )


if __name__ == "__main__":
    sys.exit(program.main(run, parse()))
