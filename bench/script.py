# SPDX-License-Identifier: Apache-2.0
"""The common parts of the scripts in this folder: command line, ranks under torchrun, times, reports, pictures."""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch

import mcr_dl
from mcr_dl.base import launcher
from mcr_dl.base.documents import write_rows
from mcr_dl.measure.ranks import launched, run_local
from mcr_dl.tables.host import host

ROOT = Path(__file__).resolve().parent.parent
RESULTS, IMAGES = ROOT / "docs" / "results", ROOT / "docs" / "images"
SMOKE = "smoke mode: the figures mean nothing"
Figures = TypeVar("Figures")


def parser(
    text: str | None, *, program: str | None = None, reports: bool = False, figures: bool = False
) -> argparse.ArgumentParser:
    """The options of every script; ``reports``: also those of ``publish``; ``figures``: also that of ``keep``."""
    style = argparse.RawDescriptionHelpFormatter
    result = argparse.ArgumentParser(prog=program, description=text, formatter_class=style)
    result.add_argument("--smoke", action="store_true", help="run all parts in seconds, and keep no results")
    if reports:
        result.add_argument("--out", type=Path, metavar="FOLDER", help="where the report goes (docs/)")
    if figures:
        result.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return result


def parse(given: argparse.ArgumentParser, argv: Sequence[str] | None = None, **smoke: Any) -> argparse.Namespace:
    """Read the command line. With ``--smoke``, the values of ``smoke`` are the defaults."""
    found = given.parse_args(argv)
    if found.smoke:
        given.set_defaults(**smoke)
        found = given.parse_args(argv)
        if launcher.detect().rank == 0:
            print(SMOKE, file=sys.stderr, flush=True)
    return found


def with_ranks(count: int) -> None:
    """Restart this script as ``count`` ranks under torchrun and exit with its exit code, unless this is a rank."""
    if not launched():
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), *sys.argv]
        sys.exit(subprocess.run(command, check=False).returncode)


def lives(modes: Sequence[str], count: int, life: Callable[[str], Figures]) -> dict[str, list[Figures]]:
    """The figures of ``count`` lives of the runtime in each mode. The modes take turns; the first lives warm up."""
    taken: dict[str, list[Figures]] = {mode: [] for mode in modes}
    for turn in range(count + 1):
        for mode in modes if turn % 2 else modes[::-1]:
            found = life(mode)
            if turn > 0:
                taken[mode].append(found)
            if launcher.detect().rank == 0:
                print(f"life {turn} of {count}, {mode}", end="\r", flush=True)
    return taken


def samples(
    entry: Callable[..., Any],
    *arguments: Any,
    ranks: int = 2,
    environment: Mapping[str, str] | None = None,
    limit: float | None = None,
) -> dict[str, Any]:
    """The output of rank 0 of new ranks: each calls ``entry`` with the arguments and the path of a JSON file.

    ``environment`` is added to theirs; after ``limit`` seconds they are ended, and the script fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "samples.json"
        with run_local(entry, (*arguments, str(output)), ranks, environment=environment) as running:
            if not running.wait(limit):
                raise SystemExit(f"the ranks did not end in {limit} s")
            if running.first_failure is not None:
                raise SystemExit(f"rank {running.first_failure[0]} ended with {running.first_failure[1]}")
        found: dict[str, Any] = json.loads(output.read_text())
        return found


def of_slowest(times: Mapping[str, list[float]], backend: str) -> dict[str, list[float]]:
    """Each time on the rank where it is the longest: the root of a broadcast, for one, leaves it first. Collective."""
    longest = torch.tensor([value for values in times.values() for value in values], dtype=torch.float64)
    mcr_dl.all_reduce(longest, op=mcr_dl.ReduceOp.MAX, backend=backend)
    left = iter(longest.tolist())
    return {name: [next(left) for _ in values] for name, values in times.items()}


def write_samples(output: str, found: Any) -> None:
    """Rank 0 of such ranks writes its output; the others do nothing."""
    if mcr_dl.get_rank() == 0:
        Path(output).write_text(json.dumps(found))


def timed_statement(statement: str, names: dict[str, Any]) -> Callable[[int], float]:
    """A loop around a statement whose names are local variables: the cost of a user's own loop, and no more.

    The loop takes a number of rounds, and returns the seconds of one.
    """
    setup = "\n".join(f"{name} = _{name}" for name in names)
    timer = timeit.Timer(statement, setup, globals={f"_{name}": value for name, value in names.items()})
    return lambda calls: timer.timeit(calls) / calls


def medians(loops: Mapping[str, Callable[[int], float]], calls: int, rounds: int = 21) -> dict[str, float]:
    """Median ns per call of each loop of ``timed_statement``, over rounds in which each one makes ``calls`` calls."""
    taken: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, loop in loops.items():
            taken[name].append(loop(calls) * 1e9)
    return {name: statistics.median(values) for name, values in taken.items()}


def machine() -> str:
    """The processor and the number of cores, for reports."""
    return f"{host().cpu.partition(';')[0]}, {os.cpu_count()} cores"


def resident() -> int:
    """Bytes of memory that this process uses now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def pyplot() -> Any:
    """The module of that name in matplotlib, which some machines lack, to draw into files."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as module

    return module


def plain(axes: Any) -> None:
    """Draw no frame, and faint lines at the values behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)


def save(figure: Any, path: Path) -> None:
    """Write a figure to a file, whose folder need not exist, and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot().close(figure)


def keep(given: argparse.Namespace, figures: Any) -> None:
    """Write the figures to the file of ``--json``, if it is given."""
    if given.json is not None:
        write_rows(given.json, figures)


def publish(
    given: argparse.Namespace,
    name: str,
    document: dict[str, Any],
    report: Callable[[dict[str, Any]], str],
    draw: Callable[[dict[str, Any], Path], None] | None = None,
) -> None:
    """Write NAME.json, NAME.md and NAME.png, and print the report; in smoke mode into a folder that is removed.

    The figures are written first, so that a defect of the report or the picture does not lose them.
    """
    with ExitStack() as stack:
        out = given.out
        if given.smoke and out is None:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        results, images = (out, out) if out is not None else (RESULTS, IMAGES)
        for folder in (results, images):
            folder.mkdir(parents=True, exist_ok=True)
        write_rows(results / f"{name}.json", document)
        text = report(document)
        (results / f"{name}.md").write_text(text, encoding="utf-8")
        if draw is not None:
            draw(document, images / f"{name}.png")
    print(text)
