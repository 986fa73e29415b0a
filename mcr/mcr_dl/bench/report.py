# SPDX-License-Identifier: Apache-2.0
"""Results as tables and footers for people, JSON for programs, and curves."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from itertools import groupby
from typing import Any

import torch
from rich import box
from rich.table import Table
from rich.text import Text

from mcr_dl import _C
from mcr_dl.base.operations import bandwidths, operation_of
from mcr_dl.bench._sweep import Row, Settings
from mcr_dl.bench.mix import MixResult
from mcr_dl.commands.console import Console
from mcr_dl.commands.pictures import legend_columns, save_figure, size_axis, style, time_axis
from mcr_dl.commands.sizes import size_text
from mcr_dl.commands.text import colours
from mcr_dl.measure import devices
from mcr_dl.measure.timing import Statistics
from mcr_dl.tables.host import host

_WIDTH = 120


def _number(value: float) -> str:
    """Three or four significant digits without an exponent."""
    if value <= 0:
        return "0"
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value < 1000 else f"{value:.0f}"


def _columns(title: str, names: Sequence[str], texts: int) -> Table:
    """A plain table whose first `texts` columns hold text and whose other columns hold numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index < texts else "right", no_wrap=True)
    return table


def _title(settings: Settings, operation: str, ranks: int) -> str:
    how = ["asynchronous" if settings.asynchronous else "blocking", settings.device]
    if devices.ranks_per_device(settings.device) > 1:
        how.append(f"{devices.ranks_per_device(settings.device)} ranks on a device")
    if settings.in_place:
        how.append("in place")
    return f"{operation}: {ranks} rank{'s' if ranks > 1 else ''}, {', '.join(how)}"


def _cells(row: Row, ranks: int, fastest: bool) -> list[str | Text]:
    """The candidate's part of a line."""
    if row.statistics is None:
        return [row.candidate, *["-"] * 6]
    times = row.statistics
    median = _number(times.median_us)
    rates = bandwidths(row.case.operation, row.nbytes, times.median_us, ranks)
    return [
        row.candidate,
        _number(times.min_us),
        Text(f"{median}*", style="bold") if fastest else f"{median} ",
        _number(times.p99_us),
        *map(_number, rates),
        "-" if row.wrong is None else str(row.wrong),
    ]


def _fastest(rows: Iterable[Row]) -> Row | None:
    timed = [row for row in rows if row.statistics is not None and not row.wrong]
    return min(timed, key=lambda row: row.statistics.median_us if row.statistics else math.inf, default=None)


def operation_table(rows: Sequence[Row], settings: Settings, ranks: int) -> Table:
    """A line for each size and candidate of one operation; a star (and bold type) marks the fastest right median."""
    operation = operation_of(rows[0].case.operation)
    names = ("size", "count", "dtype", "redop", "root", "backend", "min µs", "median µs ", "p99 µs")
    table = _columns(_title(settings, operation.name, ranks), (*names, "algbw GB/s", "busbw GB/s", "wrong"), texts=0)
    for column in (2, 3, 5):
        table.columns[column].justify = "left"
    for nbytes, group in groupby(rows, key=lambda row: row.nbytes):
        at_size = list(group)
        fastest = _fastest(at_size) if len(at_size) > 1 else None
        head = [
            size_text(nbytes),
            str(at_size[0].count),
            settings.dtype,
            settings.red if operation.reduces else "-",
            str(settings.root) if operation.rooted else "-",
        ]
        for row in at_size:
            table.add_row(*head, *_cells(row, ranks, row is fastest))
            head = [""] * len(head)
    return table


def print_operation(rows: Sequence[Row], settings: Settings, ranks: int) -> None:
    """Print the table of one operation."""
    Console().print_whole(operation_table(rows, settings, ranks), _WIDTH)


def footer(rows: Sequence[Row], settings: Settings) -> list[str]:
    """Notes on the whole run: wrong values, points that are still uncertain, and points that could not be measured."""
    timed = [row for row in rows if row.statistics is not None]
    wrong = sum(row.wrong or 0 for row in timed)
    lines = [f"Wrong values: {wrong}" if settings.check else "Wrong values: not checked"]
    uncertain = sum(1 for row in timed if row.statistics is not None and not row.statistics.converged)
    if uncertain:
        lines.append(
            f"Not converged: {uncertain} of {len(timed)} medians are less certain than "
            f"±{settings.confidence:.1%} after {settings.budget_seconds:g} s per size (--budget)"
        )
    return lines + [f"Not measured: {reason}" for reason in dict.fromkeys(row.reason for row in rows if row.reason)]


