# SPDX-License-Identifier: Apache-2.0
"""Output and results of the training: progress, tables, a JSON file and a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TimeRemainingColumn
from rich.table import Table

from mcr_dl.base.documents import write_rows
from mcr_dl.commands.console import Console, bars
from mcr_dl.examples import chart as picture
from mcr_dl.examples.record import Record, Setting, alone, gains, ratio, share, speed, spread, turns

NOISE = 0.03  # the part of a speed by which equal modes may differ


def console(*, quiet: bool) -> Console:
    """A rank's console; it prints nothing if quiet."""
    plain = Console()
    return Console(quiet=quiet, width=None if plain.is_terminal else 100)


def problems(setting: Setting, records: Sequence[Record], *, tolerance: float, least_gain: float) -> list[str]:
    """The problems of the result, if any."""
    found = []
    first = records[0]
    for record in records[1:]:
        difference = abs(record.loss_end - first.loss_end)
        if not difference <= tolerance:
            found.append(
                f"the final losses of {first.mode} ({first.loss_end:.7f}) and {record.mode} ({record.loss_end:.7f}) "
                f"differ by {difference:.1e}, more than {tolerance:.0e}"
            )
    for record in records:
        gain = record.loss_start - record.loss_end
        if not gain >= least_gain:
            found.append(
                f"the loss of {record.mode} fell by {gain:.3f} {setting.loss_unit}, from {record.loss_start:.3f} to "
                f"{record.loss_end:.3f}, less than {least_gain}; with more --steps it falls further"
            )
    return found


def slower(setting: Setting, records: Sequence[Record]) -> list[str]:
    """A problem if ``auto`` is slower than the fastest single library in three of four turns, by more than the noise.

    Turns that ran next to each other are compared; fewer than four say nothing.
    """
    auto = next((record for record in records if record.mode == "auto"), None)
    if auto is None or not alone(records) or len(turns(setting, auto)) < 4:
        return []
    best = max(alone(records), key=lambda record: speed(setting, record))
    middle, low, high = ratio(setting, auto, best)
    if high >= 1 - NOISE:
        return []
    return [
        f"auto trains {middle:.2f} ({low:.2f} to {high:.2f}) times as fast as {best.mode}: measure the machine with "
        f"mcr-tune, and if that does not help, report it"
    ]


# ---- the terminal


def show_choice(console: Console, seconds: Mapping[str, float], chosen: str) -> None:
    """Print the measurements behind the choice of backends in the mixed mode."""
    console.print("A step's communication alone, measured at the model's sizes:")
    for name, value in sorted(seconds.items(), key=lambda item: item[1]):
        console.say(f"  {value * 1e3:7.2f} ms  {name}{'  <- mixed' if name == chosen else ''}")


def show_setting(console: Console, setting: Setting) -> None:
    """Print the model and data before the training."""
    threads = f"{setting.threads} thread{'s' * (setting.threads > 1)}"
    console.print(f"\n{setting.ranks} rank{'s' * (setting.ranks > 1)} with {threads} each, ", end="")
    console.print("\n".join(setting.lines))
    console.print(
        f"The modes take turns of {setting.turn} steps; who begins changes; the first turn of each is not measured\n"
    )


def columns() -> list[str | ProgressColumn]:
    """The columns of bars that count steps."""
    return ["{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]


class Progress:
    """A live bar for each mode, while the block ``with progress.bars`` runs."""

    def __init__(self, console: Console, records: Sequence[Record], steps: int) -> None:
        self._console = console
        self._steps = steps
        columns = (
            "{task.description:>5}",
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            "loss {task.fields[loss]:.3f}",
            "{task.fields[milliseconds]} ms/step",
            TimeRemainingColumn(),
        )
        hidden = console.quiet or not console.is_terminal
        self.bars = bars(console, columns, refresh_per_second=4, disable=hidden)
        self._tasks = {
            record.mode: self.bars.add_task(record.mode, total=steps, loss=record.loss_start, milliseconds="-")
            for record in records
        }

    def advance(self, record: Record) -> None:
        """Report a finished step. Without a terminal, each tenth of the way prints a line."""
        # The steps of the first turn are not measured.
        recent = f"{median(record.step_seconds[-10:]) * 1e3:.0f}" if record.step_seconds else "-"
        self.bars.update(self._tasks[record.mode], advance=1, loss=record.curve[-1], milliseconds=recent)
        done = len(record.curve)
        if not self._console.is_terminal and done % max(1, self._steps // 10) == 0:
            self._console.print(f"{record.mode:>5} {done:4}/{self._steps} loss {record.curve[-1]:.3f} {recent} ms/step")


def show(console: Console, setting: Setting, records: Sequence[Record]) -> None:
    """Print the table of results."""
    table = Table(title="\nMedians of the measured steps; in brackets: quartiles over the turns", title_justify="left")
    table.add_column("mode")
    kinds = list(records[0].backends)
    for title in (f"{setting.unit}/s", f"times {records[0].mode}", "ms/step", *(f"in {kind}" for kind in kinds)):
        table.add_column(title, justify="right")
    table.add_column("held-out loss", justify="right")
    for record in records:
        middle, low, high = ratio(setting, record, records[0])
        table.add_row(
            record.mode,
            f"{speed(setting, record):,.0f}",
            "" if record is records[0] else f"{middle:.2f} ({low:.2f} to {high:.2f})",
            f"{median(record.step_seconds) * 1e3:.1f}",
            *(f"{record.communication_seconds(kind) * 1e3:.1f} {backend}" for kind, backend in record.backends.items()),
            f"{record.loss_end:.7f}",
        )
    console.print(table)
    console.print("Communication: time in calls and waits; what passes while the program computes is not counted.")
    shares = ", ".join(f"{share(record):.0%} on {record.mode}" for record in records)
    console.print(f"Its share of a step: {shares}.")
    if gain := gains(setting, records):
        console.say(f"{gain}.", style="bold")


def show_verdict(
    console: Console,
    setting: Setting,
    records: Sequence[Record],
    problems: Sequence[str],
    *,
    tolerance: float,
    least_gain: float,
) -> None:
    """Print whether the losses are as required."""
    losses = [record.loss_end for record in records]
    if not problems:
        gain = min(record.loss_start - record.loss_end for record in records)
        console.say(
            f"Final losses differ by {max(losses) - min(losses):.1e} (allowed {tolerance:.0e}); "
            f"each fell by {gain:.2f} {setting.loss_unit} (wanted {least_gain}).",
            style="green",
        )
    for problem in problems:
        console.say(f"failed: {problem}", style="red")


# ---- files


def save(console: Console, setting: Setting, records: Sequence[Record], path: Path, chart: Path | None) -> None:
    """Write the figures and, if requested, the chart; print their paths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    modes = [
        {
            f"{setting.unit}_per_second": speed(setting, record),
            "quartiles": spread(setting, record),
            "communication_ms": {name: record.communication_seconds(name) * 1e3 for name in record.backends},
            **asdict(record),
        }
        for record in records
    ]
    write_rows(path, {"setting": asdict(setting), "modes": modes})
    console.say(f"Figures: {path}")
    if chart is not None:
        picture.draw(setting, records, chart)
        console.say(f"Chart: {chart}")
