# SPDX-License-Identifier: Apache-2.0
"""Trains a model under Syndicate, and shows what its plan changes.

    python -m mcr_dl.examples.syndicate --nproc 2
    torchrun --nproc-per-node 2 -m mcr_dl.examples.syndicate --model moe

The program is that of ``mcr_dl.examples.dlrm`` (or moe, or gpt, or a model under DistributedDataParallel) with `auto`
for every call; nothing in it speaks of plans. After some steps the ranks find its iterations, measure their operations
on all backends, and try plans in turns with program order; the fastest stays. On one host all backends use the same
cores, so that program order often stays: the lab (docs/lab.md) has hosts with several networks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

import mcr_dl as dist
from mcr_dl.base.documents import write_rows
from mcr_dl.commands import arguments
from mcr_dl.commands.console import Console, bars
from mcr_dl.examples import bytescheduler_models as data_parallel
from mcr_dl.examples import dlrm, dlrm_model, gpt, gpt_model, moe, moe_model, program, report
from mcr_dl.examples.comm import Comm, make_groups
from mcr_dl.planner.plans import Planner
from mcr_dl.planner.show import plot

ALL = 10  # plans
LAST = 30  # steps, of which the median is reported
TRACED = 6  # steps after the others


Step = Callable[[], object]


def _auto(workload: program.Workload) -> Step:
    """A step of a workload whose calls name no backend."""
    groups = make_groups(workload.layout(), dist.get_rank(), dist.new_group)
    trainer = workload.trainer("auto", Comm(dict.fromkeys(workload.kinds, "auto"), groups=groups))
    return lambda: trainer.step(measured=False)


def _dlrm(batch: int) -> Step:
    return _auto(dlrm.Workload(dlrm_model.Shape(), batch * dist.get_world_size(), exact=False))


def _moe(batch: int) -> Step:
    shape = moe_model.Shape(width=128, hidden=128, choices=2)
    return _auto(moe.Workload(shape, batch * dist.get_world_size(), megabytes=1.0))


def _gpt(batch: int) -> Step:
    copies = gpt.Grid(dist.get_rank(), dist.get_world_size()).copies
    return _auto(gpt.Workload(gpt_model.Shape(width=256, heads=4, hidden=1024), batch * copies, megabytes=1.0))


def _ddp(_batch: int) -> Step:
    group = dist.new_group()
    return data_parallel.Trainer("transformer", data_parallel.ways(group)[data_parallel.DDP], group).step


MODELS: dict[str, tuple[Callable[[int], Step], int]] = {
    "dlrm": (_dlrm, 256),
    "moe": (_moe, 12),
    "gpt": (_gpt, 6),
    "ddp": (_ddp, 0),
}
"""How a step of each is made from the samples or windows of a rank, and how many these are by default; 0: fixed."""


@dataclass
class Options(program.Options):
    """The command line."""

    model: str = "dlrm"
    batch: int = 0
    budget: float = 2.0
    compare: bool = False
    rounds: int = 6
    timeline: Path | None = None


@dataclass
class Training:
    """The course of a run: milliseconds of each step on this rank, and how many events there were after each."""

    syndicate: dist.schedule.Syndicate
    began: float = field(default_factory=time.time)
    times: list[float] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    traced: dist.schedule.Traced | None = None

    def step_of(self, event: int) -> int:
        """The step in which an event has happened."""
        return next((step for step, count in enumerate(self.events) if count > event), len(self.events))


def train(options: Options, console: Console) -> Training:
    """Train the model."""
    make, usual = MODELS[options.model]
    step = make(options.batch or usual)
    more: Any = {"tries": ALL, "rounds": options.rounds, "promising": -1.0} if options.compare else {}
    with (
        dist.schedule.Syndicate(budget=options.budget, **more) as syndicate,
        bars(console, report.columns()) as progress,
    ):
        training = Training(syndicate)
        task = progress.add_task(options.model, total=options.steps)
        for _ in range(options.steps):
            begin = time.perf_counter()
            step()
            training.times.append(1e3 * (time.perf_counter() - begin))
            training.events.append(len(syndicate.events))
            progress.update(task, advance=1)
        if options.timeline is not None and syndicate.phase == "steady":  # alike on all ranks
            options.timeline.mkdir(parents=True, exist_ok=True)
            with syndicate.traced(options.timeline / f"rank-{dist.get_rank()}.json") as training.traced:
                for _ in range(TRACED):
                    step()
    return training


def table(training: Training) -> Table:
    """The plans that were tried, with medians of the iterations on this rank."""
    syndicate, times = training.syndicate, training.times
    result = Table(title="\nIterations", title_justify="left")
    for name in ("plan", "ms", "speed over program order"):
        result.add_column(name, justify="left" if name == "plan" else "right")
    tried: dict[str, list[float]] = {}
    for turn in syndicate.turns:
        tried.setdefault(turn.name, []).extend(turn.times)
    plain = median(tried[""]) if "" in tried else median(times[-LAST:])
    for name, values in sorted(tried.items(), key=lambda item: item[0] != ""):
        result.add_row(name or "program order", f"{median(values):.1f}", f"{plain / median(values):.2f}")
    chosen = syndicate.plan["name"] if syndicate.plan else "program order"
    last = median(times[-LAST:])
    result.add_row(f"the last {min(LAST, len(times))} steps: {chosen}", f"{last:.1f}", f"{plain / last:.2f}")
    return result


def report_of(training: Training, options: Options) -> dict[str, Any]:
    """The results in JSON's types."""
    syndicate = training.syndicate
    return {
        "model": options.model,
        "ranks": dist.get_world_size(),
        "backends": list(dist.get_backends()),
        "events": [{**vars(each), "step": training.step_of(index)} for index, each in enumerate(syndicate.events)],
        "turns": [{"plan": turn.name, "ms": [round(each, 3) for each in turn.times]} for turn in syndicate.turns],
        "plan": syndicate.plan,
        "began": round(training.began, 3),
        "steps": [round(each, 3) for each in training.times],
        "statistics": syndicate.statistics(),
    }


