# SPDX-License-Identifier: Apache-2.0
"""Plans as tables and timelines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from mcr_dl.commands.console import Console
from mcr_dl.commands.pictures import INK, save_figure, style
from mcr_dl.commands.text import colours, time_text
from mcr_dl.planner.plans import Plan, Planner

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COMPUTE = "#c9ced6"
_LEAST_LABEL = 0.025  # relative to the width: narrower parts have no room for a text


def table(plans: Sequence[Plan]) -> Table:
    """A row for each plan: the time of an iteration, and how much faster it is than the first one."""
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    found.add_column("plan")
    for name in ("iteration", "speedup", "motifs"):
        found.add_column(name, justify="right")
    for plan in plans:
        speedup = plans[0].iteration / plan.iteration if plan.iteration else 1.0
        found.add_row(plan.name, time_text(plan.iteration / 1000), f"{speedup:.2f}", str(len(plan.order)))
    return found


def changes(planner: Planner, before: Plan, after: Plan) -> Table:
    """The options of the calls in both plans, where they differ."""
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("call", before.name, after.name):
        found.add_column(name)
    for index, node in enumerate(planner.graph.nodes):
        one, other = before.chosen[index], after.chosen[index]
        if node.time is None and one != other:
            found.add_row(node.key, planner.options[index][one].name, planner.options[index][other].name)
    return found


def show(planner: Planner, plans: Sequence[Plan], console: Console | None = None) -> None:
    """Print the plans, and what the last one changes in the first one."""
    console = console or Console()
    calls = len(planner.graph.calls)
    console.say(f"{calls} calls on {', '.join(channel.name for channel in planner.graph.channels)}", style="italic")
    console.print_whole(table(plans), 60)
    changed = changes(planner, plans[0], plans[-1])
    if changed.row_count:
        console.print_whole(changed, 80)
    else:
        console.say("The calls stay as they are.")


def _draw(axes: Axes, planner: Planner, plan: Plan, colour: dict[str, str], iterations: int) -> None:
    lanes = {name: index for index, name in enumerate(reversed(planner.channels))}
    play = planner.play(plan, iterations)
    last = max((end for iteration in play for node in iteration for _, _, end in node), default=0) or 1
    for iteration in range(iterations):
        for index, node in enumerate(planner.graph.nodes):
            pieces = () if node.time is not None else planner.options[index][plan.chosen[index]].pieces
            for motif, (_, start, end) in enumerate(play[iteration][index]):
                lane = pieces[motif].channel if pieces else node.lane
                shade = colour[node.key] if pieces else _COMPUTE
                bar: dict[str, Any] = {"height": 0.7, "color": shade, "edgecolor": "white", "linewidth": 0.8}
                axes.barh(lanes[lane], end - start, left=start, alpha=0.45 if iteration % 2 else 1.0, **bar)
                if (end - start) / last >= _LEAST_LABEL:
                    ink = "white" if pieces and iteration % 2 == 0 else INK
                    middle = ((start + end) / 2, lanes[lane])
                    axes.text(*middle, node.key, ha="center", va="center", fontsize=8, color=ink)
    axes.set_ylim(-0.5, len(lanes) - 0.5)
    axes.set_yticks(list(lanes.values()), list(lanes))


def figure_of(
    planner: Planner, plans: Sequence[Plan], iterations: int = 2, unit: tuple[int, str] | None = None
) -> Figure:
    """The timelines of plans below each other as a matplotlib figure; pale: every second iteration.

    ``unit``: ns and the name of the time axis's unit.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    keys = [node.key for node in planner.graph.calls]
    colour = dict(zip(keys, colours(keys).values(), strict=True)) if keys else {}
    with rc_context(style(9)):
        height = 0.7 + len(plans) * (0.75 + 0.42 * len(planner.channels))
        figure = Figure(figsize=(9.5, height), dpi=130, layout="constrained")
        grid: Any = figure.subplots(len(plans), 1, sharex=True, squeeze=False)
        scale, name = unit or (1_000_000, "ms")
        for axes, plan in zip(grid[:, 0], plans, strict=True):
            _draw(axes, planner, plan, colour, iterations)
            time = time_text(plan.iteration / 1000) if unit is None else f"{plan.iteration / scale:g} {name}"
            axes.set_title(f"{plan.name}: {time} per iteration", loc="left", fontsize=9.5)
        grid[-1, 0].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / scale:g}"))
        grid[-1, 0].set_xlabel(name, color=INK)
    return figure


def plot(planner: Planner, plans: Sequence[Plan], path: str | os.PathLike[str]) -> None:
    """Draw the timelines into a picture file; its suffix determines the format. Needs matplotlib."""
    save_figure(figure_of(planner, plans), path)
