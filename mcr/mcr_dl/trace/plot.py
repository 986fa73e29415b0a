# SPDX-License-Identifier: Apache-2.0
"""The breakdown as a picture: stacked bars of computation and of each operation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.commands.pictures import INK, save_figure, style
from mcr_dl.commands.text import colours, time_text
from mcr_dl.trace import _breakdown as breakdown
from mcr_dl.trace._breakdown import WHOLE, Breakdown
from mcr_dl.trace._files import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COMPUTE = "#c9ced6"
_LEAST_LABEL = 0.04  # relative to the tallest bar; lower parts have no room for a text
_MOST_BARS = 300  # matplotlib draws no wider pictures
_HEAD, _LEGEND_LINE = 0.75, 0.21  # inches: above the bars; per name


def bars(traces: Sequence[Trace]) -> list[Breakdown]:
    """One bar for each region, the mean over its ranks; without regions one bar for each rank."""
    tables = breakdown.tables(traces)
    if breakdown.common_regions(traces):
        return [breakdown.mean(parts) for parts in tables.values()]
    named = zip(traces, tables[WHOLE], strict=True)
    return [Breakdown(f"rank {trace.rank}", part.total, part.exposed, part.overlapped) for trace, part in named]


def _light(colour: str) -> bool:
    """Whether dark text reads better on the color."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue > 150


def _stack(axes: Axes, parts: Sequence[Breakdown], colour: dict[str, str]) -> None:
    tallest = max(part.total for part in parts) or 1.0
    for index, part in enumerate(parts):
        height = 0.0
        for name, seconds in {"compute": part.compute, **part.exposed}.items():
            shade = colour[name]
            axes.bar(index, seconds, bottom=height, width=0.62, color=shade, edgecolor="white", linewidth=0.8)
            if seconds / tallest >= _LEAST_LABEL:
                text = f"{time_text(seconds * 1e6)}  {seconds / part.total:.0%}"
                ink = INK if _light(shade) else "white"
                axes.text(index, height + seconds / 2, text, ha="center", va="center", fontsize=8.5, color=ink)
            height += seconds
        axes.text(index, height + 0.012 * tallest, time_text(height * 1e6), ha="center", va="bottom", weight="bold")
        if part.overlapped > 0:
            hidden = f"overlapped:\n{time_text(part.overlapped * 1e6)}"
            axes.text(index, height + 0.07 * tallest, hidden, ha="center", va="bottom", fontsize=7.5)
    axes.set_ylim(0, tallest * 1.2)


def figure_of(traces: Sequence[Trace]) -> Figure:
    """The picture as a matplotlib figure."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    parts = bars(traces)
    if len(parts) > _MOST_BARS:
        message = (
            f"plot: expected at most {_MOST_BARS} names of regions or ranks, a bar for each, got {len(parts)}: "
            "mcr-trace summary prints tables of them"
        )
        raise InvalidArgumentError(message)
    names = sorted({name for part in parts for name in part.exposed})
    colour = {"compute": _COMPUTE, **colours(names)}
    names = ["compute", *names]
    height = max(4.6, _HEAD + _LEGEND_LINE * (len(names) + 1))
    with rc_context(style(10)):
        figure = Figure(figsize=(max(6.4, 3.2 + 1.5 * len(parts)), height), dpi=130, layout="constrained")
        axes = figure.add_subplot()
        _stack(axes, parts, colour)
        axes.set_xticks(range(len(parts)), [part.name for part in parts])
        axes.set_ylabel("seconds")
        what = f"mean over {len(traces)} ranks" if breakdown.common_regions(traces) else "each rank"
        figure.suptitle(f"Compute and exposed communication: {what}", x=0.02, ha="left", fontsize=11, weight="bold")
        patches = [Patch(color=colour[name], label=name) for name in names]
        axes.legend(handles=patches[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return figure


def plot(traces: Sequence[Trace], path: str | os.PathLike[str]) -> None:
    """Draw the breakdown into a picture file; its suffix determines the format. Needs matplotlib."""
    save_figure(figure_of(traces), path)
