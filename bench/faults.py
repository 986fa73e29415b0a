# SPDX-License-Identifier: Apache-2.0
"""Hundreds of faults at random moments: do the other ranks raise or end, how soon, and does anything stay behind?

    python bench/faults.py --faults 200

Each fault has its own job of three ranks (hierarchies: two by two), in which rank 1 dies, stops, raises or leaves while
the others are idle, in a blocking collective or in many asynchronous ones, on mpi, Open MPI, gloo, shm, a stripe or a
hierarchy, or with each rank on an emulated host of its own, where no other rank can watch its process.
With --json FILE, also writes the figures there; with --chart FILE, draws a histogram of the times to the exceptions.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import re
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
from rich.table import Table

import script
from mcr_dl.commands.console import Console, bars
from mcr_dl.testing import jobs
from mcr_dl.testing.nursery import Child, Nursery

PROGRAM = script.ROOT / "tests" / "programs" / "faulty.py"
OPENMPI = script.ROOT / "build" / "openmpi" / "lib" / "libmpi.so.40"
PHASES, FAULTS = ("idle", "collective", "storm"), tuple(jobs.LOST)


@dataclass(frozen=True)
class Setup:
    """The program's argument and variables; ``hosts``: each rank's, as tests/programs/hosts.py takes them."""

    backend: str
    interruptible: bool = False
    hosts: str = ""


BACKENDS = {
    "mpi": Setup("mpi"),
    "mpi, interruptible": Setup("mpi", interruptible=True),
    "mpi, interruptible, a host each": Setup("mpi", interruptible=True, hosts="0,1,2"),
    "openmpi": Setup("openmpi"),
    "gloo": Setup("gloo"),
    "gloo, a host each": Setup("gloo", hosts="0,1,2"),
    "shm": Setup("shm"),
    "stripe(gloo,mpi)": Setup("gloo;mpi;stripe(gloo,mpi)"),
    "hier(shm,gloo)": Setup("gloo;hier(shm,gloo)"),
    "hier(shm,mpi)": Setup("mpi;hier(shm,mpi)"),
    "themis(shm,gloo)": Setup("gloo;themis(shm,gloo)"),
}
RANKS, ON_TWO_HOSTS = 3, 4  # of a job; hierarchies have two dimensions of two ranks
_GRID = {
    "format": "mcr-dl topology",
    "version": 1,
    "dimensions": [{"name": "host", "size": 2}, {"name": "rank", "size": 2}],
}
LIMIT = 1.0  # timeout of the calls, in seconds
BOUND = LIMIT + 2.0  # the guarantee of docs/reliability.md


def shared_memory() -> set[str]:
    """Shared-memory segments of MPI libraries."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("mpich", "ucx"))}


@dataclass
class Outcome:
    """The outcome of one fault: ``ok`` or the problem, and three times in seconds."""

    result: str
    known: float = 0.0  # the longest time from the fault, or the later start of a call, until the call's exception
    call: float = 0.0  # the longest call that met the fault, until its exception or the end of its process
    end: float = 0.0  # from the fault to the end of the last survivor


def moment(rank: Child, what: str) -> float | None:
    """The time of an event, as the rank printed it."""
    told = re.search(rf"^{what} ([\d.]+)$", rank.text, re.MULTILINE)
    return float(told[1]) if told else None


def wrong(rank: Child, backend: str, fault: str, took: float, bound: float) -> str | None:
    """The guarantee that a survivor broke, if any; its call took ``took`` seconds and may take ``bound``."""
    far = fault == "stop" and bool(BACKENDS[backend].hosts)
    if rank.code not in ((jobs.REPORTED, jobs.ENDED) if backend in ("mpi", "openmpi") else (jobs.REPORTED,)):
        return f"code {rank.code}"
    # Another host cannot tell stopped processes from others that do not answer.
    named = r"rank 1: it does not answer: process \d+ on \S+ has ended, is stopped" if far else jobs.LOST[fault]
    if not re.search(named, rank.text):
        return "not named"
    return "late" if took > bound else None


