# SPDX-License-Identifier: Apache-2.0
"""A tuning table as a picture: the cost curves of all candidates, and the sizes where the winner changes."""

from __future__ import annotations

import math
import os
import textwrap
from typing import TYPE_CHECKING

from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.commands.pictures import CHARACTER, legend_columns, save_figure, size_axis, style, time_axis
from mcr_dl.commands.sizes import short_size_text
from mcr_dl.commands.text import colours, time_text
from mcr_dl.tables.model import Scale, Table
from mcr_dl.tables.winners import steady
from mcr_dl.tuning.show import select

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mcr_dl.tables.model import Subject

_COLUMNS = 4
_PANEL = (3.6, 2.7)  # inches
_LINE = 0.22  # inches of title and legend


def _curves(axes: Axes, scale: Scale, subject: Subject, colour: dict[str, str]) -> None:
    for curve in scale.curves_of(subject):
        samples = [sample for sample in curve.samples if sample.bytes > 0]
        sizes = [sample.bytes for sample in samples]
        shade = colour[curve.candidate]
        band = ([sample.min_us for sample in samples], [sample.p99_us for sample in samples])
        axes.fill_between(sizes, *band, color=shade, alpha=0.15, linewidth=0)
        medians = [sample.median_us for sample in samples]
        axes.plot(sizes, medians, color=shade, linewidth=1.4, marker="o", markersize=2.2)


def _crossovers(axes: Axes, scale: Scale, subject: Subject, colour: dict[str, str]) -> None:
    winner = scale.winner_of(subject)
    low, high = axes.get_xlim()
    for index, each in enumerate(steady(scale, winner).ranges[1:] if winner else ()):
        axes.axvline(each.start, color=colour[each.candidate], linestyle="--", linewidth=1)
        on_left = each.start**2 > low * high  # the middle of a logarithmic axis
        axes.annotate(
            f"{short_size_text(each.start)} → {each.candidate}",
            # Crossovers can be close to each other: neighbors get labels at different heights.
            (each.start, 0.98 - 0.09 * (index % 4)),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-3 if on_left else 3, 0),
            textcoords="offset points",
            ha="right" if on_left else "left",
            va="top",
            fontsize=7,
            color=colour[each.candidate],
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6},
        )
    axes.set_xlim(low, high)  # a crossover may lie beyond the measured sizes


def _points(axes: Axes, scale: Scale, subject: Subject, colour: dict[str, str]) -> None:
    """For an operation without data: the median of each candidate, with its min and p99."""
    for index, curve in enumerate(scale.curves_of(subject)):
        sample, shade = curve.samples[0], colour[curve.candidate]
        reach = (
            [max(0.0, sample.median_us - sample.min_us)],
            [max(0.0, sample.p99_us - sample.median_us)],
        )
        axes.errorbar(index, sample.median_us, reach, fmt="o", color=shade, markersize=4, capsize=3, linewidth=1.2)
        place = (index, sample.median_us)
        axes.annotate(time_text(sample.median_us), place, (6, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_xticks([])
    axes.margins(x=0.4, y=0.2)
    time_axis(axes)


def _panel(axes: Axes, scale: Scale, subject: Subject, colour: dict[str, str]) -> None:
    curves = scale.curves_of(subject)
    sizes = sorted({nbytes for curve in curves for nbytes in curve.medians if nbytes > 0})
    dtypes = ", ".join(dict.fromkeys(curve.dtype for curve in curves))
    axes.set_title(str(subject) if subject.dtype_class == "any" else f"{subject} ({dtypes})", fontsize=9)
    if not sizes:
        _points(axes, scale, subject, colour)
        return
    size_axis(axes, sizes)
    time_axis(axes)
    _curves(axes, scale, subject, colour)
    _crossovers(axes, scale, subject, colour)


def _legend(figure: Figure, colour: dict[str, str], below: float) -> None:
    """Name the candidates, ``below`` inches from the top."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=shade, marker="o", markersize=3, label=name) for name, shade in colour.items()]
    width, height = figure.get_size_inches()
    place, columns = (0.5, 1 - below / height), legend_columns(colour, width)
    figure.legend(handles=lines, loc="upper center", bbox_to_anchor=place, ncols=columns, frameon=False)


def figure_of(table: Table, operations: list[str] | None = None, scale: Scale | None = None) -> Figure:
    """The picture as a matplotlib figure: one panel for each subject of the scale."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    scale = table.scale() if scale is None else scale
    subjects = [each for each in select(table, operations) if scale.curves_of(each)]
    if operations is not None and not subjects:
        known = ", ".join(dict.fromkeys(each.operation for each in scale.curves))
        got = ", ".join(map(repr, operations))
        raise InvalidArgumentError(f"operation: expected some of those of {scale.name} ({known}), got {got}")
    columns = min(_COLUMNS, max(1, len(subjects)))
    lines = math.ceil(len(subjects) / columns) or 1
    colour = colours(table.candidates)
    width = max(5.0, _PANEL[0] * columns)
    title = f"{scale.name} on {table.host.cpu}, {table.host.cores} cores: median time by bytes, from min to p99"
    title = textwrap.fill(title, int(width / CHARACTER))
    below = 0.12 + _LINE * len(title.splitlines())
    head = below + _LINE * math.ceil(len(colour) / legend_columns(colour, width)) + 0.1
    height = _PANEL[1] * lines + head + 0.2
    with rc_context(style(8.5)):
        figure = Figure(figsize=(width, height), dpi=130)
        figure.suptitle(title, y=1 - 0.1 / height, va="top").set_in_layout(False)  # its place is in the rectangle below
        axes = [figure.add_subplot(lines, columns, index + 1) for index in range(len(subjects))]
        for each, subject in zip(axes, subjects, strict=True):
            _panel(each, scale, subject, colour)
        _legend(figure, colour, below)
        figure.tight_layout(rect=(0, 0, 1, 1 - head / height))
    return figure


def plot(
    table: Table,
    path: str | os.PathLike[str],
    operations: list[str] | None = None,
    scale: Scale | None = None,
) -> None:
    """Draw the cost curves of one scale (None: the largest) into a picture file; its suffix determines the format.

    Axes are bytes and time, both logarithmic; a dashed line marks the size from which another candidate wins.
    InvalidArgumentError if the table has no such operation, or the scale has none of them; OSError if the file cannot
    be written.
    """
    save_figure(figure_of(table, operations, scale), path)
