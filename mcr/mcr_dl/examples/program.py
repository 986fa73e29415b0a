# SPDX-License-Identifier: Apache-2.0
"""Common parts of the example programs: training in turns on several choices of backends, ranks, command line."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

import mcr_dl as dist
from mcr_dl.base import launcher
from mcr_dl.commands import arguments
from mcr_dl.commands.console import Console, restored
from mcr_dl.examples import mixes, report
from mcr_dl.examples import record as records
from mcr_dl.examples.comm import ALL_REDUCE, ALL_TO_ALL, Comm, Layout, make_groups
from mcr_dl.groups import environment
from mcr_dl.trace import cli
from mcr_dl.trace.plot import plot
from mcr_dl.trace.show import show

LIBRARIES = ("gloo", "mpi", "shm")  # that the programs compare, as far as all ranks can use them
SEED = 2023
BUCKET_BYTES = 1 << 20
WARM_UP = 20  # steps over which the learning rate rises


@dataclass
class Options:
    """The command-line options of every program."""

    nproc: int = 2
    steps: int = 120
    turn: int = 10
    chart: Path | None = None
    json: Path = Path("demo-results/example.json")
    trace: Path | None = None

    @property
    def turns(self) -> int:
        """How many turns each mode has: enough for the steps, and at least two, because the first is not measured."""
        return max(2, -(-self.steps // self.turn))


class WorkloadError(ValueError):
    """The model cannot be trained with the given options; the text says what to do about it."""


class Trainer(ABC):
    """One model in training, whose collectives use one choice of backends."""

    def __init__(self, mode: str, comm: Comm) -> None:
        self.comm = comm
        self.record = records.Record(mode, comm.routes)
        self.steps = 0

    @abstractmethod
    def train(self) -> torch.Tensor:
        """Train on one batch; returns the loss of this rank's part before the step."""

    @abstractmethod
    def held_out_loss(self) -> float:
        """Mean loss over all ranks on held-out data."""

    def step(self, *, measured: bool) -> None:
        """Train on one batch; `measured`: keep the times."""
        self.comm.seconds.clear()
        start = time.perf_counter()
        self.steps += 1
        loss = self.train()
        seconds = time.perf_counter() - start
        self.record.curve.append(loss.item())
        if measured:
            self.record.add(seconds, self.comm.seconds)


class Workload(ABC):
    """A model, its data and its sizes, on the ranks of the default group."""

    title: str
    tolerance: float  # largest difference between the final losses of the modes
    least_gain: float  # how much each loss must fall
    trains: Callable[[str, Comm, Any, int], Trainer]  # the class of its trainers

    def layout(self) -> Layout:
        """The kinds of operations of a step, each with its groups of ranks; by default exchanges and averages over all
        ranks.
        """
        everyone = [list(range(dist.get_world_size()))]
        return {ALL_TO_ALL: everyone, ALL_REDUCE: everyone}

    def trainer(self, mode: str, comm: Comm, bucket_bytes: int = BUCKET_BYTES) -> Trainer:
        """A model in its initial state."""
        return self.trains(mode, comm, self, bucket_bytes)

    @abstractmethod
    def rehearse(self, comm: Comm) -> None:
        """The communication of one step without its computation, with the waits where the step has them."""

    @abstractmethod
    def setting(self) -> records.Setting:
        """The training's model and data; `turn` and `trial_seconds` are filled in later."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of operations of a step."""
        return tuple(self.layout())


def rise(optimizer: torch.optim.Optimizer, rate: float, step: int) -> None:
    """Set the learning rate, which grows over the first steps."""
    for group in optimizer.param_groups:
        group["lr"] = rate * min(1.0, step / WARM_UP)


