# SPDX-License-Identifier: Apache-2.0
"""The picture of a lab: hosts, NICs, switches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.patches import FancyBboxPatch

import script
from lab import plan
from lab.plan import Shape

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_LIBRARIES = ("gloo; where the ranks meet", "MPI")


def _box(axes: Any, place: tuple[float, float], size: tuple[float, float], text: str, **style: Any) -> None:
    x, y = place
    width, height = size
    look: dict[str, Any] = {
        "boxstyle": "round,pad=0,rounding_size=0.06",
        "linewidth": 1.2,
        "facecolor": "white",
        "edgecolor": "0.3",
    }
    axes.add_patch(FancyBboxPatch((x, y), width, height, **(look | style)))
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8)


def topology(shape: Shape, path: Path) -> None:
    """Draw a cluster: every cable in the color of its switch, with its rate."""
    nics = len(shape.rates)
    figure, axes = script.pyplot().subplots(figsize=(2.6 * shape.hosts + 1.5, 3.6), layout="constrained")
    for host in range(shape.hosts):
        left = 2.6 * host
        ranks = [str(host * shape.ranks_per_host + local) for local in range(shape.ranks_per_host)]
        label = f"{plan.host_name(host)}\nrank{'s' * (len(ranks) > 1)} {', '.join(ranks)}\nown name, /dev/shm, core"
        _box(axes, (left, 2.2), (2.2, 1.2), label, facecolor="#f2f2f2")
        for nic, rate in enumerate(shape.rates):
            colour = _COLOURS[nic % len(_COLOURS)]
            x = left + 2.2 * (nic + 0.5) / nics
            bottom = 0.9 - 0.7 * nic
            axes.plot([x, x], [1.95, bottom], color=colour, linewidth=1.6, zorder=0)
            axes.text(x + 0.06, 1.45, f"{rate}\nMbit/s", fontsize=7, color=colour, va="center")
            _box(axes, (x - 0.42, 1.95), (0.84, 0.36), f"eth{nic}", edgecolor=colour)
    for nic in range(nics):
        text = f"switch {nic}: 10.77.{nic}.0/24" + (f"   {_LIBRARIES[nic]}" if nic < len(_LIBRARIES) else "")
        style = {"edgecolor": _COLOURS[nic % len(_COLOURS)]}
        _box(axes, (0, 0.5 - 0.7 * nic), (2.6 * shape.hosts - 0.4, 0.4), text, **style)
    axes.set(xlim=(-0.15, 2.6 * shape.hosts - 0.25), ylim=(0.4 - 0.7 * nics + 0.6, 3.5))
    axes.axis("off")
    script.save(figure, path)
