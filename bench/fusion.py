# SPDX-License-Identifier: Apache-2.0
"""Tensor fusion: batches of asynchronous all_reduces, fused and not, two ranks on one host.

256 tensors of 2^7 to 2^16 bytes, larger ones, and the gradients of two models; all calls of a batch are started, then
waited for. Writes docs/results/fusion.md, fusion.json and docs/images/fusion.png. `--explore` compares buffer sizes and
times instead, and prints the best ones: the defaults in mcr_dl/libraries come from there.
"""

from __future__ import annotations

import os
import statistics
from datetime import date
from pathlib import Path
from typing import Any

import torch

import fusion_rank
import script
from markdown_text import paragraph, size_text, table
from mcr_dl.libraries import registry


def medians(point: dict[str, Any], name: str) -> tuple[float, float, float]:
    """Microseconds of the plain batch and of the fused one, and the median of the rounds' ratios."""
    ratios = [plain / fused for plain, fused in zip(point["plain"], point[name], strict=True)]
    return statistics.median(point["plain"]), statistics.median(point[name]), statistics.median(ratios)


def _row(title: str, point: dict[str, Any]) -> list[str]:
    plain, fused, ratio = medians(point, "fused")
    return [title, f"{plain:,.0f}", f"{fused:,.0f}", f"{ratio:.2f}"]


def _aims(found: dict[str, Any]) -> str:
    """The aims, and what was measured for them."""
    small = min(found["gloo"]["sweep"], key=lambda point: abs(point["nbytes"] - 1024))
    large = [
        medians(point, "fused")[2]
        for parts in (found[backend] for backend in fusion_rank.BACKENDS)
        for point in [*(one for one in parts["sweep"] if one["nbytes"] >= 1 << 20), *parts["models"].values()]
    ]
    return (
        f"Aims: 3 on 256 tensors of 1 KiB with gloo (measured: {medians(small, 'fused')[2]:.0f}); nothing lost from "
        f"1 MiB on and on the gradients of models (measured: {min(large):.2f} to {max(large):.2f})."
    )


def markdown(found: dict[str, Any]) -> str:
    """The report."""
    lines = [
        "# Tensor fusion",
        "",
        *paragraph(f"`python bench/fusion.py` on {date.today()}: {script.machine()}; torch {torch.__version__}."),
        *paragraph(
            "Two ranks on one host, float32 SUM all_reduces: all of a batch are started, then all are waited for. "
            "Batches with and without fusion take turns; medians in µs, and the median of the rounds' ratios (above "
            f"1: fusion is faster). {_aims(found)}"
        ),
    ]
    for backend in fusion_rank.BACKENDS:
        limits = registry.describe(backend).fusion
        lines += [
            f"## {backend}",
            "",
            f"Buffers of {size_text(limits.buffer_bytes)}; a call is held for at most {limits.hold_microseconds} µs; "
            f"calls above {size_text(limits.largest_bytes)} are not fused.",
            "",
        ]
        rows = [_row(f"{point['tensors']} x {size_text(point['nbytes'])}", point) for point in found[backend]["sweep"]]
        rows += [
            _row(f"{name}, {point['tensors']} tensors, {point['nbytes'] / 2**20:.0f} MiB", point)
            for name, point in found[backend]["models"].items()
        ]
        lines += table(["batch", "plain", "fused", "plain / fused"], rows)
    return "\n".join(lines)


def draw(found: dict[str, Any], path: Path) -> None:
    """Speedup by tensor size."""
    figure, axes = script.pyplot().subplots(figsize=(7, 4), layout="constrained")
    for backend, colour in zip(fusion_rank.BACKENDS, ("tab:blue", "tab:orange"), strict=True):
        sweep = found[backend]["sweep"]
        sizes = [point["nbytes"] for point in sweep]
        axes.plot(sizes, [medians(point, "fused")[2] for point in sweep], "o-", color=colour, label=backend)
    axes.axhline(1, color="0.5", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    ticks = [point["nbytes"] for point in found["mpi"]["sweep"]][::2]
    axes.set_xticks(ticks, [size_text(size) for size in ticks])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="size of one tensor", ylabel="time without fusion / with")
    tensors = sorted({point["tensors"] for point in found["mpi"]["sweep"]})
    calls = " to ".join(map(str, dict.fromkeys((tensors[0], tensors[-1]))))
    axes.set_title(f"{calls} asynchronous all_reduces, 2 ranks on {os.cpu_count()} cores", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend()
    script.save(figure, path)


def explore(budget: float) -> None:
    """Which buffer size is best for which tensors, by backend."""
    buffers = [1 << power for power in (13, 14, 15, 16, 17, 18, 20)]
    options = {
        size_text(size): {"buffer_bytes": size, "largest_bytes": min(size, 1 << 16), "hold_microseconds": 1000}
        for size in buffers
    }
    found = script.samples(fusion_rank.measure_all, options, fusion_rank.SWEEP, budget, False)
    for backend in fusion_rank.BACKENDS:
        rows = [
            [size_text(point["nbytes"]), *(f"{medians(point, name)[2]:.2f}" for name in options)]
            for point in found[backend]["sweep"]
        ]
        print(f"\n{backend}: plain / fused by buffer size\n\n" + "\n".join(table(["tensor", *options], rows)))


def explore_time() -> None:
    """How long to hold: 64 calls of 1 KiB with pauses for computation, waited for at the end."""
    holds = {f"{hold} µs": {"hold_microseconds": hold} for hold in (50, 100, 200, 500, 1000, 2000)}
    rows = []
    for pause in (5, 20, 100):
        found = script.samples(fusion_rank.measure_pauses, holds, pause * 1e-6)
        for backend in fusion_rank.BACKENDS:
            times = [statistics.median(found[backend][name]) for name in ("plain", *holds)]
            rows.append([f"{backend}, {pause} µs between calls", *(f"{value:,.0f}" for value in times)])
    print("\nµs by T\n\n" + "\n".join(table(["64 x 1 KiB", "plain", *holds], rows)))


def main() -> None:
    """Run the command."""
    parser = script.parser(__doc__, reports=True)
    parser.set_defaults(points=fusion_rank.SWEEP, models=True)
    parser.add_argument("--budget", type=float, default=1.0, help="seconds per point")
    parser.add_argument("--explore", action="store_true", help="compare buffer sizes and times")
    given = script.parse(parser, budget=0.01, points=[(1 << 10, 16), (1 << 20, 2)], models=False)
    if given.explore:
        explore(given.budget)
        explore_time()
        return
    found = script.samples(fusion_rank.measure_all, {"fused": {}}, given.points, given.budget, given.models)
    script.publish(given, "fusion", found, markdown, draw)


if __name__ == "__main__":
    main()
