# SPDX-License-Identifier: Apache-2.0
"""Starts, uses and ends the runtime some hundred times on a loaded machine: which phase ever takes long?

    python bench/starts.py --jobs 150 --load 6

Each job has three ranks on mpi, gloo and shm. Processes that only compute keep the machine busy meanwhile. A table
shows the times of each phase; jobs with a phase above --slow seconds are shown with the times of all their ranks. With
--json FILE, also writes the figures there.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
from rich.table import Table

import script
from mcr_dl.commands.console import Console, bars
from mcr_dl.testing.nursery import Child, Nursery

PROGRAM = Path(__file__).with_name("starts_rank.py")
PHASES = ("import", "init", "use", "end", "exit")
RANKS = 3
HANG = 300.0  # seconds

Times = dict[str, float]  # seconds by phase; phases that a hanging rank has not reached are missing


@contextmanager
def load(count: int) -> Iterator[None]:
    """Processes that compute in sessions of their own, as other users' would."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def times_of(rank: Child, begin: float) -> Times:
    """The times of a rank's phases, from the moments that it has printed."""
    found = re.findall(r"^PHASE (\w+) ([\d.]+)$", rank.text, re.MULTILINE)
    moments = [("begin", begin), *((name, float(at)) for name, at in found)]
    if rank.ended is not None:
        moments.append(("exit", rank.ended))
    return {name: at - before for (_, before), (name, at) in pairwise(moments)}


def start(nursery: Nursery, slow: float) -> list[Times]:
    """One job. Prints it if a phase was slow, or if a rank failed or hung."""
    begin = time.monotonic()
    ranks = nursery.ranks(PROGRAM, [], RANKS)
    ended = nursery.wait(ranks, HANG)
    times = [times_of(rank, begin) for rank in ranks]
    failed = not ended or any(rank.code for rank in ranks)
    if failed or max(seconds for each in times for seconds in each.values()) > slow:
        for number, (rank, each) in enumerate(zip(ranks, times, strict=True)):
            shown = ", ".join(f"{name} {seconds:.2f}" for name, seconds in each.items())
            print(f"rank {number}: code {rank.code}; {shown} s" + (f"\n{rank.text}" if failed else ""), flush=True)
    nursery.clear()
    return times


def show(jobs: list[list[Times]]) -> None:
    """A row for each phase."""
    table = Table(title=f"{len(jobs)} jobs of {RANKS} ranks: seconds of each phase", title_justify="left")
    for name in ("phase", "median", "99 %", "largest"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    for phase in PHASES:
        found = sorted(each[phase] for job in jobs for each in job if phase in each)
        values = [statistics.median(found), found[int(len(found) * 0.99)], found[-1]] if found else []
        table.add_row(phase, *(f"{value:.2f}" for value in values))
    Console().print_whole(table, 60)


def main() -> int:
    """Start the jobs one after the other."""
    parser = script.parser(__doc__, figures=True)
    parser.add_argument("--jobs", type=int, default=150, help="how many (150)")
    parser.add_argument("--load", type=int, default=6, help="processes that compute meanwhile (6)")
    parser.add_argument("--slow", type=float, default=20.0, help="seconds of a phase from which a job is shown (20)")
    given = script.parse(parser, jobs=2, load=1)
    progress = bars(Console(stderr=True), ["starting", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()])
    with Nursery(full_exit=True) as nursery, load(given.load), progress:
        jobs = [start(nursery, given.slow) for _ in progress.track(range(given.jobs))]
    show(jobs)
    complete = sum(set(PHASES) <= set(each) for job in jobs for each in job)
    print(f"{complete} of {len(jobs) * RANKS} ranks came to their end; load average {os.getloadavg()[0]:.1f}")
    script.keep(given, {"load": given.load, "jobs": jobs})
    return 0 if complete == len(jobs) * RANKS else 1


if __name__ == "__main__":
    sys.exit(main())