@cache
def _topology() -> str:
    """The path of a topology file that holds until this program ends."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump(_GRID, file)
    atexit.register(Path(file.name).unlink)
    return file.name


def inject(nursery: Nursery, backend: str, phase: str, fault: str, delay: float, bound: float) -> Outcome:
    """Inject one fault."""
    setup, program, size = BACKENDS[backend], PROGRAM, RANKS
    arguments = [setup.backend, phase, fault]
    variables = {"FAULTY_DELAY": str(delay), "FAULTY_LIMIT": str(LIMIT)}
    if backend == "openmpi":
        variables["MCR_DL_MPI_LIB"] = str(OPENMPI)
    if setup.interruptible:
        variables["MCR_DL_MPI_INTERRUPTIBLE"] = "1"
    if setup.hosts:
        program, arguments = PROGRAM.with_name("hosts.py"), [setup.hosts, PROGRAM.stem, *arguments]
    if backend.startswith(("hier", "themis")):
        size, variables["MCR_DL_TOPOLOGY"] = ON_TWO_HOSTS, _topology()
    ranks = jobs.start(nursery, program, arguments, size, **variables)
    survivors = [ranks[0], *ranks[2:]]
    ended = nursery.wait(survivors, 60)
    at = moment(ranks[1], "fault")
    if not ended or at is None:
        problem = "no fault" if at is None else "hang"
        report(f"{problem}: {backend} {phase} {fault} after {delay:.3f} s", ranks)
        nursery.clear()
        return Outcome(problem)
    begun = [moment(rank, "began") or 0.0 for rank in survivors]
    raised = [moment(rank, "raised") or rank.ended or 0.0 for rank in survivors]
    calls = [end - begin for begin, end in zip(begun, raised, strict=True)]
    known = max(end - max(begin, at) for begin, end in zip(begun, raised, strict=True))
    found = [wrong(rank, backend, fault, took, bound) for rank, took in zip(survivors, calls, strict=True)]
    last = max(rank.ended or 0.0 for rank in survivors)
    outcome = Outcome(next(filter(None, found), "ok"), known, max(calls), last - at)
    if outcome.result != "ok":
        report(f"{outcome.result}: {backend} {phase} {fault} after {delay:.3f} s", ranks)
    nursery.clear()
    return outcome


def report(problem: str, ranks: list[Child]) -> None:
    """Show what the ranks of a job have printed."""
    print(
        *(f"--- {problem}\nrank {rank}: code {child.code}\n{child.text}" for rank, child in enumerate(ranks)), sep="\n"
    )


def show(results: Mapping[tuple[str, str, str], list[Outcome]]) -> None:
    """A line for each kind."""
    title = f"Limit of a call {LIMIT:g} s. Seconds, median and largest. known: from the fault, or\n"
    title += "the later start of the call, to the exception; call: until it raised, or its process\n"
    title += "had ended; end: from the fault to the end of the last survivor"
    table = Table(title=title, title_justify="left")
    for name in ("backend", "phase", "fault", "ok", "known", "call", "end", "otherwise"):
        table.add_column(name, justify="right" if name in ("ok", "known", "call", "end") else "left")
    for kind, found in sorted(results.items()):
        bad = sorted({each.result for each in found} - {"ok"})
        good = f"{sum(each.result == 'ok' for each in found)} of {len(found)}"
        times = [spread([getattr(each, name) for each in found]) for name in ("known", "call", "end")]
        table.add_row(*kind, good, *times, ", ".join(bad))
    Console().print_whole(table, 100)


def spread(seconds: list[float]) -> str:
    """Median and largest."""
    return f"{statistics.median(seconds):.2f}  {max(seconds):.2f}"


def chart(results: Mapping[tuple[str, str, str], list[Outcome]], path: Path) -> None:
    """A histogram of the times from the fault to the exception, by fault."""
    colours = {"kill": "#cc3311", "exit": "#0072b2", "raise": "#e69f00", "stop": "#999999"}
    names = {"kill": "is killed", "exit": "ends its process", "raise": "raises an exception", "stop": "is stopped"}
    times = {
        fault: [each.known for kind, found in results.items() if kind[2] == fault for each in found]
        for fault in colours
    }
    times = {fault: found for fault, found in times.items() if found}
    figure, axes = script.pyplot().subplots(figsize=(8, 3.6), layout="constrained")
    bins = [0.1 * edge for edge in range(int(10 * max(map(max, times.values()))) + 2)]
    shown = {"color": [colours[fault] for fault in times], "label": [f"rank 1 {names[fault]}" for fault in times]}
    axes.hist(list(times.values()), bins, stacked=True, **shown)
    axes.axvline(LIMIT, color="black", linewidth=0.8, linestyle=":")
    axes.annotate("timeout of the calls ", (LIMIT, axes.get_ylim()[1]), ha="right", va="top", fontsize=8)
    axes.set(xlabel="seconds from the fault to the exception on the last rank", ylabel="faults")
    script.plain(axes)
    axes.legend(frameon=False, fontsize=8)
    script.save(figure, path)


def main() -> int:
    parser = script.parser(__doc__, figures=True)
    parser.add_argument("--faults", type=int, default=200, help="how many (200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backends", nargs="+", choices=[*BACKENDS], default=[*BACKENDS], help="where (all)")
    parser.add_argument("--chart", type=Path, help="draw a histogram there")
    parser.set_defaults(bound=BOUND)
    given = script.parse(parser, faults=1, bound=60.0)
    draw = random.Random(given.seed)
    kinds = [(backend, phase, fault) for backend in given.backends for phase in PHASES for fault in FAULTS]
    results: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    before = shared_memory()
    progress = bars(Console(stderr=True), ["injecting", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()])
    with Nursery() as nursery, progress:
        for turn in progress.track(range(given.faults)):
            kind = kinds[turn % len(kinds)]
            results[kind].append(inject(nursery, *kind, draw.uniform(0.0, 1.0), given.bound))
    show(results)
    everything = [each for found in results.values() for each in found]
    good = sum(each.result == "ok" for each in everything)
    left = len(shared_memory() - before)
    print(f"{len(everything)} faults, {good} as promised, {left} segments of shared memory left")
    saved = {" ".join(kind): [asdict(each) for each in found] for kind, found in results.items()}
    script.keep(given, saved)
    if given.chart is not None:
        chart(results, given.chart)
    return 0 if good == len(everything) and left == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
