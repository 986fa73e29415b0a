# SPDX-License-Identifier: Apache-2.0
"""The chart of bench/bytescheduler.py: speeds over the faster DistributedDataParallel in the lab."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import script
from mcr_dl.examples import bytescheduler as example
from mcr_dl.examples import bytescheduler_models as models

WAYS = {
    models.HOOKS: "#bbbbbb",
    models.DDP: "#808080",
    models.DEAR: "#56b4e9",
    models.WHOLE: "#b3a2d0",
    models.SIMULATED: "#e8b04b",
    models.SCHEDULED: "#009e73",
    models.SEARCHED: "#005a42",
}


def draw(document: dict[str, Any], path: Path) -> None:
    """A group of bars for each cluster and model; a line at the speed that no schedule can exceed."""
    rows = [(steps, row) for steps in document["steps"] for row in steps["models"]]
    figure, axes = script.pyplot().subplots(figsize=(11, 4.4), layout="constrained")
    width = 0.84 / len(WAYS)
    for index, (way, colour) in enumerate(WAYS.items()):
        shown = [(group, row) for group, (_, row) in enumerate(rows) if way in row["turns"]]
        speeds = [example.ratios(row["turns"], way)[0] for _, row in shown]
        places = [group - 0.42 + (index + 0.5) * width for group, _ in shown]
        axes.bar(places, speeds, width, color=colour, label="DDP, 25 MB buckets" if way == models.DDP else way)
    for group, (_, row) in enumerate(rows):
        best = min(median(row["turns"][way]) for way in (models.DDP, models.BUCKETS))
        limit = best / example.bound(row)
        axes.hlines(limit, group - 0.42, group + 0.42, colors="#333333", linestyles=":", linewidth=1.2)
    axes.axhline(1.0, color="#333333", linewidth=0.8)
    models_of = [row["model"].replace("-", "-\n") for _, row in rows]
    clusters = [f"{steps['hosts']} hosts\n{len(steps['nics'])} x 400" for steps, _ in rows]
    names = [f"{model}\n{cluster}" for model, cluster in zip(models_of, clusters, strict=True)]
    axes.set_xticks(range(len(rows)), names, fontsize=8)
    axes.set_ylabel("speed over the faster DDP")
    axes.set_title("Training steps in the lab (Mbit/s; dotted: no schedule can be faster)", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, ncols=len(WAYS), loc="upper center", frameon=False)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.1)
    script.save(figure, path)
