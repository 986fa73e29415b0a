# SPDX-License-Identifier: Apache-2.0
"""The charts of bench/themis.py: figures 5 and 8 to 12 of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import script
from mcr_dl.networks import timeline
from mcr_dl.schedule.themis import plan
from themis_networks import FIGURE_5, MB, PAPER

POLICIES = ("baseline", "themis-fifo", "themis-scf")
COLOURS = dict(zip(POLICIES, ("#808080", "#56b4e9", "#d55e00"), strict=True)) | {"auto": "#009e73", "ideal": "#333333"}


def _bars(axes: Any, groups: list[str], values: dict[str, list[float]]) -> None:
    width = 0.8 / len(values)
    for index, (name, numbers) in enumerate(values.items()):
        left = [place - 0.4 + (index + 0.5) * width for place in range(len(groups))]
        axes.bar(left, numbers, width, color=COLOURS[name], label=name)
    axes.set_xticks(range(len(groups)), groups)


def _sizes(rows: list[dict[str, Any]], path: Path) -> None:
    """Figures 8 and 11."""
    rows = [row for row in rows if row["in_flight"] == 8]
    names = list(dict.fromkeys(row["topology"] for row in rows))
    sizes = list(dict.fromkeys(row["mb"] for row in rows))
    figure, panels = script.pyplot().subplots(2, 4, figsize=(13, 6), layout="constrained")
    for axes, name in zip(panels.flat, names, strict=False):
        own = [row for row in rows if row["topology"] == name]
        times = {policy: [row["us"][policy] / 1000 for row in own] for policy in POLICIES}
        _bars(axes, [str(size) for size in sizes], times)
        axes.set_title(name, fontsize=9)
        axes.set_ylabel("ms")
    axes = panels.flat[6]
    for policy in POLICIES:
        shares = [[row["utilization"][policy] for row in rows if row["mb"] == size] for size in sizes]
        axes.plot(sizes, [sum(each) / len(each) for each in shares], "o-", color=COLOURS[policy])
    for value in (PAPER.baseline, PAPER.fifo, PAPER.scf):
        axes.axhline(value, color="0.6", linewidth=0.8, linestyle=":")
    axes.set(title="mean utilization, % (dotted: paper)", ylim=(0, 105))
    panels.flat[0].legend(fontsize=8)
    panels.flat[7].axis("off")
    figure.supxlabel("MB; all_reduce, 64 chunks, 8 in flight, Table 2's latencies")
    script.save(figure, path)


def _activity(found: dict[str, list[list[float]]], path: Path) -> None:
    """Figure 9."""
    figure, panels = script.pyplot().subplots(3, 3, figsize=(11, 4.6), sharex=True, sharey=True, layout="constrained")
    for column, policy in enumerate(POLICIES):
        for k, shares in enumerate(found[policy]):
            axes = panels[k, column]
            axes.fill_between([0.1 * i for i in range(len(shares))], shares, step="post", color=COLOURS[policy])
            axes.set_ylim(0, 1.05)
            if k == 0:
                axes.set_title(policy, fontsize=9)
            if column == 0:
                axes.set_ylabel(f"dimension {k + 1}", fontsize=8)
    figure.supxlabel("ms; share of each 100 µs in which a dimension has a chunk: 1000 MB, 3D-SW_SW_SW_homo")
    script.save(figure, path)


def _chunks(rows: list[dict[str, Any]], path: Path) -> None:
    """Figure 10."""
    figure, axes = script.pyplot().subplots(figsize=(7, 4), layout="constrained")
    for way, line in (("bandwidth only", "o-"), ("latencies", "s--")):
        own = [row for row in rows if row["network"] == way]
        for policy in POLICIES:
            numbers = [row["utilization"][policy] for row in own]
            axes.plot([row["chunks"] for row in own], numbers, line, color=COLOURS[policy], label=f"{policy}, {way}")
    axes.plot([4, 512], [43.13, 87.81], "x", color=COLOURS["themis-fifo"], label="paper, FIFO")
    axes.plot([4, 512], [48.58, 91.18], "x", color=COLOURS["themis-scf"], label="paper, SCF")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="chunks; 100 MB, mean of two topologies", ylabel="utilization, %", ylim=(0, 105))
    axes.legend(fontsize=7, ncols=2)
    script.save(figure, path)


def _workloads(rows: list[dict[str, Any]], path: Path) -> None:
    """The communication of figure 12, by the baseline's."""
    works = list(dict.fromkeys(row["workload"] for row in rows))
    shown = ("baseline", "themis-scf", "auto", "ideal")
    figure, panels = script.pyplot().subplots(2, 2, figsize=(12, 6), sharey=True, layout="constrained")
    for axes, work in zip(panels.flat, works, strict=True):
        own = [row for row in rows if row["workload"] == work]
        values = {name: [row["us"][name] / row["us"]["baseline"] for row in own] for name in shown}
        _bars(axes, [row["topology"].replace("-", "\n", 1) for row in own], values)
        axes.set_title(f"{work}, {own[0]['bytes'] / MB:,.1f} MB", fontsize=9)
        axes.tick_params(axis="x", labelsize=6)
    panels[0, 0].set_ylabel("time by the baseline's")
    panels[0, 0].set_ylim(0, 1.3)
    panels[0, 0].legend(fontsize=8, ncols=4, loc="upper center")
    script.save(figure, path)


def draw(document: dict[str, Any], path: Path) -> None:
    """All charts, in the folder of ``path``."""
    named = [
        (title, plan(FIGURE_5, "all_reduce", 256 * MB, policy=policy, chunks=4))
        for title, policy in (("baseline", "baseline"), ("Themis, smallest chunk first", "themis-scf"))
    ]
    timeline.save(named, path.with_name("themis-figure5.png"))
    _sizes(document["latencies"], path.with_name("themis-sizes.png"))
    _activity(document["figure_9"], path.with_name("themis-activity.png"))
    _chunks(document["figure_10"], path.with_name("themis-chunks.png"))
    _workloads(document["figure_12"], path.with_name("themis-workloads.png"))
