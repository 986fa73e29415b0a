# SPDX-License-Identifier: Apache-2.0
"""Trains a mixture-of-experts language model on real text, with gloo, with MPI, with both at once, and with `auto`.

    python -m mcr_dl.examples.moe --nproc 2          # starts its own ranks
    torchrun --nproc-per-node 2 -m mcr_dl.examples.moe
    mpiexec -n 2 python -m mcr_dl.examples.moe

One program holds four models, made from one seed and trained on the same text. They differ in nothing but the backends
that their collectives name: all on gloo, all on mpi, all_to_all on one and all_reduce on the other, or `auto`, which
chooses by this machine's tuning table (`mcr-tune --quick`). They take turns of some steps, so that a disturbance of the
machine meets all of them. The losses must agree in the end.

With ``--codec bf16`` (or several) the models are one on auto as it is and one for each codec, with all collectives of
the training compressed; their losses must be close.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import torch
from rich.console import Console
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

import mcr_dl as dist
from mcr_dl import _launch
from mcr_dl.examples import moe_data, moe_report
from mcr_dl.examples.moe_model import LanguageModel, Shape
from mcr_dl.examples.moe_parallel import ALL_REDUCE, ALL_TO_ALL, Comm, GradientAverage, best_mix, measure

BACKENDS = ("gloo", "mpi")
SEED = 2023
BUCKET_BYTES = 1 << 20
RATE = 3e-3
WARM_UP = 20  # steps in which the learning rate rises
BALANCE = 0.01  # weight of the load-balance loss
HELD_OUT_WINDOWS = 48  # of all ranks together
TOLERANCE = 1e-5  # nats per byte by which the modes' final losses may differ
CODEC_TOLERANCE = 0.02  # the same for codecs: other roundings are other courses of training
LEAST_GAIN = 2.0  # nats per byte by which each mode's loss must fall


class Trainer:
    """One model in training, whose collectives use one choice of backends."""

    def __init__(self, mode: str, comm: Comm, shape: Shape, corpus: moe_data.Corpus, windows: int) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.comm = comm
        self.model = LanguageModel(shape, comm, SEED)
        self.gradients = GradientAverage(self.model, comm, BUCKET_BYTES)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, betas=(0.9, 0.95))
        self.batches = moe_data.Batches(corpus.shard(rank, ranks), windows, shape.context, SEED + rank)
        each = max(1, HELD_OUT_WINDOWS // ranks)
        starts = moe_data.evenly(corpus.held_out, each * ranks, shape.context)
        self.held_out = moe_data.windows(corpus.held_out, starts[rank::ranks], shape.context)
        self.record = moe_report.Record(mode, dict(comm.backends))
        self.steps = 0

    def step(self, *, measured: bool) -> None:
        """Train on one batch; `measured`: keep the times."""
        inputs, targets = self.batches.next()
        self.comm.seconds.clear()
        start = time.perf_counter()
        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * min(1.0, self.steps / WARM_UP)
        loss, balance = self.model(inputs, targets)
        (loss + BALANCE * balance).backward()
        self.gradients.finish()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - start
        self.record.curve.append(loss.item())
        if measured:
            self.record.add(seconds, self.comm.seconds)

    def held_out_loss(self) -> float:
        """Mean loss in nats per byte on text that is never trained on, over all ranks."""
        with torch.no_grad():
            loss, _ = self.model(*self.held_out)
        total = loss.double()
        dist.all_reduce(total, codec="none")
        return float(total) / dist.get_world_size()


@dataclass
class Options:
    """What the command line says."""

    nproc: int = 2
    text: Path | None = None
    megabytes: float = 4.0
    steps: int = 120
    turn: int = 10
    windows: int = 24
    shape: Shape = field(default_factory=Shape)
    codecs: tuple[str, ...] = ()
    chart: Path | None = Path("demo-results/moe.png")
    json: Path = Path("demo-results/moe.json")
    trace: Path | None = None


def rounded_up(number: int, factor: int) -> int:
    """The next multiple of a factor."""
    return -(-number // factor) * factor


def choose(shape: Shape, windows: int, console: Console) -> tuple[dict[str, Comm], dict[tuple[str, str], float]]:
    """The modes; which backend carries what in the mixed one is measured at the model's own sizes."""
    tokens = windows * shape.context
    buckets = GradientAverage(
        LanguageModel(shape, Comm("gloo", "gloo"), SEED), Comm("gloo", "gloo"), BUCKET_BYTES
    ).buckets
    seconds = measure(
        BACKENDS,
        tokens=shape.experts * shape.slots(tokens) * shape.width,
        exchanges=4 * shape.expert_blocks,  # there and back, forward and backward
        buckets=[bucket.flat for bucket in buckets],
    )
    mix = best_mix(seconds)
    moe_report.show_choice(console, seconds, mix)
    modes = {"gloo": ("gloo", "gloo"), "mpi": ("mpi", "mpi"), "mixed": mix, "auto": ("auto", "auto")}
    return {mode: Comm(*names) for mode, names in modes.items()}, seconds


