# SPDX-License-Identifier: Apache-2.0
"""Step times of data-parallel training: hooks, DistributedDataParallel, DeAR's form and ByteScheduler.

    python -m mcr_dl.examples.bytescheduler --nproc 2
    torchrun --nproc-per-node 2 -m mcr_dl.examples.bytescheduler

For each model, one program holds a copy for each way of training; the copies take turns of some steps, so
that a disturbance of the machine affects all of them. On one host there is no network to wait for, and the ranks share
its cores: the lab (docs/lab.md) shows what slower networks do, and vgg16, resnet50 and transformer-base what scheduling
does for accelerators, whose computation they emulate.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.table import Table

import mcr_dl as dist
from mcr_dl.base.documents import write_rows
from mcr_dl.commands.arguments import Parser, backend_names, checked
from mcr_dl.commands.console import Console, bars
from mcr_dl.commands.pictures import save_figure
from mcr_dl.examples import bytescheduler_models as models
from mcr_dl.examples import mixes, program, report
from mcr_dl.measure.timing import quartiles

TURN = 10  # steps
TURNS = 4  # of each way, at least: the quartiles are over turns


@dataclass
class Options(program.Options):
    """The command line."""

    models: tuple[str, ...] = models.COMPUTED
    backend: str | None = None
    search: bool = False


def measure(model: str, steps: int, search: bool, group: Any, progress: Any) -> dict[str, Any]:
    """Step times of all ways with one model: milliseconds by turn."""
    trainers = {name: models.Trainer(model, wrap, group) for name, wrap in models.ways(group, search).items()}
    rounds = -(-steps // TURN)
    task = progress.add_task(model, total=(rounds + 1) * len(trainers))
    for trainer in trainers.values():
        trainer.warm_up()
        progress.update(task, advance=1)
    times: dict[str, list[float]] = {name: [] for name in trainers}
    names = list(trainers)
    for turn in range(rounds):
        first = turn % len(names)
        for name in [*names[first:], *names[:first]]:
            times[name].append(round(1e3 * trainers[name].turn(TURN), 3))
            progress.update(task, advance=1)
    return {
        "model": model,
        "bytes": trainers[models.DDP].nbytes,
        "batch": list(trainers[models.DDP].shape),
        "plans": {
            name: _plan(trainer.model)
            for name, trainer in trainers.items()
            if isinstance(trainer.model, dist.schedule.ByteScheduler)
        },
        "communication_ms": round(_communication(trainers[models.DDP].nbytes, group), 3),
        "turns": times,
    }


def _plan(model: dist.schedule.ByteScheduler) -> dict[str, Any]:
    """The plan that stays, its simulated time, and that of the best plan by simulation, in milliseconds."""
    simulated = [each.step_time for each in (model.plan, *(trial.plan for trial in model.trials))]
    known = [time / 1e6 for time in simulated if time is not None]
    return {
        "settings": str(model.plan),
        "candidate": model.candidate,
        "simulated_ms": None if model.plan.step_time is None else round(known[0], 3),
        "optimum_ms": round(min(known), 3) if known else None,
    }


def _communication(nbytes: int, group: Any) -> float:
    """Milliseconds of one all_reduce of all gradients, on the slowest rank."""
    gradient = torch.zeros(nbytes // 4)
    seconds = [mixes.slowest_seconds(lambda: dist.all_reduce(gradient, group=group), group) for _ in range(6)]
    return 1e3 * median(seconds[1:])


def ratios(turns: dict[str, list[float]], name: str) -> tuple[float, float, float]:
    """Median and quartiles of a way's speed over DDP's, by turns: above 1, it is faster than the faster DDP."""
    best = min((models.DDP, models.BUCKETS), key=lambda each: median(turns[each]))
    values = [other / own for own, other in zip(turns[name], turns[best], strict=True)]
    low, middle, high = quartiles(values)
    return middle, low, high


def bound(row: dict[str, Any]) -> float:
    """Milliseconds that no schedule can beat: the computation alone, or the communication alone.

    The latter is one all_reduce, and no bound where ``auto`` uses one of several networks for it.
    """
    times = {name: median(values) for name, values in row["turns"].items()}
    fastest = min(time for name, time in times.items() if name != models.COMPUTE)
    communication = row["communication_ms"] if row["communication_ms"] <= fastest else 0.0
    return float(max(times[models.COMPUTE], communication))


def table(row: dict[str, Any]) -> Table:
    """The results of one model."""
    title = (
        f"\n{row['model']}: {row['bytes'] / 1e6:.1f} MB of gradients, one all_reduce of them "
        f"{row['communication_ms']:.1f} ms, lower bound of a step {bound(row):.1f} ms"
    )
    result = Table(title=title, title_justify="left")
    for name in ("way", "ms per step", "speed over the faster DDP (quartiles)"):
        result.add_column(name, justify="left" if name == "way" else "right")
    for name, values in row["turns"].items():
        middle, low, high = ratios(row["turns"], name)
        result.add_row(name, f"{median(values):.1f}", f"{middle:.2f} ({low:.2f} to {high:.2f})")
    return result


def draw(rows: Sequence[dict[str, Any]], title: str, path: Path) -> None:
    """A bar for each way and model, and the lower bound as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(rows), 4))
    grid: Any = figure.subplots(1, len(rows), squeeze=False)
    for axes, row in zip(grid[0], rows, strict=True):
        names = list(row["turns"])
        values = [median(row["turns"][name]) for name in names]
        axes.barh(
            names[::-1], values[::-1], color=["#3a8f5c" if n == models.SCHEDULED else "#3572b0" for n in names][::-1]
        )
        axes.axvline(bound(row), color="#333333", linestyle=":", linewidth=1)
        axes.set_title(f"{row['model']}, {row['bytes'] / 1e6:.1f} MB", loc="left", fontsize=11)
        axes.set_xlabel("ms per step, median; dotted: lower bound")
        axes.spines[["top", "right"]].set_visible(False)
        if axes is not grid[0][0]:
            axes.set_yticklabels([])
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    figure.tight_layout()
    save_figure(figure, path, dpi=120)


