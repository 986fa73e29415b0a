# SPDX-License-Identifier: Apache-2.0
"""The pictures of the lab's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.container import BarContainer
from matplotlib.patches import Rectangle

import script
from lab import figures
from markdown_text import size_text
from mcr_dl.commands.text import colours

_LARGEST = 16 << 20
_ROW_COLOURS = {
    "gloo": "#56b4e9",
    "mpi": "#0072b2",
    "mixed": "#d55e00",
    "split": "#e69f00",
    "auto": "#009e73",
    "torch": "#999999",
    "mpi4py": "#666666",
}


def _bars(axes: Any, documents: Mapping[str, Mapping[str, float]], errors: Mapping[str, Any]) -> None:
    """Groups of bars: a group for each key, a bar for each row, hatched with fusion, dotted with every NIC."""
    rows = list(dict.fromkeys(row for found in documents.values() for row in found))
    width = 0.85 / max(1, len(rows))
    for index, row in enumerate(rows):
        base = row.split(",")[0].removesuffix(figures.FUSE)
        style = {"color": _ROW_COLOURS.get(base, "#cc79a7"), "label": row, "edgecolor": "white", "linewidth": 0.3}
        style["hatch"] = ("////" if figures.FUSE in row else "") + ("...." if "," in row else "")
        places = [place for place, found in enumerate(documents.values()) if row in found]
        keys = [key for key, found in documents.items() if row in found]
        heights = [documents[key][row] for key in keys]
        spread = [errors[key].get(row, (height, height)) for key, height in zip(keys, heights, strict=True)]
        low = [max(0.0, height - pair[0]) for height, pair in zip(heights, spread, strict=True)]
        high = [max(0.0, pair[1] - height) for height, pair in zip(heights, spread, strict=True)]
        x = [place - 0.425 + (index + 0.5) * width for place in places]
        axes.bar(x, heights, width, yerr=(low, high), error_kw={"elinewidth": 0.7, "ecolor": "0.3"}, **style)
    axes.set_xticks(range(len(documents)), list(documents))
    script.plain(axes)


def workload(name: str, measured: Mapping[str, Any], rails: Mapping[str, Any], cores: int, path: Path) -> None:
    """Throughput by row and cluster, and the scaling efficiency of each row."""
    figure, (left, right) = script.pyplot().subplots(
        1, 2, figsize=(13, 4.5), layout="constrained", gridspec_kw={"width_ratios": [2.2, 1]}
    )
    clusters = [shape for shape in measured if shape != "1x1"]
    found = {shape: dict(figures.throughputs(measured[shape])) for shape in clusters}
    errors = {shape: dict(figures.quartiles(measured[shape])) for shape in clusters}
    for shape in clusters:
        if shape in rails:
            found[shape] |= {f"{row}, every NIC": value for row, value in figures.throughputs(rails[shape]).items()}
            errors[shape] |= {f"{row}, every NIC": value for row, value in figures.quartiles(rails[shape]).items()}
    _bars(left, found, errors)
    unit = figures.unit(next(iter(measured.values())))
    left.set(ylabel=f"{unit} per second", xlabel="hosts x ranks on each")
    left.set_title("(a) throughput; lines: quartiles", fontsize=10, loc="left")
    left.margins(y=0.3)
    left.legend(frameon=False, fontsize=7, ncols=5, loc="upper left")
    order = clusters if "1x1" in measured else []
    efficiencies = {shape: figures.efficiencies(measured[shape], measured["1x1"], cores) for shape in order}
    for row in (*figures.SINGLE, *figures.MIXED, *figures.PEERS):
        points = [(index, efficiencies[shape][row]) for index, shape in enumerate(order) if row in efficiencies[shape]]
        if points:
            x, y = zip(*points, strict=True)
            right.plot(x, y, "o-", color=_ROW_COLOURS[row], label=row, linewidth=1.4)
    right.set_xticks(range(len(order)), order)
    right.set(ylim=(0, 1.1), xlabel="hosts x ranks on each", ylabel="throughput / (cores x one rank alone)")
    right.set_title("(b) scaling efficiency", fontsize=10, loc="left")
    if order:
        right.legend(frameon=False, fontsize=7)
    script.plain(right)
    figure.suptitle(f"{figures.TITLES[name]}; NICs of 400 (gloo) and 200 Mbit/s (MPI)", fontsize=11)
    script.save(figure, path)


def gains(found: Mapping[str, Mapping[str, figures.Gain]], path: Path) -> None:
    """The gain of the best mix over the best single library, by workload and cluster."""
    figure, axes = script.pyplot().subplots(figsize=(8, 3.2), layout="constrained")
    names = {"moe": "mixture of experts", "dlrm": "DLRM", "dense": "dense, tensor-parallel"}
    clusters = list(dict.fromkeys(shape for each in found.values() for shape in each))
    width = 0.8 / len(clusters)
    for index, shape in enumerate(clusters):
        there = [(place, each[shape]) for place, each in enumerate(found.values()) if shape in each]
        x = [place - 0.4 + (index + 0.5) * width for place, _ in there]
        hosts, ranks = shape.split("x")
        label = f"{hosts} hosts, {ranks} rank{'s' if ranks != '1' else ''} on each"
        colour = list(_ROW_COLOURS.values())[index]
        bars = axes.bar(x, [100 * each.gain for _, each in there], 0.92 * width, label=label, color=colour)
        axes.bar_label(bars, fmt="%+.0f %%", fontsize=8, padding=2)
    most = max(each.gain for shapes in found.values() for each in shapes.values())
    axes.set_xticks(range(len(found)), [names[name] for name in found])
    axes.set(ylabel="more steps per second, %")
    axes.margins(y=0.15)
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.legend(frameon=False, fontsize=8)
    title = f"Mixing libraries trains up to {most:.0%} faster than the best single library"
    axes.set_title(f"{title} (emulated hosts with two NICs)", fontsize=10, loc="left")
    script.plain(axes)
    script.save(figure, path)


def frameworks(measured: Mapping[str, Any], shape: str, path: Path) -> None:
    """Mixing compared with mpi4py and torch.distributed, as multiples of the slowest."""
    figure, axes = script.pyplot().subplots(figsize=(8, 4), layout="constrained")
    found: dict[str, dict[str, float]] = {}
    for name, document in measured.items():
        rates = figures.throughputs(document)
        chosen = {row: rates[row] for row in (*figures.MIXED, *figures.PEERS) if row in rates}
        found[name] = {row: value / min(chosen.values()) for row, value in chosen.items()}
    _bars(axes, found, {name: {} for name in found})
    for container in axes.containers:
        if isinstance(container, BarContainer):
            axes.bar_label(container, fmt="%.2f", fontsize=7, padding=2)
    axes.set(ylabel="throughput, multiples of the slowest")
    axes.legend(frameon=False, fontsize=8)
    axes.set_title(f"Figure 11: frameworks, {shape} (hosts x ranks on each)", fontsize=11, loc="left")
    script.save(figure, path)


def nics(rates: Mapping[str, Mapping[str, Sequence[float]]], nominal: Sequence[int], path: Path) -> None:
    """Mbit/s on each NIC of host 0, for each cluster and way of calling."""
    figure, panels = script.pyplot().subplots(
        1, len(rates), figsize=(4.2 * len(rates), 3.8), layout="constrained", sharey=True, squeeze=False
    )
    for axes, (shape, found) in zip(panels[0], rates.items(), strict=True):
        for nic, (limit, colour) in enumerate(zip(nominal, ("#56b4e9", "#d55e00"), strict=False)):
            x = [place + (nic - 0.5) * 0.4 for place in range(len(found))]
            axes.bar(x, [each[nic] for each in found.values()], 0.4, color=colour, label=f"eth{nic}")
            axes.axhline(limit, color=colour, linewidth=1, linestyle="--")
        axes.set_xticks(range(len(found)), list(found), rotation=40, ha="right", fontsize=8)
        axes.set_title(shape, fontsize=10, loc="left")
        script.plain(axes)
    panels[0][0].set_ylabel("Mbit/s sent by host 0")
    panels[0][0].legend(frameon=False, fontsize=8)
    figure.suptitle("all_reduces of 8 MiB; dashed: the rate of the NIC", fontsize=11)
    script.save(figure, path)


def choices(scales: Sequence[Any], path: Path) -> None:
    """The cheapest candidates: a strip over sizes for each operation, a panel for each cluster."""
    figure, panels = script.pyplot().subplots(
        1, len(scales), figsize=(4.6 * len(scales), 4.6), layout="constrained", sharey=True, squeeze=False
    )
    paint = colours(each.candidate for scale in scales for winner in scale.winners for each in winner.ranges)
    for axes, scale in zip(panels[0], scales, strict=True):
        winners = [winner for winner in scale.winners if winner.operation != "barrier"]
        for index, winner in enumerate(winners):
            starts = [max(4, each.start) for each in winner.ranges]
            for each, start, end in zip(winner.ranges, starts, [*starts[1:], _LARGEST], strict=True):
                axes.barh(index, max(0, end - start), left=start, color=paint[each.candidate], height=0.7)
        names = [winner.operation + (", async" if winner.async_op else "") for winner in winners]
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_xscale("log", base=2)
        ticks = [4 << power for power in range(0, 23, 6)]
        axes.set_xticks(ticks, [size_text(tick) for tick in ticks], fontsize=8)
        axes.set(xlim=(4, _LARGEST), xlabel="size")
        axes.set_title(scale.name, fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    handles = [Rectangle((0, 0), 1, 1, color=colour) for colour in paint.values()]
    figure.legend(handles, list(paint), loc="outside lower center", ncols=len(paint), frameon=False, fontsize=9)
    panels[0][0].invert_yaxis()
    script.save(figure, path)
