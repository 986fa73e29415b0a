# SPDX-License-Identifier: Apache-2.0
"""Codecs: speed and error, an all_reduce with each and without, and the bandwidth below which each one pays off."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import compress_rank
import script
from markdown_text import size_text, table

CODECS = ["bf16", "fp16", "int8", "zfp:rate=8", "zfp:rate=16", "zfp:tolerance=1e-3"]
SIZES = [1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26]
RANKS = (2, 8, 64)

INTRODUCTION = """\
# Compression

`bench/compress.py` on {date}: {machine}, {backend}. float32 values like gradients: normal, with a scale that changes
every 4096 elements. See [compression](../compression.md).
"""
MODEL = """\
An all_reduce of S bytes among n ranks sends and receives 2 (n - 1) / n · S on each. A codec leaves the share `ratio` of
it, and costs each rank an encoding of (1 + 1/n) · S and a decoding of 2 · S. It pays below the bandwidth of a rank's
link at which the two are equal, if encoding and sending do not overlap:
"""


def break_even(codec: dict[str, float], ranks: int) -> float:
    """Bytes per second."""
    saved = 2 * (ranks - 1) / ranks * (1 - codec["ratio"])
    return saved / ((1 + 1 / ranks) * codec["encode"] + 2 * codec["decode"])


def markdown(report: dict[str, Any]) -> str:
    """The report."""
    codecs = report["codecs"]
    speeds = [
        [
            name,
            *(f"{1e-9 / row[way]:.2f}" for way in ("encode", "decode")),
            f"{row['ratio']:.2f}",
            f"{row['relative error']:.1e}",
            f"{row['largest error']:.1e}",
        ]
        for name, row in codecs.items()
    ]
    pays = [[name, *(f"{break_even(row, ranks) * 1e-9:.2f}" for ranks in RANKS)] for name, row in codecs.items()]
    calls = [
        [size_text(int(nbytes)), f"{point['none']['us']:.0f}", *(f"{point[name]['ratio']:.2f}" for name in codecs)]
        for nbytes, point in report["all_reduce"].items()
    ]
    return "\n".join(
        [
            INTRODUCTION.format(**report),
            "## Codecs alone",
            "",
            "4 MiB, one core. Relative error: ‖decoded - original‖ / ‖original‖; largest error: max |decoded -",
            "original|, absolute; GB/s count the float32 bytes.",
            "",
            *table(
                ["codec", "encode GB/s", "decode GB/s", "encoded / plain", "relative error", "largest error"], speeds
            ),
            "## Where a codec pays",
            "",
            MODEL,
            *table(["codec", *(f"{ranks} ranks, GB/s" for ranks in RANKS)], pays),
            f"## all_reduce, {report['ranks']} ranks on one host",
            "",
            "Time relative to the call without a codec; medians of interleaved rounds. Within one host a codec cannot",
            "save time: these figures show only its cost.",
            "",
            *table(["size", "none, µs", *codecs], calls),
        ]
    )


def draw(report: dict[str, Any], path: Path) -> None:
    """Predicted speedup of a large all_reduce over the bandwidth of a link."""
    ranks = 8
    bandwidths = [10 ** (7.5 + step / 20) for step in range(60)]
    figure, axes = script.pyplot().subplots(figsize=(7, 4), layout="constrained")
    for name, row in report["codecs"].items():
        sent = 2 * (ranks - 1) / ranks
        cost = (1 + 1 / ranks) * row["encode"] + 2 * row["decode"]
        axes.plot(
            [each * 1e-9 for each in bandwidths],
            [sent / each / (row["ratio"] * sent / each + cost) for each in bandwidths],
            label=name,
        )
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("bandwidth of a rank's link, GB/s")
    axes.set_ylabel("speed-up of an all_reduce")
    axes.set_title(f"From measured codec speeds; {ranks} ranks, one core each, nothing overlaps", fontsize=10)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    script.save(figure, path)


def main() -> None:
    """Measure and report."""
    parser = script.parser(__doc__, reports=True)
    parser.add_argument("--codecs", nargs="+", default=CODECS)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="bytes")
    parser.add_argument("--backend", default="mpi")
    parser.add_argument("--ranks", type=int, default=2)
    given = script.parse(parser, sizes=SIZES[:1])
    arguments = (given.codecs, given.sizes, given.backend)
    environment = {"MCR_DL_TUNING_TABLE": "none"}
    found = script.samples(compress_rank.measure, *arguments, ranks=given.ranks, environment=environment, limit=600.0)
    report = {
        "date": str(date.today()),
        "machine": script.machine(),
        "backend": given.backend,
        "ranks": given.ranks,
        **found,
    }
    script.publish(given, "compress", report, markdown, draw)


if __name__ == "__main__":
    main()
