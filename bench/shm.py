# SPDX-License-Identifier: Apache-2.0
"""The backend shm against MPICH, Open MPI, gloo, DeepSpeed and copies: 4 B to 16 MiB, blocking and asynchronous.

All candidates of a job take turns, on one host. Open MPI needs its own launcher, so it has a job of its own, in which
it takes turns with shm. DeepSpeed's all_reduce takes part where DeepSpeed is installed: run this with
.venv-integrations/bin/python. Writes docs/results/shm.md and shm.json, and docs/images/shm.png.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import script
import shm_rank
from markdown_text import paragraph, size_text, table

OPENMPI = script.ROOT / "build" / "openmpi"
MISSING = "-"
LEAST_COPIES = 1 << 16  # below, most of the time of copies is Python's
EXTENSIONS = script.ROOT / "build" / "deepspeed"
Points = dict[tuple[str, int], dict[str, list[float]]]


def _openmpi_samples(*arguments: Any, ranks: int) -> dict[str, Any] | None:
    """The samples of a job under Open MPI's launcher; None without Open MPI."""
    library = next(iter(sorted(OPENMPI.glob("lib/libmpi.so.*"))), None)
    if library is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "samples.json"
        variables = {
            "MCR_DL_MPI_LIB": str(library),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [str(OPENMPI / "bin" / "mpiexec"), "--oversubscribe", "-n", str(ranks), sys.executable]
        command += [str(Path(shm_rank.__file__)), json.dumps([["shm", "mpi"], *arguments, str(output)])]
        subprocess.run(command, env={**os.environ, **variables}, check=True)
        found: dict[str, Any] = json.loads(output.read_text())
        return found


def _points(job: dict[str, Any]) -> Points:
    return {(point["operation"], point["nbytes"]): point["times"] for point in job["points"]}


def _ratio(
    times: dict[str, list[float]], names: list[str], middle: Callable[[list[float]], float], mine: str = "shm"
) -> float:
    """How many times longer the fastest of these takes than shm."""
    return min(middle(times[name]) for name in names) / middle(times[mine])


def _time_cells(times: dict[str, list[float]], other: dict[str, list[float]] | None) -> list[str]:
    least = {name: f"{min(values):,.2f}" for name, values in times.items()}
    mpich = min(min(values) for name, values in times.items() if name.startswith("mpi"))
    columns = [least.get(name, MISSING) for name in ("shm", shm_rank.SHARED, shm_rank.ASYNC)]
    columns += [f"{mpich:,.2f}", MISSING if other is None else f"{min(other['mpi']):,.2f}"]
    return columns + [
        least.get(name, MISSING) for name in ("gloo", shm_rank.DEEPSPEED, shm_rank.MEMCPY, shm_rank.COPIES)
    ]


def _ratio_cells(nbytes: int, times: dict[str, list[float]], other: dict[str, list[float]] | None) -> list[str]:
    others = [name for name in times if name.startswith("mpi") or name == "gloo"]
    cells = [f"{_ratio(times, others, middle):.2f}" for middle in (min, statistics.median)]
    cells.append(f"{_ratio(times, others, min, shm_rank.SHARED):.2f}")
    for middle in (min, statistics.median):
        cells.append(MISSING if other is None else f"{_ratio(other, ['mpi'], middle):.2f}")
    cells.append(f"{_ratio(times, [shm_rank.DEEPSPEED], min):.2f}" if shm_rank.DEEPSPEED in times else MISSING)
    cells.append(f"{min(times[shm_rank.ASYNC]) / min(times['shm']):.2f}")
    for mine in ("shm", shm_rank.SHARED):
        known = nbytes >= LEAST_COPIES and shm_rank.COPIES in times
        cells.append(f"{1 / _ratio(times, [shm_rank.COPIES], min, mine):.2f}" if known else MISSING)
    return cells


def _tables(points: Points, others: Points, operation: str) -> list[str]:
    """The times of an operation, and their ratios."""
    header = ["size", "shm", "shared", "async + wait", "mpich", "open mpi", "gloo", "deepspeed", "memcpy", "copies"]
    ratios = ["size", "mpich, gloo / shm", "medians", "mpich, gloo / shared", "open mpi / shm", "medians"]
    ratios += ["deepspeed / shm", "async / blocking", "shm / copies", "shared / copies"]
    found = {size: (times, others.get((op, size))) for (op, size), times in points.items() if op == operation}
    names = {size: size_text(size) if size else "none" for size in found}
    first = [[names[size], *_time_cells(times, other)] for size, (times, other) in found.items()]
    second = [[names[size], *_ratio_cells(size, times, other)] for size, (times, other) in found.items()]
    return [*table(header, first), *table(ratios, second)]


def markdown(found: dict[str, Any]) -> str:
    """The report."""
    ranks = " ".join(str(job["mpich"]["ranks"]) for job in found["jobs"])
    deepspeed = found["deepspeed"]
    lines = [
        "# shm against MPI and gloo",
        "",
        *paragraph(
            f"`python bench/shm.py --ranks {ranks}` on {date.today()}: {script.machine()}, "
            f"load {found['load']:.1f} before the run; torch {torch.__version__}"
            f"{'' if deepspeed is None else f', DeepSpeed {deepspeed}'}."
        ),
        *paragraph(
            f"float32, through Python, all candidates of a job in turns, after {shm_rank.WARM_UP} calls of each. The "
            "first table of an operation has times in µs of the slowest rank, minima over rounds; sizes are those of "
            "one rank's tensor. "
            "`shared` is shm with inputs from `empty_shared()`, `mpich` the best of MPICH's variants, `deepspeed` "
            "DeepSpeed's all_reduce in shared memory, whose ranks wait without giving up their core, `memcpy` torch's "
            "`target.copy_(source)`, most of whose time is Python and torch for small sizes. `copies` are the copies "
            "between the ranks' memories that no algorithm of the operation avoids, by `copy_`, on all ranks at once; "
            "for all_reduce without the additions."
        ),
        *paragraph(
            "The second table divides the time of the fastest other library by shm's (above 1: shm is faster): of "
            "MPICH and gloo, of Open MPI in its own job against shm there, and of DeepSpeed. Columns called `medians` "
            "use medians instead of minima. `async / blocking` divides shm's asynchronous call with wait by its "
            "blocking call, `shm / copies` shm's time by that of the copies."
        ),
        "![shm against the others](../images/shm.png)",
        "",
    ]
    for job in found["jobs"]:
        points = _points(job["mpich"])
        others = _points(job["openmpi"]) if job["openmpi"] is not None else {}
        for operation in dict.fromkeys(operation for operation, _ in points):
            lines += [f"## {operation}, {job['mpich']['ranks']} ranks", "", *_tables(points, others, operation)]
    return "\n".join(lines)


def draw(found: dict[str, Any], path: Path) -> None:
    """The ratios by size, for each operation, in the first job."""
    job = found["jobs"][0]
    series = {"the faster of MPICH and gloo": (_points(job["mpich"]), ["mpi", "mpi:p2p", "gloo"])}
    if job["openmpi"] is not None:
        series["Open MPI"] = (_points(job["openmpi"]), ["mpi"])
    operations = [op for op in dict.fromkeys(op for op, _ in _points(job["mpich"])) if op != "barrier"]
    panels = max(len(operations), 1)
    figure, grid = script.pyplot().subplots(1, panels, figsize=(12, 3.4), layout="constrained", sharey=True)
    for axes, operation in zip(grid if len(operations) > 1 else [grid], operations, strict=False):
        for label, (points, names) in series.items():
            mine = {size: times for (op, size), times in points.items() if op == operation}
            ratios = [_ratio(times, [name for name in names if name in times], min) for times in mine.values()]
            axes.plot(list(mine), ratios, "o-", label=label)
        axes.axhline(1, color="0.5", linewidth=1)
        axes.set_xscale("log", base=2)
        ticks = sorted({size for op, size in series["the faster of MPICH and gloo"][0] if op == operation})[::3]
        axes.set_xticks(ticks, [size_text(size) for size in ticks])
        axes.set_title(operation, fontsize=11)
        axes.set_ylim(0, 8)
        axes.grid(alpha=0.3)
    figure.supxlabel("size of one rank's tensor", fontsize=10)
    figure.supylabel("time / shm's time", fontsize=10)
    if operations:
        (grid[0] if len(operations) > 1 else grid).legend(fontsize=8)
    script.save(figure, path)


def _job(given: Namespace, ranks: int) -> dict[str, Any]:
    arguments = (given.operations, given.sizes, given.budget)
    print(f"{ranks} ranks: MPICH and gloo", file=sys.stderr, flush=True)
    mpich = script.samples(shm_rank.measure, ["shm", "mpi", "gloo"], *arguments, ranks=ranks)
    print(f"{ranks} ranks: Open MPI", file=sys.stderr, flush=True)
    return {"mpich": mpich, "openmpi": _openmpi_samples(*arguments, ranks=ranks)}


def _deepspeed_version() -> str | None:
    try:
        return version("deepspeed")
    except PackageNotFoundError:
        return None


def main() -> None:
    """Measure and report."""
    parser = script.parser(__doc__, reports=True)
    parser.add_argument("--budget", type=float, default=0.1, help="seconds for each candidate and point (0.1)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2], help="numbers of ranks, two jobs each (2)")
    parser.set_defaults(operations=list(shm_rank.OPERATIONS), sizes=list(shm_rank.SIZES))
    given = script.parse(parser, budget=0.002, operations=["all_reduce", "barrier"], sizes=[4, 1 << 16])
    load = os.getloadavg()[0]
    os.environ.update({"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(EXTENSIONS)})
    found = {"load": load, "deepspeed": _deepspeed_version(), "jobs": [_job(given, ranks) for ranks in given.ranks]}
    script.publish(given, "shm", found, markdown, draw)


if __name__ == "__main__":
    main()