def threads() -> int:
    """Computing threads of a rank: the usable cores, divided by the ranks of this host."""
    local = dist.get_world_size() if launcher.detect().launcher == "none" else launcher.local_size()
    return max(1, len(os.sched_getaffinity(0)) // local)


def sum_over_ranks(value: torch.Tensor) -> float:
    """The sum of a number, never compressed."""
    total = value.double()
    dist.all_reduce(total, codec="none")
    return float(total)


# ---- the modes


def libraries() -> tuple[str, ...]:
    """The compared libraries that this job has started. Raises WorkloadError if there are fewer than two."""
    found = tuple(name for name in LIBRARIES if name in dist.get_backends())
    if len(found) < 2:
        started = ", ".join(dist.get_backends())
        raise WorkloadError(
            f"backends: expected two or more of {', '.join(LIBRARIES)}, got {started}: mcr-info says why"
        )
    return found


def choose(
    workload: Workload, groups: Mapping[str, Any], backends: Sequence[str], *, rounds: int = 3, repeats: int = 3
) -> tuple[mixes.Mix, dict[str, float]]:
    """The best mix of several backends for a step's communication, and the seconds of all mixes that were tried.

    Operations are given to backends as a whole; if there is only one kind, its messages are cut over the two fastest.
    The groups have the backends ``mixes.with_stripes``.
    """
    plain = mixes.whole(workload.kinds, backends)
    seconds = mixes.measure(workload.rehearse, plain, groups, rounds=rounds, repeats=repeats)
    tried = list(zip(plain, seconds, strict=True))
    if not any(mixes.uses_several(mix) for mix in plain):
        alone = {mix[workload.kinds[0]]: value for mix, value in tried}
        cut = mixes.striped(workload.kinds, sorted(alone, key=lambda name: alone[name])[:2], alone)
        seconds = mixes.measure(workload.rehearse, cut, groups, rounds=rounds, repeats=repeats)
        tried += zip(cut, seconds, strict=True)
    best, _ = min((pair for pair in tried if mixes.uses_several(pair[0])), key=lambda pair: pair[1])
    return best, {mixes.name_of(mix): value for mix, value in tried}


def usual_modes(workload: Workload, console: Console) -> tuple[dict[str, Comm], dict[str, float]]:
    """The modes, and the seconds of the mixes that were tried.

    Measurements at the model's own sizes decide which backend carries what in the mixed mode. `auto` has groups of its
    own, with the job's backends alone: it compares all candidates of a group.
    """
    if not workload.kinds:
        raise WorkloadError("expected 2 ranks or more: one rank has no other rank to communicate with")
    alone = libraries()
    layout, rank = workload.layout(), dist.get_rank()
    named = make_groups(layout, rank, partial(dist.new_group, backend=mixes.with_stripes(alone)))
    mix, seconds = choose(workload, named, alone)
    report.show_choice(console, seconds, mixes.name_of(mix))
    routes: dict[str, mixes.Mix] = {name: dict.fromkeys(workload.kinds, name) for name in alone}
    modes = {mode: Comm(route, groups=named) for mode, route in (routes | {"mixed": mix}).items()}
    auto = Comm(dict.fromkeys(workload.kinds, "auto"), groups=make_groups(layout, rank, dist.new_group))
    return modes | {"auto": auto}, seconds


# ---- training


def train(trainers: Sequence[Trainer], options: Options, console: Console) -> None:
    """Train all models in turns of some steps; the first turn of each warms up and is not measured."""
    for trainer in trainers:
        trainer.record.loss_start = trainer.held_out_loss()
    steps = options.turns * options.turn
    progress = report.Progress(console, [trainer.record for trainer in trainers], steps)
    with progress.bars:
        for turn in range(options.turns):
            first = turn % len(trainers)
            for trainer in [*trainers[first:], *trainers[:first]]:
                # The first turn has no region: summaries of the trace then leave it out, as the report does.
                with dist.trace.region(trainer.record.mode) if turn > 0 else nullcontext():
                    for _ in range(options.turn):
                        trainer.step(measured=turn > 0)
                        progress.advance(trainer.record)
    for trainer in trainers:
        trainer.record.loss_end = trainer.held_out_loss()


def start_trace(trace: Path | None) -> None:
    """Log the calls of all ranks from here on, if there is to be a trace."""
    if trace is not None:
        dist.configure(enabled=True)
        dist.reset_log()


def save_trace(trace: Path | None, console: Console) -> None:
    """Save every rank's log next to `trace`, if there is one; rank 0 merges them, prints where the time went, and draws
    it.

    The files of all ranks must be visible to rank 0.
    """
    if trace is None:
        return
    folder = trace.with_suffix("")
    if dist.get_rank() == 0:
        for old in folder.glob("rank*.json"):  # of a job that may have had more ranks
            if old.stem.removeprefix("rank").isdecimal():
                old.unlink()
    dist.barrier()
    dist.trace.save(folder)
    dist.barrier()
    if dist.get_rank() != 0:
        return
    traces = dist.trace.read_all(folder)
    show(traces, console)
    cli.merge(traces, trace)
    if importlib.util.find_spec("matplotlib") is not None:
        plot(traces, trace.with_suffix(".png"))
        console.say(f"{trace.with_suffix('.png')}: where the time went")


def compare(
    workload: Workload, modes: Mapping[str, Comm], seconds: dict[str, float], options: Options, console: Console
) -> int:
    """Train one model in each mode, and report. Returns the exit status, equal on all ranks."""
    trainers = [workload.trainer(mode, comm) for mode, comm in modes.items()]
    setting = workload.setting()
    setting.turn, setting.trial_seconds = options.turn, seconds
    report.show_setting(console, setting)
    start_trace(options.trace)
    train(trainers, options, console)
    records = [trainer.record.averaged() for trainer in trainers]
    limits = {"tolerance": workload.tolerance, "least_gain": workload.least_gain}
    problems = report.problems(setting, records, **limits)
    if dist.explain("all_reduce", BUCKET_BYTES).table:  # without measurements, auto takes the first backend
        problems += report.slower(setting, records)
    if dist.get_rank() == 0:
        report.show(console, setting, records)
        report.save(console, setting, records, options.json, options.chart)
    save_trace(options.trace, console)
    report.show_verdict(console, setting, records, problems, **limits)
    return 1 if problems else 0


def as_rank(work: Callable[[Console], int]) -> int:
    """Do a rank's work with its share of the cores. Returns the exit status, which is 2 for a WorkloadError."""
    console = report.console(quiet=dist.get_rank() != 0)
    torch.set_num_threads(threads())
    try:
        status = work(console)
    except WorkloadError as error:
        console.say(str(error), style="red")
        return 2
    dist.barrier()  # rank 0 may have been busy with the chart
    return status


Modes = Callable[[Workload, Console], tuple[dict[str, Comm], dict[str, float]]]


def run(make: Callable[[], Workload], options: Options, modes: Modes = usual_modes) -> int:
    """Compare the modes on a workload, as one rank. Returns the exit status, equal on all ranks."""

    def work(console: Console) -> int:
        workload = make()
        console.say(f"MCR-DL: {workload.title}\n", style="bold")
        found, seconds = modes(workload, console)
        return compare(workload, found, seconds, options, console)

    return as_rank(work)


# ---- the command line and the ranks

Given = TypeVar("Given", bound=Options)


COUNT = arguments.checked(arguments.count(1))
TURNS_TEXT = f"training steps of each mode, rounded up to whole turns of at most {Options.turn}"


def parser(module: str, summary: str, *, steps: int, text: str = TURNS_TEXT) -> arguments.Parser:
    """The command line of all programs; each program adds its own sizes. ``text``: the help for the steps."""
    short = module.rpartition(".")[2]
    result = arguments.program(f"python -m {module}", summary)
    ranks = arguments.checked(arguments.local_ranks(1))
    result.add_argument("--nproc", type=ranks, default=2, help="ranks to start, where no launcher has (default: 2)")
    result.add_argument("--steps", type=COUNT, default=steps, help=f"{text} (default: {steps})")
    chart = Path(f"demo-results/{short}.png")
    result.add_argument("--chart", type=Path, default=chart, metavar="PNG", help="where the chart goes")
    result.add_argument(
        "--trace", type=Path, metavar="JSON", help="log all modes; the trace, a summary and its chart (.png) go there"
    )
    result.add_argument("--no-chart", action="store_true", help="write the figures as JSON only, without matplotlib")
    return result


def require_environment(given: arguments.Parser) -> None:
    """Exit with a one-line error if an environment variable has a wrong value."""
    try:
        environment.require()
    except dist.McrError as error:
        given.error(str(error))


def parse(given: arguments.Parser, argv: Sequence[str] | None) -> Any:
    """Read the command line, the program's own if None; exits with a one-line error if something in it is wrong."""
    found = given.parse_args(argv)
    require_environment(given)
    if not found.chart.name:
        given.error(f"argument --chart: expected the name of a file, got {found.chart}")
    if found.trace is not None and found.trace.suffix != ".json":
        given.error(f"argument --trace: expected a file that ends in .json, got {found.trace}")
    if found.trace is not None and found.trace.with_suffix("").resolve() == found.chart.with_suffix("").resolve():
        given.error(
            f"argument --trace: expected another name than --chart's, as its files are next to it, got {found.trace}"
        )
    if not found.no_chart:
        try:
            arguments.picture(str(found.chart))
        except dist.InvalidArgumentError as error:
            given.error(f"argument --chart: {error}; --no-chart draws none")
    _require_places(given, found)
    return found


def _require_places(given: arguments.Parser, found: argparse.Namespace) -> None:
    """Exit with a one-line error if a file could not be written after the training."""
    places = [("--chart", found.chart.with_suffix(".json"), arguments.made_output)]
    if not found.no_chart:
        places.append(("--chart", found.chart, arguments.made_output))
    if found.trace is not None:
        files = (found.trace, found.trace.with_suffix(".png"))
        places += [("--trace", path, arguments.made_output) for path in files]
        places.append(("--trace", found.trace.with_suffix(""), arguments.folder))
    for option, path, require in places:
        try:
            require(str(path))
        except dist.InvalidArgumentError as error:
            given.error(f"argument {option}: {error}")


def common(given: argparse.Namespace) -> dict[str, Any]:
    """The fields of Options from the parsed arguments."""
    return {
        "nproc": given.nproc,
        "steps": given.steps,
        "turn": min(Options.turn, -(-given.steps // 2)),
        "chart": None if given.no_chart else given.chart,
        "json": given.chart.with_suffix(".json"),
        "trace": given.trace,
    }


def _start_and_run(rank: int, run: Callable[[Given], int], options: Given, port: int) -> None:
    """Run a rank that the program has started itself."""
    store = dist.TCPStore("localhost", port, timeout=timedelta(minutes=2))
    dist.init_process_group(store=store, rank=rank, world_size=options.nproc)
    status = run(options)
    dist.destroy_process_group()
    sys.exit(status)


def main(run: Callable[[Given], int], options: Given) -> int:
    """Run as one rank of a job that a launcher has started, or launch the job. Returns the exit status.

    Args:
        run: the function of each rank, called once the runtime is up; importable from a module.
        options: the command line.
    """
    if launcher.detect().launcher != "none":
        dist.init_process_group()
        status = run(options)
        dist.destroy_process_group()
        return status
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    try:
        with restored(Console()):
            start_processes(_start_and_run, (run, options, store.port), options.nproc)  # type: ignore[no-untyped-call]
    except ProcessRaisedException as error:
        print(f"rank {error.error_index} failed, and with it the job:{error}", file=sys.stderr)
        return 1
    except ProcessExitedException as error:
        return arguments.failure_of(error.error_index, error.exit_code)
    return 0
