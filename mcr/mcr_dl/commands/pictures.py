# SPDX-License-Identifier: Apache-2.0
"""The style of the pictures of all commands, and their files."""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from mcr_dl.base.documents import writing
from mcr_dl.commands.sizes import size_text
from mcr_dl.commands.text import time_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#333333"
CHARACTER = 0.085  # inches of one in a title or legend of the smallest font
_TICKS = 6  # steps between those of an axis, at most


def style(font_size: float) -> dict[Any, Any]:  # matplotlib's type names each of its settings
    """Settings for ``matplotlib.rc_context``: ink instead of black, axes without a frame."""
    return {
        "font.size": font_size,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "text.color": INK,
        "text.parse_math": False,  # names of users and libraries may have dollar signs
        "xtick.color": INK,
        "ytick.color": INK,
    }


def size_axis(axes: Axes, sizes: Collection[int]) -> None:
    """Make the horizontal axis one of these sizes in bytes, logarithmic; a message of 0 bytes is drawn at 1."""
    largest = max(sizes)
    low, high = (math.log2(max(1, nbytes)) for nbytes in (min(sizes), largest))
    step = max(1, math.ceil((high - low) / _TICKS))
    ticks = [2**power for power in range(math.floor(low), math.ceil(high) + 1, step)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [size_text(tick) if largest else "0" for tick in ticks])
    axes.xaxis.minorticks_off()


def time_axis(axes: Axes) -> None:
    """Make the vertical axis one of times in µs, logarithmic, whose marks have units."""

    def mark(value: float, _: object) -> str:
        return time_text(value).replace(".00", "").replace(".0 ", " ")

    def minor_mark(value: float, place: object) -> str:
        low, high = axes.get_ylim()
        return mark(value, place) if high < 10 * low else ""  # there may be no other marks

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(mark)
    axes.yaxis.set_minor_formatter(minor_mark)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)


def legend_columns(names: Collection[str], width: float) -> int:
    """How many of these names fit in one line of a legend of this width in inches."""
    longest = max(map(len, names), default=0)
    return max(1, min(len(names), int(width / (0.7 + CHARACTER * longest))))


def save_figure(figure: Figure, path: str | os.PathLike[str], **settings: Any) -> None:
    """Write a figure to a file, whose suffix determines the format, with ``settings`` of matplotlib's ``savefig``.

    Raises OSError, which names the file, if it cannot be written.
    """
    with writing(path):
        figure.savefig(path, **settings)