def run(options: Options) -> int:
    """One rank. Returns the exit status."""
    return program.as_rank(partial(_run, options))


def _run(options: Options, console: Console) -> int:
    console.say(f"MCR-DL: Syndicate on {dist.get_world_size()} ranks, {', '.join(dist.get_backends())}\n", style="bold")
    program.start_trace(options.trace)
    training = train(options, console)
    if dist.get_rank() == 0:
        _show(console, training, options)
    program.save_trace(options.trace, console)
    return 0


def _traced(training: Training, folder: Path) -> str:
    """A summary of the trace of this rank."""
    found = training.traced
    if found is None:
        return f"No trace: expected a plan that stays, or that none is better, got {training.syndicate.phase!r}"
    planned = f", {found.planned_ms:.1f} by simulation" if training.syndicate.plan else ""
    return f"Timelines: {folder}, for Perfetto; {found.median_ms:.1f} ms of each step wait for calls{planned}"


def _show(console: Console, training: Training, options: Options) -> None:
    syndicate = training.syndicate
    for index, event in enumerate(syndicate.events):
        change = f": {event.before:.1f} ms an iteration without, {event.after:.1f} ms with it" if event.before else ""
        console.say(f"Step {training.step_of(index)}, {event.what}{change}")
    console.print(table(training))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    write_rows(options.json, report_of(training, options))
    console.say(f"Figures: {options.json}")
    if options.timeline is not None:
        console.say(_traced(training, options.timeline))
    if options.chart is not None:
        console.say(_draw(syndicate, options, options.chart))


def _draw(syndicate: dist.schedule.Syndicate, options: Options, chart: Path) -> str:
    """Draw the simulated timelines and keep the graph. Returns where they are, or why there are none."""
    graph = syndicate.graph
    if graph is None:
        return f"No chart: no iteration was found in {options.steps} steps; give more --steps"
    syndicate.save(options.json.with_suffix(".graph.json"))
    planner = Planner(graph)
    plot(planner, [planner.program_order(), planner.search(budget=options.budget).plan], chart)
    return f"Simulated timelines without and with a plan: {chart}"


def parse(argv: Sequence[str] | None = None) -> Options:
    """Read the command line; exits with an error text if something in it is wrong."""
    parser = program.parser(
        "mcr_dl.examples.syndicate", __doc__.split("\n", maxsplit=1)[0], steps=150, text="training steps"
    )
    parser.add_argument("--model", choices=list(MODELS), default="dlrm", help="whose steps run (default: dlrm)")
    parser.add_argument("--batch", type=program.COUNT, default=0, help="samples or windows of each rank in a step")
    seconds = arguments.checked(arguments.seconds)
    parser.add_argument("--budget", type=seconds, default=2.0, metavar="SECONDS", help="for the search (default: 2)")
    text = "try all plans, also those that are slower by simulation"
    parser.add_argument("--compare", action="store_true", help=text)
    parser.add_argument(
        "--rounds", type=program.COUNT, default=6, help="with --compare: turns of each plan (default: 6)"
    )
    text = "write a timeline of each rank: the plan, and what has run"
    parser.add_argument("--timeline", type=arguments.checked(arguments.folder), metavar="FOLDER", help=text)
    given = program.parse(parser, argv)
    try:
        dist.schedule.Syndicate(budget=given.budget, rounds=given.rounds)
    except dist.InvalidArgumentError as error:
        parser.error(f"argument --{str(error).removeprefix('Syndicate: ')}")
    if given.batch and not MODELS[given.model][1]:
        parser.error(f"argument --batch: expected none with --model {given.model}, got {given.batch}")
    own = {name: getattr(given, name) for name in ("model", "batch", "budget", "compare", "rounds")}
    timeline = None if given.timeline is None else Path(given.timeline)
    return Options(**program.common(given), **own, timeline=timeline)


if __name__ == "__main__":
    sys.exit(program.main(run, parse()))