def compressed(codecs: Sequence[str]) -> tuple[dict[str, Comm], dict[tuple[str, str], float]]:
    """The modes that compare codecs with none."""
    dist.set_passes(["compress"])
    return {"auto": Comm("auto", "auto"), **{codec: Comm("auto", "auto", codec) for codec in codecs}}, {}


def train(trainers: Sequence[Trainer], options: Options, console: Console) -> None:
    """Train all models in turns of some steps; the first turn of each warms up and is not measured."""
    for trainer in trainers:
        trainer.record.loss_start = trainer.held_out_loss()
    turns = max(2, options.steps // options.turn)
    with moe_report.Progress(console, [trainer.record for trainer in trainers], turns * options.turn) as progress:
        for turn in range(turns):
            first = turn % len(trainers)
            for trainer in [*trainers[first:], *trainers[:first]]:
                # The first turn has no region: summaries of the trace then leave it out, as the report does.
                with dist.trace.region(trainer.record.mode) if turn > 0 else nullcontext():
                    for _ in range(options.turn):
                        trainer.step(measured=turn > 0)
                        progress.advance(trainer.record)
    for trainer in trainers:
        trainer.record.loss_end = trainer.held_out_loss()


def describe(
    trainer: Trainer,
    corpus: moe_data.Corpus,
    shape: Shape,
    windows: int,
    options: Options,
    seconds: dict[tuple[str, str], float],
) -> moe_report.Setting:
    """What is trained and on what, for the report."""
    ranks = dist.get_world_size()
    buckets = trainer.gradients.buckets
    return moe_report.Setting(
        ranks=ranks,
        threads=torch.get_num_threads(),
        text=corpus.name,
        text_bytes=corpus.train.numel() + corpus.held_out.numel(),
        tokens_per_step=ranks * windows * shape.context,
        parameters=sum(parameter.numel() for parameter in trainer.model.parameters()),
        experts=shape.experts,
        exchanges=4 * shape.expert_blocks,
        exchange_bytes=4 * shape.experts * shape.slots(windows * shape.context) * shape.width,
        buckets=len(buckets),
        largest_bucket_bytes=max(bucket.flat.nbytes for bucket in buckets),
        reduce_bytes=sum(bucket.flat.nbytes for bucket in buckets),
        reduce_dtype=str(trainer.gradients.dtype).removeprefix("torch."),
        turn=options.turn,
        trial_seconds={f"{first} + {second}": value for (first, second), value in seconds.items()},
    )


def save_trace(trace: Path, console: Console) -> None:
    """Save every rank's log beside `trace`; rank 0 merges them, says where the time went, and draws it.

    The files of all ranks must be visible to rank 0.
    """
    folder = trace.with_suffix("")
    dist.trace.save(folder)
    dist.barrier()
    if dist.get_rank() != 0:
        return
    from mcr_dl.trace import cli
    from mcr_dl.trace._show import show

    traces = dist.trace.read_all(folder)
    show(traces, console)
    cli.merge(traces, trace)
    if importlib.util.find_spec("matplotlib") is not None:
        from mcr_dl.trace._plot import plot

        plot(traces, trace.with_suffix(".png"))
        console.print(f"{trace.with_suffix('.png')}: where the time went", highlight=False)


def run(options: Options) -> int:
    """What each rank does once the runtime is up. Returns the exit status, the same on all ranks."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    console = moe_report.console(quiet=rank != 0)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", ranks))))
    shape = replace(options.shape, experts=rounded_up(options.shape.experts, ranks))
    windows = max(1, options.windows // ranks)
    try:
        corpus = moe_data.load(options.text, limit=int(options.megabytes * 1e6), least=100 * ranks * shape.context)
    except moe_data.TextError as error:
        console.print(f"[red]{error}[/]")
        return 2
    modes, seconds = compressed(options.codecs) if options.codecs else choose(shape, windows, console)
    tolerance = CODEC_TOLERANCE if options.codecs else TOLERANCE
    trainers = [Trainer(mode, comm, shape, corpus, windows) for mode, comm in modes.items()]
    setting = describe(trainers[0], corpus, shape, windows, options, seconds)
    moe_report.show_setting(console, setting)
    for operation, nbytes in ((ALL_TO_ALL, setting.exchange_bytes), (ALL_REDUCE, setting.largest_bucket_bytes)):
        console.print(f"auto: {dist.explain(operation, nbytes, dtype=trainers[0].gradients.dtype)}", highlight=False)
    if options.trace is not None:
        dist.configure(enabled=True)
        dist.reset_log()
    train(trainers, options, console)
    if options.trace is not None:
        save_trace(options.trace, console)
    records = [trainer.record.averaged() for trainer in trainers]
    problems = moe_report.problems(records, tolerance=tolerance, least_gain=LEAST_GAIN)
    if rank == 0:
        moe_report.show(console, setting, records)
        moe_report.save(console, setting, records, options.json, options.chart)
    moe_report.show_verdict(console, records, problems, tolerance=tolerance, least_gain=LEAST_GAIN)
    dist.barrier()  # rank 0 may have been busy with the chart
    return 1 if problems else 0


# ---- the command line and the ranks


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; ends the program with a message if something in it is wrong."""
    summary = "Train a mixture-of-experts language model with gloo, with MPI, with both at once, and with auto."
    parser = argparse.ArgumentParser(prog="python -m mcr_dl.examples.moe", description=summary)
    parser.add_argument("--nproc", type=int, default=2, help="ranks to start, where no launcher has (default: 2)")
    parser.add_argument(
        "--text", type=Path, metavar="DIR", help="train on the files in DIR (default: Python's standard library)"
    )
    parser.add_argument("--megabytes", type=float, default=4.0, help="how much of the text to read (default: 4)")
    parser.add_argument("--steps", type=int, default=120, help="training steps of each mode (default: 120)")
    parser.add_argument(
        "--batch", type=int, default=24, help="windows of 128 bytes per step, all ranks together (default: 24)"
    )
    parser.add_argument("--top-k", type=int, choices=(1, 2), default=1, help="experts per token (default: 1)")
    parser.add_argument(
        "--codec", action="append", default=[], help="compare training with this codec to none; may be given repeatedly"
    )
    parser.add_argument(
        "--chart", type=Path, default=Path("demo-results/moe.png"), metavar="PNG", help="where the chart goes"
    )
    parser.add_argument(
        "--trace", type=Path, metavar="JSON", help="log all modes; the trace, a summary and its chart (.png) go there"
    )
    parser.add_argument("--no-chart", action="store_true", help="write the figures as JSON only, without matplotlib")
    given = parser.parse_args(arguments)
    for name in ("nproc", "steps", "batch", "megabytes"):
        if getattr(given, name) <= 0:
            parser.error(f"--{name}: expected more than 0, got {getattr(given, name)}")
    if not given.no_chart and importlib.util.find_spec("matplotlib") is None:
        parser.error("matplotlib is not installed: run `pip install 'mcr-dl[examples]'`, or say --no-chart")
    return Options(
        nproc=given.nproc,
        text=given.text,
        megabytes=given.megabytes,
        steps=given.steps,
        windows=given.batch,
        shape=Shape(choices=given.top_k),
        codecs=tuple(given.codec),
        chart=None if given.no_chart else given.chart,
        json=given.chart.with_suffix(".json"),
        trace=given.trace,
    )


def start_and_run(rank: int, ranks: int, port: int, options: Options) -> None:
    """A rank that this program has started itself; ``port`` is where the ranks meet."""
    store = dist.TCPStore("localhost", port, timeout=timedelta(minutes=2))
    dist.init_process_group(list(BACKENDS), store=store, rank=rank, world_size=ranks)
    status = run(options)
    dist.destroy_process_group()
    sys.exit(status)


def main() -> int:
    """Run as one rank of a job that somebody has launched, or launch the job. Returns the exit status."""
    options = parse()
    for name, condition in dist.available_backends().items():
        if name in BACKENDS and not condition.startswith("ok"):
            print(f"{name} is needed here, and is {condition}", file=sys.stderr)
            return 2
    if _launch.detect().launcher != "none":
        dist.init_process_group(list(BACKENDS))
        status = run(options)
        dist.destroy_process_group()
        return status
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    try:
        start_processes(start_and_run, (options.nproc, store.port, options), options.nproc)  # type: ignore[no-untyped-call]
    except ProcessRaisedException as error:
        print(f"rank {error.error_index} failed, and with it the job:{error}", file=sys.stderr)
        return 1
    except ProcessExitedException as error:
        return error.exit_code if error.exit_code > 0 else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
