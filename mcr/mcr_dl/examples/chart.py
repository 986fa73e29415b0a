# SPDX-License-Identifier: Apache-2.0
"""The chart of the training's results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcr_dl.commands.pictures import INK, save_figure, style
from mcr_dl.examples.record import Record, Setting, gains, share, speed, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {"gloo": "#d98032", "mpi": "#3572b0", "shm": "#b5485d", "mixed": "#3a8f5c", "auto": "#8a5aa8"}
SHADES = (1.0, 0.55)  # by kind of operation


def draw(setting: Setting, records: Sequence[Record], path: Path) -> None:
    """Draw speed, communication and losses of all modes into a PNG file."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    titles = {"axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left"}
    with rc_context(style(10) | titles):
        figure = Figure(figsize=(12, 4.2))
        axes: Any = figure.subplots(1, 3, width_ratios=(1, 1.15, 1.25))
        left, middle, right = axes
        _draw_speed(left, setting, records)
        _draw_communication(middle, records)
        _draw_loss(right, setting, records)
        lines = filter(None, (setting.title, gains(setting, records)))
        figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=12)
        figure.tight_layout(rect=(0, 0, 1, 0.99))
        path.parent.mkdir(parents=True, exist_ok=True)
        save_figure(figure, path, dpi=150)


def _color(mode: str, index: int) -> str:
    """The mode's color; a mode that is a codec gets one of matplotlib's."""
    return COLORS.get(mode, f"C{index}")


def _draw_speed(axes: Axes, setting: Setting, records: Sequence[Record]) -> None:
    values = [speed(setting, record) for record in records]
    quartiles = [spread(setting, record) for record in records]
    below = [max(0.0, value - low) for value, (low, _) in zip(values, quartiles, strict=True)]
    above = [max(0.0, high - value) for value, (_, high) in zip(values, quartiles, strict=True)]
    names = [record.mode for record in records]
    axes.bar(names, values, width=0.6, color=[_color(name, index) for index, name in enumerate(names)])
    axes.errorbar(names, values, yerr=(below, above), fmt="none", ecolor=INK, capsize=4, linewidth=1)
    for index, value in enumerate(values):
        axes.annotate(f"{value:,.0f}", (index, value + above[index]), (0, 4), textcoords="offset points", ha="center")
    axes.set_ylim(0, max(value + up for value, up in zip(values, above, strict=True)) * 1.12)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel(f"{setting.unit} per second")
    axes.set_title("Speed: median, quartiles")


def _with_backends(record: Record) -> str:
    """The mode, and below it the backends of its operations if these are others."""
    backends = list(record.backends.values())
    return record.mode if set(backends) == {record.mode} else record.mode + "\n" + ", ".join(backends)


def _draw_communication(axes: Axes, records: Sequence[Record]) -> None:
    kinds = list(records[0].backends)
    times = [{kind: record.communication_seconds(kind) * 1e3 for kind in kinds} for record in records]
    highest = max(sum(parts.values()) for parts in times)
    for index, (record, parts) in enumerate(zip(records, times, strict=True)):
        below = 0.0
        for kind, shade in zip(kinds, SHADES, strict=False):
            value, backend = parts[kind], record.backends[kind]
            colour = COLORS.get(backend, COLORS["mixed"])  # two backends get the color of mixing
            axes.bar(index, value, bottom=below, width=0.78, color=colour, alpha=shade)
            if value > 0.06 * highest:  # otherwise the text would not fit
                ink = "white" if shade == 1 else INK
                text = f"{value:.1f}"
                axes.annotate(text, (index, below + value / 2), ha="center", va="center", fontsize=8.5, color=ink)
            below += value
        axes.annotate(f"{below:.1f}", (index, below), (0, 4), textcoords="offset points", ha="center")
    axes.set_xticks(range(len(records)), [_with_backends(record) for record in records])
    for kind, shade in zip(kinds, SHADES, strict=False):
        axes.bar(0, 0, color=INK, alpha=shade, label=kind)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    axes.set_ylim(0, highest * 1.12)
    axes.set_ylabel("ms per step in calls and waits, median")
    axes.set_title(f"Communication: {share(records[0]):.0%} of a step on {records[0].mode}")


def _draw_loss(axes: Axes, setting: Setting, records: Sequence[Record]) -> None:
    styles = (("-", 3.5), ("--", 2.0), (":", 2.0), ("-.", 1.0))
    for index, (record, (line, width)) in enumerate(zip(records, cycle(styles), strict=False)):
        steps = range(1, len(record.curve) + 1)
        axes.plot(steps, record.curve, line, color=_color(record.mode, index), linewidth=width, label=record.mode)
    axes.set_xlabel("training step")
    axes.set_ylabel(f"training loss, {setting.loss_unit}")
    axes.legend(frameon=False)
    same = all(record.curve == records[0].curve for record in records)
    axes.set_title("Loss: equal in all modes" if same else "Loss")
