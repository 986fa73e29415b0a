# SPDX-License-Identifier: Apache-2.0
"""Faults at random moments, by the hundred: do the other ranks raise or end, how soon, and does anything stay behind?

    python bench/faults.py --faults 200

Each is a job of three ranks of its own, in which rank 1 dies, stops, raises or leaves while the others are idle, in a
blocking collective or in a storm of asynchronous ones, on mpi or gloo. With --json FILE the figures go there too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import jobs
from harness.nursery import Nursery

BACKENDS, PHASES, FAULTS = ("mpi", "gloo"), ("idle", "collective", "storm"), ("kill", "stop", "raise", "exit")
LIMIT = 1.0  # seconds that the calls have
BOUND = LIMIT + 2.0
REPORTED, ENDED = 3, 70


def shared_memory() -> set[str]:
    """Segments of MPI libraries."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("mpich", "ucx"))}


def inject(nursery: Nursery, backend: str, phase: str, fault: str, delay: float) -> tuple[str, float]:
    """One fault; how it ended, and the seconds from the fault, or from the beginning of the call that met it, to the
    end of the last survivor.
    """
    ranks = jobs.start(nursery, "faulty", [backend, phase, fault], 3, FAULTY_DELAY=str(delay), FAULTY_LIMIT=str(LIMIT))
    survivors = [ranks[0], ranks[2]]
    ended = nursery.wait(survivors, 60)
    told = re.search(r"fault ([\d.]+)", ranks[1].text)
    text = "".join(rank.text for rank in survivors)
    result = "ok"
    if told is None:
        result = "no fault"
    elif not ended:
        result = "hang"
    elif not {rank.code for rank in survivors} <= {REPORTED, ENDED}:
        result = f"codes {[rank.code for rank in survivors]}"
    elif "rank 1" not in text:
        result = "not named"
    last = max(rank.ended or time.monotonic() for rank in survivors)
    nursery.clear()
    return result, last - float(told[1]) if told else 0.0


def show(results: dict[tuple[str, str, str], list[tuple[str, float]]]) -> None:
    """A line for each kind."""
    table = Table(title=f"Limit of a call {LIMIT:g} s; from the fault to the end of the last survivor's process")
    for name in ("backend", "ranks are", "fault", "injected", "ok", "median s", "largest s", "otherwise"):
        table.add_column(name, justify="right" if name in ("injected", "ok", "median s", "largest s") else "left")
    for kind, found in sorted(results.items()):
        seconds = [took for _, took in found]
        bad = [what for what, _ in found if what != "ok"]
        figures = (
            f"{len(found)}",
            f"{len(found) - len(bad)}",
            f"{statistics.median(seconds):.2f}",
            f"{max(seconds):.2f}",
        )
        table.add_row(*kind, *figures, ", ".join(sorted(set(bad))))
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=120, help="how many (120)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    draw = random.Random(given.seed)
    kinds = [(backend, phase, fault) for backend in BACKENDS for phase in PHASES for fault in FAULTS]
    results: dict[tuple[str, str, str], list[tuple[str, float]]] = defaultdict(list)
    before = shared_memory()
    with Nursery() as nursery:
        for turn in track(range(given.faults), "injecting"):
            kind = kinds[turn % len(kinds)]
            results[kind].append(inject(nursery, *kind, draw.uniform(0.0, 1.0)))
    show(results)
    everything = [each for found in results.values() for each in found]
    good = sum(what == "ok" for what, _ in everything)
    left = len(shared_memory() - before)
    print(f"{len(everything)} faults, {good} as promised, {left} segments of shared memory left")
    if given.json is not None:
        given.json.write_text(json.dumps({" ".join(kind): found for kind, found in results.items()}, indent=1) + "\n")
    return 0 if good == len(everything) and left == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
