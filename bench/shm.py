# SPDX-License-Identifier: Apache-2.0
"""The backend shm against MPI, gloo and memcpy: 4 B to 16 MiB, blocking and asynchronous, ranks on one host.

All candidates take turns in one run. Writes docs/results/shm.md and shm.json.
"""

from __future__ import annotations

import os
import platform
import statistics
from datetime import date
from typing import Any

import torch

import script
import shm_rank
from markdown_text import size_text, table


def _row(point: dict[str, Any]) -> list[str]:
    least = {name: min(times) for name, times in point["times"].items()}
    middle = {name: statistics.median(times) for name, times in point["times"].items()}
    others = [name for name in least if name in ("gloo", "mpi", "mpi:p2p")]
    best = min(others, key=lambda name: least[name])
    mpi = min(least[name] for name in others if name != "gloo")
    columns = [least["shm"], middle["shm"], least["shm async"], mpi, least["gloo"], least[shm_rank.MEMCPY]]
    ratios = [least[best] / least["shm"], middle[best] / middle["shm"], least["shm async"] / least["shm"]]
    size = size_text(point["nbytes"]) if point["nbytes"] else "none"
    return [size, *(f"{value:,.2f}" for value in columns), *(f"{value:.2f}" for value in ratios)]


def markdown(found: dict[str, Any]) -> str:
    """The report."""
    lines = [
        "# shm against MPI and gloo",
        "",
        f"`python bench/shm.py` on {date.today()}: {platform.machine()}, {os.cpu_count()} cores, load "
        f"{found['load']:.1f} before the run; torch {torch.__version__}.",
        "",
        "float32, through Python, all candidates in turns. Times in µs: minima, and shm's median. `mpi` is the best of",
        "MPI's variants; `others / shm` compares the fastest of MPI and gloo with shm (above 1: shm is faster), by the",
        "minimum and by the median; `memcpy` copies one rank's tensor; sizes are those of one rank's tensor.",
        "",
    ]
    header = ["size", "shm", "median", "shm async + wait", "mpi", "gloo", "memcpy"]
    header += ["others / shm", "by median", "async / blocking"]
    for job in found["jobs"]:
        for operation in dict.fromkeys(point["operation"] for point in job["points"]):
            rows = [_row(point) for point in job["points"] if point["operation"] == operation]
            lines += [f"## {operation}, {job['ranks']} ranks", "", *table(header, rows)]
    return "\n".join(lines)


def main() -> None:
    """Measure and report."""
    parser = script.parser(__doc__, reports=True)
    parser.add_argument("--budget", type=float, default=0.1, help="seconds for each candidate and point (0.1)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2], help="numbers of ranks, one job each (2)")
    parser.set_defaults(operations=list(shm_rank.OPERATIONS), sizes=list(shm_rank.SIZES))
    given = script.parse(parser, budget=0.002, operations=["all_reduce", "barrier"], sizes=[4, 1 << 16])
    load = os.getloadavg()[0]
    jobs = [
        script.samples(shm_rank.measure, given.operations, given.sizes, given.budget, ranks=ranks)
        for ranks in given.ranks
    ]
    found = {"load": load, "jobs": jobs}
    script.publish(given, "shm", found, markdown(found))


if __name__ == "__main__":
    main()
