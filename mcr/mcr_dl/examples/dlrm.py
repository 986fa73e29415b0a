# SPDX-License-Identifier: Apache-2.0
"""Trains a deep learning recommendation model on single libraries, a mix of them, and `auto`.

    python -m mcr_dl.examples.dlrm --nproc 2          # starts its own ranks
    torchrun --nproc-per-node 2 -m mcr_dl.examples.dlrm

The MCR-DL paper's second workload. The perceptrons are the same on all ranks and their gradients are averaged
(all_reduce); whole embedding tables are distributed over the ranks. So each rank looks up, in its own tables, the rows
for the samples of all ranks, and an all_to_all brings every rank the vectors of its own samples; another one brings the
vectors' gradients back to their tables.

The exchange of the next batch runs while the perceptrons work on the current one (DLRM's pipelining): a step begins by
looking up and sending the next batch's vectors, and waits for them at its end. So a lookup does not see the update of
the previous batch. The mixed mode puts exchanges and averages on different libraries, which then use the network at the
same time. The final losses of all modes must agree, and they must have fallen.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.nn import functional

import mcr_dl as dist
from mcr_dl.examples import program
from mcr_dl.examples import record as records
from mcr_dl.examples.comm import Comm, Pending
from mcr_dl.examples.dlrm_model import Batch, Clicks, Dense, Shape, Tables
from mcr_dl.examples.parallel import GradientAverage, bucket_tensors

RATE = 1e-3  # of the perceptrons, Adam
TABLE_RATE = 0.05  # of the tables, Adagrad, which updates only the rows that were looked up
ROUNDED_TOLERANCE = 2e-3  # as Workload.tolerance, where sums are not exact
HELD_OUT_SAMPLES = 2048  # of all ranks together


@dataclass
class _Exchange:
    """Vectors on their way from the tables to the ranks that need them."""

    batch: Batch
    looked_up: torch.Tensor  # (my tables, samples of all, width), with its graph back to the tables
    arriving: torch.Tensor  # (ranks, tables of each, my samples, width)
    pending: Pending

    def vectors(self) -> torch.Tensor:
        """Wait for the vectors of this rank's samples: (tables, samples, width)."""
        self.pending.wait()
        return self.arriving.flatten(0, 1)


class Trainer(program.Trainer):
    """One model in training, whose collectives use one choice of backends."""

    def __init__(self, mode: str, comm: Comm, workload: Workload, bucket_bytes: int) -> None:
        super().__init__(mode, comm)
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        shape, seed = workload.shape, workload.seed
        each = shape.tables // self.ranks
        self.mine = slice(self.rank * each, (self.rank + 1) * each)  # of the tables
        self.dense = Dense(shape, seed)
        self.tables = Tables(shape, range(shape.tables)[self.mine], seed)
        self.gradients = GradientAverage(self.dense, comm, bucket_bytes, exact=workload.exact)
        self.optimizer = torch.optim.Adam(self.dense.parameters(), lr=RATE)
        self.table_optimizer = torch.optim.Adagrad(self.tables.parameters(), lr=TABLE_RATE)
        self.data = Clicks(shape, workload.samples, seed, world=seed)
        held_out = HELD_OUT_SAMPLES // self.ranks * self.ranks
        self.held_out = Clicks(shape, held_out, seed + 1, world=seed).next()
        self.next: _Exchange | None = None

    def send(self, batch: Batch) -> _Exchange:
        """Look up the vectors that all ranks need from this rank's tables, and start sending them."""
        looked_up = self.tables(batch.rows[self.mine])
        tables, _, width = looked_up.shape
        # (my tables, ranks, samples of each, width) with the ranks first: block i is what rank i needs.
        leaving = looked_up.detach().view(tables, self.ranks, -1, width).transpose(0, 1).contiguous()
        arriving = torch.empty_like(leaving)
        return _Exchange(batch, looked_up, arriving, self.comm.all_to_all(arriving, leaving))

    def send_gradients(self, gradient: torch.Tensor) -> tuple[torch.Tensor, Pending]:
        """Start sending the gradients of (tables, my samples, width) vectors to the ranks with the tables."""
        arriving = torch.empty_like(gradient)
        return arriving, self.comm.all_to_all(arriving, gradient.contiguous())

    def loss(self, batch: Batch, vectors: torch.Tensor) -> torch.Tensor:
        """Mean loss of this rank's samples, in nats."""
        each = batch.clicks.numel() // self.ranks
        mine = slice(self.rank * each, (self.rank + 1) * each)
        dense = self.dense.below(batch.dense[mine])
        scores = self.dense.above(self.dense.interact(dense, vectors))
        return functional.binary_cross_entropy_with_logits(scores.squeeze(1), batch.clicks[mine])

    def train(self) -> torch.Tensor:
        """Train on one batch."""
        now = self.next or self.send(self.data.next())
        vectors = now.vectors().requires_grad_()
        self.next = self.send(self.data.next())
        returning: list[tuple[torch.Tensor, Pending]] = []
        # As soon as the vectors' gradients are known they are sent back, while the rest of the backward pass runs.
        vectors.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda ready: returning.append(self.send_gradients(ready.grad))
        )
        loss = self.loss(now.batch, vectors)
        torch.autograd.backward(loss)
        arrived, pending = returning[0]
        pending.wait()
        tables, samples, width = now.looked_up.shape
        arrived = arrived.view(self.ranks, tables, -1, width).transpose(0, 1).reshape(tables, samples, width)
        torch.autograd.backward(now.looked_up, arrived / self.ranks)  # of the mean over all ranks' samples
        quiet = torch.sparse.check_sparse_tensor_invariants(enable=False)  # type: ignore[no-untyped-call]
        with quiet:  # otherwise torch warns that it has not been told whether to check
            self.table_optimizer.step()
        self.table_optimizer.zero_grad(set_to_none=True)
        self.gradients.finish()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.next.pending.wait()
        return loss.detach()

    def held_out_loss(self) -> float:
        """Mean loss in nats per sample on held-out samples, over all ranks."""
        with torch.no_grad():
            vectors = self.send(self.held_out).vectors()
            return program.sum_over_ranks(self.loss(self.held_out, vectors)) / self.ranks


