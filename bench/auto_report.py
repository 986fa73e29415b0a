# SPDX-License-Identifier: Apache-2.0
"""The report of auto.py: Markdown, and the chart of all_reduce."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import script
from markdown_text import size_text, table

AIM = 0.97

INTRODUCTION = """\
# `auto` and the candidates it chooses from

{way} on {date}: {machine}; {libraries}.{remark}

Two ranks on one host, float32, SUM; medians over {passes} passes of fresh ranks, in each of which all candidates and
`auto` are measured in interleaved rounds ({budget_seconds} s a point). Points that vary from pass to pass were measured
in up to {most} passes. Calls that `auto` did not measure at its start are warmed up first, until it has tried all
candidates. Times and ratios are medians over the passes. The ratio is the speed of `auto` over that of the candidate
with the least median time, in the same pass: 1 is as fast as naming the right one, and values above 1 are noise.
The aim is {aim} everywhere: {met} of {count} points reach it; the lowest is {lowest}.
"""


def _points(document: dict[str, Any]) -> list[tuple[str, int, dict[str, float]]]:
    return [
        (operation, int(nbytes), row)
        for operation, sizes in document["points"].items()
        for nbytes, row in sizes.items()
    ]


def _ratio_table(document: dict[str, Any]) -> list[str]:
    sizes = sorted({nbytes for _, nbytes, _ in _points(document) if nbytes > 0})
    lines = []
    for operation, rows in document["points"].items():
        by_size = {int(nbytes): row["ratio"] for nbytes, row in rows.items()}
        cells = [f"{by_size[size]:.2f}" if size in by_size else "" for size in sizes]
        if 0 in by_size:
            cells[0] = f"{by_size[0]:.2f}"
        lines.append([operation, *cells])
    return ["## Speed of `auto` over the best candidate", "", *table(["", *map(size_text, sizes)], lines)]


def _below(document: dict[str, Any]) -> list[str]:
    lines = []
    for operation, nbytes, row in _points(document):
        if row["ratio"] < AIM:
            times = ", ".join(f"{name} {value:.2f}" for name, value in row.items() if name not in {"ratio", "passes"})
            found = f"{row['ratio']:.3f} in {row['passes']} passes"
            lines.append(f"- {operation}, {size_text(nbytes)}: {found} ({times} µs)")
    return ["## Below the aim", "", *(lines or ["None."]), ""]


def _peer_table(document: dict[str, Any]) -> list[str]:
    lines = []
    for nbytes, row in document["peers"].items():
        times = [f"{row[name]:.2f}" for name in ("auto", "mpi4py", "gloo")]
        over = [f"{row[f'{name} / auto']:.2f}" for name in ("mpi4py", "gloo")]
        lines.append([size_text(int(nbytes)), *times, *over])
    header = ["", "auto (µs)", "mpi4py (µs)", "torch gloo (µs)", "mpi4py / auto", "torch gloo / auto"]
    text = "Each alone in its own ranks under MPICH's mpiexec, back to back on one buffer, in turns."
    return ["## all_reduce, mpi4py and torch.distributed", "", text, "", *table(header, lines)]


def markdown(document: dict[str, Any]) -> str:
    """The whole report."""
    found = [row["ratio"] for _, _, row in _points(document)]
    usable = {name: text for name, text in document["libraries"].items() if text.startswith("ok")}
    libraries = ", ".join(name if name == "shm" else text.removeprefix("ok: ") for name, text in usable.items())
    most = max(row["passes"] for _, _, row in _points(document))
    facts = {**document, "libraries": libraries, "aim": AIM, "count": len(found), "most": most}
    met, lowest = sum(ratio >= AIM for ratio in found), f"{min(found):.3f}"
    parts = [INTRODUCTION.format(**facts, met=met, lowest=lowest)]
    parts += _ratio_table(document) + _below(document) + _peer_table(document)
    return "\n".join(parts)


def draw(document: dict[str, Any], path: Path) -> None:
    """all_reduce: time over size, for `auto`, the other libraries and the candidates of `auto`."""
    rows = {int(nbytes): row for nbytes, row in document["points"]["all_reduce"].items()}
    peers = {int(nbytes): row for nbytes, row in document["peers"].items()}
    sizes = sorted(rows)
    figure, (left, right) = script.pyplot().subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
    colours = {"mpi": "#0072b2", "mpi:p2p": "#56b4e9", "gloo": "#009e73", "shm": "#cc3311"}
    for name, colour in colours.items():
        if name not in rows[sizes[0]]:
            continue
        left.plot(sizes, [rows[size][name] for size in sizes], color=colour, label=name, linewidth=1.4, marker=".")
    style = {"color": "black", "linewidth": 4, "alpha": 0.25, "solid_capstyle": "round", "label": "auto"}
    left.plot(sizes, [rows[size]["auto"] for size in sizes], zorder=0, **style)
    for name, colour, label in (("mpi4py", "#d55e00", "mpi4py"), ("gloo", "#cc79a7", "torch.distributed, gloo")):
        right.plot(sizes, [peers[size][name] for size in sizes], color=colour, label=label, linewidth=1.4, marker=".")
    right.plot(sizes, [peers[size]["auto"] for size in sizes], zorder=0, **style)
    titles = ("auto and its candidates", "auto and what others give")
    for axes, title in zip((left, right), titles, strict=True):
        axes.set(xscale="log", yscale="log", xlabel="size")
        axes.set_xticks(sizes[::3], [size_text(size) for size in sizes[::3]])
        axes.minorticks_off()
        script.plain(axes)
        axes.legend(frameon=False)
        axes.set_title(title, fontsize=10, loc="left")
    left.set_ylabel("time of an all_reduce (µs)")
    figure.suptitle("all_reduce of float32, 2 ranks on one host", fontsize=11)
    script.save(figure, path)
