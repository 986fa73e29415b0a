# SPDX-License-Identifier: Apache-2.0
"""A plan as a picture: what each dimension does at each time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mcr_dl.commands.pictures import INK, save_figure, style
from mcr_dl.commands.text import colours, time_text
from mcr_dl.networks.network import PS_PER_US
from mcr_dl.networks.plans import Plan, Step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _ROW, _SPACE = 8.0, 0.42, 0.75  # inches
_NARROW = 0.028  # of the width: a narrower box has no label
_MOST_CHUNKS = 8  # with a colour of their own


def _name(plan: Plan, step: Step) -> str:
    """``1`` for the reduce_scatter, exchange or all_gather of chunk 1; in an all_reduce the gathers are ``1*``."""
    gathers = plan.operation == "all_reduce" and step.index >= len(plan.orders[step.chunk])
    return f"{step.chunk + 1}{'*' if gathers else ''}"


def _rows(plan: Plan) -> list[tuple[Step, int]]:
    """Steps with their row: of its dimension, one for each step in flight."""
    free = {k: [0] * plan.in_flight for k in range(1, len(plan.orders[0]) + 1)}
    placed = []
    for step in plan.steps:
        row = next(index for index, end in enumerate(free[step.dimension]) if end <= step.start)
        free[step.dimension][row] = step.end
        placed.append((step, row))
    return placed


def draw(axes: Axes, plan: Plan, end: int, title: str) -> None:
    """Draw a plan into axes that reach to the time ``end``, in picoseconds."""
    placed = _rows(plan)
    used = max(row for _, row in placed) + 1
    dimensions = len(plan.orders[0])
    shade = list(colours(f"{index:02}" for index in range(_MOST_CHUNKS)).values())
    for step, row in placed:
        height = 1 / used
        bottom = dimensions - step.dimension + (used - 1 - row) * height
        left, width = step.start / PS_PER_US, (step.end - step.start) / PS_PER_US
        name = _name(plan, step)
        axes.barh(
            bottom + height / 2,
            width,
            height * 0.86,
            left=left,
            color=shade[step.chunk % _MOST_CHUNKS],
            alpha=0.45 if name.endswith("*") else 0.85,
            edgecolor="white",
            linewidth=0.5,
        )
        if step.end - step.start >= _NARROW * end and plan.chunks <= 4 * _MOST_CHUNKS:
            axes.text(left + width / 2, bottom + height / 2, name, ha="center", va="center", fontsize=7)
    axes.axvline(plan.makespan / PS_PER_US, color=INK, linewidth=1, linestyle=":")
    axes.set_yticks([dimensions - k + 0.5 for k in range(1, dimensions + 1)])
    axes.set_yticklabels([f"dimension {k}" for k in range(1, dimensions + 1)])
    axes.set_ylim(0, dimensions)
    axes.set_xlim(0, 1.02 * end / PS_PER_US)
    facts = f"{time_text(plan.makespan_us)}, {100 * plan.utilization:.1f} % of the bandwidth"
    axes.set_title(f"{title}: {facts}", loc="left", fontsize=9)


def figure(plans: Sequence[tuple[str, Plan]]) -> Figure:
    """One timeline below the other, with a common scale."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(style(8)):
        rows = [_ROW * len(plan.orders[0]) * (2 if plan.in_flight > 1 else 1) + _SPACE for _, plan in plans]
        made = Figure(figsize=(_WIDTH, sum(rows)), layout="constrained")
        panels = made.subplots(len(plans), 1, squeeze=False, gridspec_kw={"height_ratios": rows})
        end = max(plan.makespan for _, plan in plans)
        for axes, (title, plan) in zip(panels[:, 0], plans, strict=True):
            draw(axes, plan, end, title)
        panels[-1, 0].set_xlabel("µs")
    return made


def save(plans: Sequence[tuple[str, Plan]], path: str | Path) -> None:
    """Write the timelines of named plans to a picture file."""
    import matplotlib

    with matplotlib.rc_context(style(8)):
        save_figure(figure(plans), path, dpi=150)