def mix_table(result: MixResult, settings: Settings, ranks: int) -> Table:
    """Each part alone, all in sequence, all at once."""
    names = ("what", "min µs", "median µs", "p99 µs")
    table = _columns(f"mix: {ranks} ranks, asynchronous, {settings.dtype}, {settings.device}", names, texts=1)

    def line(what: str, times: Statistics) -> None:
        table.add_row(what, _number(times.min_us), _number(times.median_us), _number(times.p99_us))

    for part, times in zip(result.parts, result.alone, strict=True):
        line(f"{part}, alone", times)
    line("one after the other", result.in_turn)
    line("together", result.together)
    return table


def print_mix(result: MixResult, settings: Settings, ranks: int) -> None:
    """Print the table of a mix and the gain of overlapping."""
    Console().print_whole(mix_table(result, settings, ranks), _WIDTH)
    times = (*result.alone, result.in_turn, result.together)
    print(f"Overlap gain: {result.gain:.2f} (one after the other / together)")
    print(f"Wrong values: {result.wrong}" if settings.check else "Wrong values: not checked")
    uncertain = sum(1 for each in times if not each.converged)
    if uncertain:
        print(f"Not converged: {uncertain} of {len(times)} medians (--budget)")


def _row_json(row: Row, ranks: int) -> dict[str, Any]:
    case = {name: value for name, value in asdict(row.case).items() if name != "nbytes"}
    result = {**case, "nbytes": row.nbytes, "count": row.count, "candidate": row.candidate}
    if row.statistics is None:
        return {**result, "unsupported": row.reason}
    algbw, busbw = bandwidths(row.case.operation, row.nbytes, row.statistics.median_us, ranks)
    return {**result, **asdict(row.statistics), "algbw_gbs": algbw, "busbw_gbs": busbw, "wrong": row.wrong}


def document(rows: Sequence[Row], settings: Settings, group: _C.Group, mix: MixResult | None = None) -> dict[str, Any]:
    """Everything about a run, in JSON's types. Times are in µs, bandwidths in 10^9 bytes per second."""
    status = _C.backend_status()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "settings": asdict(settings),
        "ranks": group.size(),
        "versions": {
            "mcr_dl": _C.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "backends": {name: status.get(name, "") for name in group.backends},
        },
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "processor": host().cpu,
            "cores": os.cpu_count(),
            "accelerators": list(host().accelerators),
        },
        "rows": [_row_json(row, group.size()) for row in rows],
        "mix": None if mix is None else {**asdict(mix), "gain": mix.gain},
    }


def _draw(axes: Any, rows: Sequence[Row], colour: dict[str, str]) -> None:
    """One operation: a line of medians for each candidate. A message of 0 bytes is drawn at 1."""
    for name, shade in colour.items():
        mine = [(row.nbytes, row.statistics) for row in rows if row.candidate == name and row.statistics is not None]
        sizes = [max(1, nbytes) for nbytes, _ in mine]
        axes.plot(sizes, [times.median_us for _, times in mine], "o-", color=shade, ms=3, lw=1.4, label=name)
    size_axis(axes, {row.nbytes for row in rows})
    time_axis(axes)
    axes.set_title(rows[0].case.operation)
    axes.set_xlabel("size, bytes")
    axes.set_ylabel("median")


def write_plot(path: str, rows: Sequence[Row], title: str) -> None:
    """Median time over size for each candidate, one panel per operation, as a picture. Needs matplotlib."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    operations = list(dict.fromkeys(row.case.operation for row in rows))
    names = list(dict.fromkeys(row.candidate for row in rows))
    colour = colours(names)
    columns = min(3, len(operations))
    lines = math.ceil(len(operations) / columns)
    with rc_context(style(8.5)):
        figure = Figure(figsize=(max(6.0, 4.6 * columns), 3.4 * lines + 0.6), layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False).flatten()
        for panel, operation in zip(panels, operations, strict=False):
            _draw(panel, [row for row in rows if row.case.operation == operation], colour)
        for panel in panels[len(operations) :]:
            panel.set_visible(False)
        handles, labels = panels[0].get_legend_handles_labels()
        fitting = legend_columns(names, figure.get_figwidth())
        figure.legend(handles, labels, loc="outside lower left", ncols=fitting, frameon=False)
        figure.suptitle(title, x=0.02, ha="left", fontsize="medium")
        save_figure(figure, path, dpi=130)