def run(options: Options) -> int:
    """One rank. Returns the exit status."""
    return program.as_rank(partial(_train, options))


def _train(options: Options, console: Console) -> int:
    ranks, group = dist.get_world_size(), dist.new_group(backend=options.backend)
    console.say(f"MCR-DL: data-parallel training on {ranks} ranks\n", style="bold")
    program.start_trace(options.trace)
    with bars(console, report.columns()) as progress:
        rows = [measure(model, options.steps, options.search, group, progress) for model in options.models]
    program.save_trace(options.trace, console)
    if dist.get_rank() == 0:
        _show(console, rows, ranks, options)
    return 0


def _show(console: Console, rows: Sequence[dict[str, Any]], ranks: int, options: Options) -> None:
    for row in rows:
        console.print(table(row))
        console.say(f"The plan of ByteScheduler: {row['plans'][models.SCHEDULED]['settings']}.")
    backend = options.backend or ",".join(dist.get_backends())
    document = {"ranks": ranks, "threads": torch.get_num_threads(), "backend": backend, "turn": TURN, "models": rows}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    write_rows(options.json, document)
    console.say(f"Figures: {options.json}")
    if options.chart is not None:
        draw(rows, f"Step times on {ranks} ranks, {backend}", options.chart)
        console.say(f"Chart: {options.chart}")


def _parser() -> Parser:
    result = program.parser("mcr_dl.examples.bytescheduler", __doc__.split("\n", maxsplit=1)[0], steps=40)
    text = f"whose steps are timed (default: {' '.join(models.COMPUTED)})"
    result.add_argument("--models", nargs="+", choices=list(models.MODELS), default=list(models.COMPUTED), help=text)
    result.add_argument("--search", action="store_true", help="also ByteScheduler with a Bayesian search (500 steps)")
    names = checked(backend_names)
    result.add_argument(
        "--backend", type=names, metavar="NAME", help="a backend, or several with commas (default: all of the job)"
    )
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program. Returns the exit status."""
    parser = _parser()
    given = program.parse(parser, argv)
    if given.steps < TURNS * TURN:
        parser.error(f"argument --steps: expected at least {TURNS * TURN} ({TURNS} turns of {TURN}), got {given.steps}")
    return program.main(
        run, Options(**program.common(given), models=tuple(given.models), backend=given.backend, search=given.search)
    )


if __name__ == "__main__":
    sys.exit(main())
