# SPDX-License-Identifier: Apache-2.0
"""The breakdown as a picture: stacked bars of computing and of each operation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mcr_dl._pictures import INK, style
from mcr_dl.trace import _breakdown as breakdown
from mcr_dl.trace._breakdown import WHOLE, Breakdown
from mcr_dl.trace._files import Trace
from mcr_dl.tuning._text import colours, time_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COMPUTE = "#c9ced6"
_LEAST_LABEL = 0.04  # of the tallest bar; flatter parts have no room for a text


def bars(traces: Sequence[Trace]) -> list[Breakdown]:
    """One bar for each region, the mean over its ranks; without regions one for each rank."""
    tables = breakdown.tables(traces)
    if list(tables) != [WHOLE]:
        return [breakdown.mean(parts) for parts in tables.values()]
    named = zip(traces, tables[WHOLE], strict=True)
    return [Breakdown(f"rank {trace.rank}", part.total, part.exposed, part.overlapped) for trace, part in named]


def _stack(axes: Axes, parts: Sequence[Breakdown], colour: dict[str, str]) -> None:
    tallest = max(part.total for part in parts) or 1.0
    for place, part in enumerate(parts):
        height = 0.0
        for name, seconds in {"compute": part.compute, **part.exposed}.items():
            shade = colour[name]
            axes.bar(place, seconds, bottom=height, width=0.62, color=shade, edgecolor="white", linewidth=0.8)
            if seconds / tallest >= _LEAST_LABEL:
                text = f"{time_text(seconds * 1e6)}  {seconds / part.total:.0%}"
                ink = INK if name == "compute" else "white"
                axes.text(place, height + seconds / 2, text, ha="center", va="center", fontsize=8.5, color=ink)
            height += seconds
        axes.text(place, height + 0.012 * tallest, time_text(height * 1e6), ha="center", va="bottom", weight="bold")
        if part.overlapped > 0:
            hidden = f"beside compute:\n{time_text(part.overlapped * 1e6)}"
            axes.text(place, height + 0.07 * tallest, hidden, ha="center", va="bottom", fontsize=7.5)
    axes.set_ylim(0, tallest * 1.2)


def figure_of(traces: Sequence[Trace]) -> Figure:
    """The picture as a matplotlib figure."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    parts = bars(traces)
    names = sorted({name for part in parts for name in part.exposed})
    colour = {"compute": _COMPUTE, **colours(names)}
    with rc_context(style(10)):
        figure = Figure(figsize=(max(5.2, 1.7 + 1.5 * len(parts)), 4.6), dpi=130, layout="constrained")
        axes = figure.add_subplot()
        _stack(axes, parts, colour)
        axes.set_xticks(range(len(parts)), [part.name for part in parts])
        axes.set_ylabel("seconds")
        ranks = len(traces)
        what = "of each rank" if parts[0].name.startswith("rank ") else f"mean over {ranks} ranks"
        axes.set_title(f"Compute and exposed communication, {what}", loc="left", fontsize=11, weight="bold")
        patches = [Patch(color=colour[name], label=name) for name in ("compute", *names)]
        figure.legend(handles=patches[::-1], loc="outside right upper", frameon=False)
    return figure


def plot(traces: Sequence[Trace], path: str | os.PathLike[str]) -> None:
    """Draw the breakdown into a picture file; its suffix says in which format. Needs matplotlib."""
    figure_of(traces).savefig(path)