class Workload(program.Workload):
    """The recommendation model and its samples.

    Args:
        shape: the number of tables must be a multiple of the ranks.
        samples: per step, of all ranks together; rounded down to a multiple of the ranks.
        exact: whether gradients are summed exactly, with more than two ranks in twice the bytes. If not, libraries
            round in different orders, and losses are further apart.
        seed: of the initial values and of the samples.

    Raises program.WorkloadError for sizes that the ranks cannot share.
    """

    title = "a deep learning recommendation model on several communication libraries"
    tolerance = 1e-5
    least_gain = 0.1
    trains = Trainer

    def __init__(self, shape: Shape, samples: int, *, exact: bool = True, seed: int = program.SEED) -> None:
        ranks = dist.get_world_size()
        if shape.tables % ranks != 0:
            raise program.WorkloadError(f"--tables: expected a multiple of {ranks} ranks, got {shape.tables}")
        if samples < ranks:
            raise program.WorkloadError(f"--batch: expected {ranks} samples or more, one a rank, got {samples}")
        self.shape = shape
        self.samples = samples // ranks * ranks
        self.seed = seed
        dense = Dense(shape, seed)
        self.parameters = sum(parameter.numel() for parameter in dense.parameters())
        self.exact = exact
        if not exact:
            self.tolerance = ROUNDED_TOLERANCE
        self.buckets = bucket_tensors(dense, ranks, program.BUCKET_BYTES, exact=exact)
        self.exchange_elements = self.samples // ranks * shape.tables * shape.width
        self.rehearsed = [torch.zeros(self.exchange_elements) for _ in range(3)]

    def rehearse(self, comm: Comm) -> None:
        """Run the next batch's exchange, the averages and the gradients' exchange at once."""
        vectors, arriving, returning = self.rehearsed
        pending = [comm.all_to_all(arriving, vectors)]
        above = len(self.buckets) - 1  # the last bucket belongs to the layers below
        pending += [comm.all_reduce(bucket) for bucket in self.buckets[:above]]
        pending.append(comm.all_to_all(returning, vectors))
        pending += [comm.all_reduce(bucket) for bucket in self.buckets[above:]]
        for work in pending:
            work.wait()

    def setting(self) -> records.Setting:
        """The training's model and data."""
        ranks, shape = dist.get_world_size(), self.shape
        exchange = 4 * self.exchange_elements
        reduce = sum(bucket.nbytes for bucket in self.buckets)
        dtype = str(self.buckets[0].dtype).removeprefix("torch.")
        layers = [
            "-".join(map(str, part))
            for part in ((shape.dense, *shape.below), (shape.width + shape.pairs, *shape.above))
        ]
        return records.Setting(
            title=f"Recommendation model (DLRM), {ranks} rank{'s' * (ranks != 1)}, {shape.tables} tables of "
            f"{shape.rows:,} rows, {self.samples:,} samples a step",
            unit="samples",
            per_step=self.samples,
            loss_unit="nats per sample",
            lines=[
                f"{self.samples} samples a step",
                f"Perceptrons {layers[0]} and {layers[1]}: {self.parameters / 1e6:.2f} M parameters on every rank; "
                f"{shape.tables} tables of {shape.rows} x {shape.width} over all ranks",
                f"Each step and rank: 2 all_to_all of {exchange / 1e6:.2f} MB, {len(self.buckets)} all_reduce of "
                f"{reduce / 1e6:.2f} MB together ({dtype})",
            ],
            details={
                "tables": shape.tables,
                "rows": shape.rows,
                "width": shape.width,
                "below": list(shape.below),
                "above": list(shape.above),
                "parameters": self.parameters,
                "exchanges": 2,
                "exchange_bytes": exchange,
                "buckets": len(self.buckets),
                "reduce_bytes": reduce,
                "reduce_dtype": dtype,
            },
        )


@dataclass
class Options(program.Options):
    """The options from the command line."""

    samples: int = 512
    shape: Shape = field(default_factory=Shape)


def run(options: Options) -> int:
    """Run one rank, once the runtime is up. Returns the exit status, equal on all ranks."""
    return program.run(partial(Workload, options.shape, options.samples), options)


def parse(argv: Sequence[str] | None = None) -> Options:
    """Read the command line; exits with an error text if something in it is wrong."""
    summary = "Train a recommendation model on gloo, MPI, shared memory, a mix of them, and auto."
    parser = program.parser("mcr_dl.examples.dlrm", summary, steps=60)
    for name, usual, help_text in (
        ("--batch", 512, "samples per step, all ranks together"),
        ("--tables", 24, "embedding tables, a multiple of the ranks"),
        ("--rows", 5000, "rows of each table"),
    ):
        parser.add_argument(name, type=program.COUNT, default=usual, help=f"{help_text} (default: {usual})")
    given = program.parse(parser, argv)
    shape = Shape(tables=given.tables, rows=given.rows)
    return Options(**program.common(given), samples=given.batch, shape=shape)


if __name__ == "__main__":
    sys.exit(program.main(run, parse()))
