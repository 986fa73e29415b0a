# SPDX-License-Identifier: Apache-2.0
"""The report of overhead.py as Markdown."""

from __future__ import annotations

import statistics
from typing import Any

from markdown_text import size_text, table

INTRODUCTION = """\
# What MCR-DL adds to a call

`make bench` on {date}: {machine}; {libraries}; ranks started by {launcher}.

Two ranks on one host, float32 MAX (data movement for the other operations), interleaved blocks in one pair of
processes; medians in µs. *Added* is the median difference to the C loop's block of the same round, and *ours/mpi4py's*
the median over the rounds of what we add divided by what mpi4py adds: the ratio holds where a machine changes its
clock. Targets: at most 0.15 µs up to 1 KiB, 1 % from 64 KiB. The C loop calls the same library at the same thread
level.
"""

CHOOSING = """\
The whole call on the backend that does nothing, one process. Target: naming `auto` costs at most 5 ns more than naming
the backend (20 ns in earlier versions).
"""


def summarize(blocks: dict[str, list[float]]) -> dict[str, float | None]:
    """Median µs of each way, and the overhead of mcr_dl and mpi4py over the C loop of the same round."""
    row: dict[str, float | None] = {name: statistics.median(values) * 1e6 for name, values in blocks.items()}
    for name in ("mcr_dl", "mpi4py"):
        added = statistics.median(x - c for x, c in zip(blocks[name], blocks["C"], strict=True))
        row[f"{name} added"] = added * 1e6
    rounds = zip(blocks["C"], blocks["mcr_dl"], blocks["mpi4py"], strict=True)
    ratios = [(ours - c) / (theirs - c) for c, ours, theirs in rounds if theirs > c]
    row["ratio"] = statistics.median(ratios) if ratios else None
    return row


def verdict(row: dict[str, float], nbytes: int) -> str:
    """Whether the target is met at this size; empty if there is none."""
    if nbytes <= 1024:
        return "yes" if row["mcr_dl added"] <= 0.15 else "no"
    if nbytes >= 65536:
        return "yes" if row["mcr_dl added"] <= 0.01 * row["C"] else "no"
    return ""


def _mpi(report: dict[str, Any]) -> list[str]:
    lines = []
    for op, sizes in report["mpi"].items():
        rows = []
        for nbytes, row in sizes.items():
            cells = [f"{row[key]:.2f}" for key in ("C", "mcr_dl", "mpi4py", "mcr_dl added", "mpi4py added")]
            cells.append("" if row["ratio"] is None else f"{row['ratio']:.2f}")
            rows.append([size_text(int(nbytes)), *cells, "" if "async" in op else verdict(row, int(nbytes))])
        header = ["size", "C", "mcr_dl", "mpi4py", "mcr_dl adds", "mpi4py adds", "ours/mpi4py's", "target met"]
        lines += [f"## {op}", "", *table(header, rows)]
    return lines


def _gloo(report: dict[str, Any]) -> list[str]:
    names = ("torch.distributed gloo", "mcr_dl gloo")
    rows = [[size_text(int(n)), *(f"{row[name]:.0f}" for name in names)] for n, row in report["gloo"].items()]
    return ["## all_reduce on gloo", "", *table(["size", *names], rows)]


def _overlap(report: dict[str, Any]) -> list[str]:
    keys = ("communication_s", "compute_s", "both_s")
    rows = [
        [name, *(f"{row[key] * 1e3:.1f}" for key in keys), f"{row['hidden']:.0%}"]
        for name, row in report["overlap"].items()
    ]
    header = ["backend", "communication ms", "products ms", "both ms", "hidden share of the shorter"]
    text = "*Hidden*: (communication + products - both) / the shorter of the two."
    return ["## Overlap: a 16 MiB all_reduce behind matrix products", "", text, "", *table(header, rows)]


def _memory(report: dict[str, Any]) -> list[str]:
    memory = report["memory"]
    return [
        "## Memory",
        "",
        f"- {memory['blocking_calls']:,} blocking calls: resident memory grew by "
        f"{memory['blocking_growth_bytes'] / 1024:.0f} KiB.",
        f"- {memory['async_calls']:,} asynchronous calls: by {memory['async_growth_bytes'] / 1024:.0f} KiB.",
        f"- {memory['outstanding']:,} operations under way: {memory['outstanding_bytes'] / 1024:.0f} KiB more, MPI's "
        "share included.",
        "",
    ]


def _choosing(report: dict[str, Any]) -> list[str]:
    rows = [[way, f"{nanoseconds:.0f}"] for way, nanoseconds in report["choosing_ns"].items()]
    return ["## Choosing", "", CHOOSING, *table(["", "ns"], rows)]


def _chain(report: dict[str, Any]) -> list[str]:
    rows = [[chain, f"{nanoseconds:.0f}"] for chain, nanoseconds in report["chain_ns"].items()]
    text = "A blocking call on groups with different passes; `fuse` only passes it on."
    return ["## Passes", "", text, "", *table(["", "ns"], rows)]


def markdown(report: dict[str, Any]) -> str:
    """The whole report."""
    parts = (_mpi, _gloo, _overlap, _memory, _choosing, _chain)
    return "\n".join([INTRODUCTION.format(**report), *(line for part in parts for line in part(report))])
