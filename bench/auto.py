# SPDX-License-Identifier: Apache-2.0
"""How close `auto` comes to the best candidate, and how it compares with mpi4py and torch.distributed.

After ``mcr-tune --quick``: for every operation and size, `auto` and every candidate in interleaved rounds in one pair
of ranks. For all_reduce also `auto`, mpi4py and torch.distributed's gloo, each alone in its own ranks, in sequence.
Several passes, each in new ranks; ratios are taken within a pass, and their medians reported. Writes
``docs/results/auto.{json,md}`` and ``docs/images/auto.png``.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import auto_rank
import script
from auto_rank import SIZES, Times
from auto_report import draw, markdown
from mcr_dl import _C
from mcr_dl.bench.ranks import run_local

PEERS = ("auto", "mpi4py", "gloo")  # torch.distributed's gloo


def one_pass(operations: list[str], sizes: list[int], table: str | None, budget: float) -> dict[str, Any]:
    """Run new ranks; returns rank 0's results."""
    with tempfile.TemporaryDirectory() as folder:
        output = f"{folder}/pass.json"
        with run_local(auto_rank.measure_all, (operations, sizes, table, budget, output)) as ranks:
            ranks.wait()
            if ranks.first_failure is not None:
                sys.exit(f"rank {ranks.first_failure[0]} failed")
        result: dict[str, Any] = json.loads(Path(output).read_text())
    return result


def peer_pass(sizes: list[int], table: str | None, shuffle: random.Random) -> dict[str, dict[str, float]]:
    """all_reduce in each way alone, in random order: bytes -> way -> µs."""
    mpiexec, peer = Path(sys.prefix) / "bin" / "mpiexec", str(Path(__file__).with_name("auto_peer_rank.py"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MCR_DL_MPI_LIB": "mpich"}
    result: dict[str, dict[str, float]] = {}
    for who in shuffle.sample(PEERS, len(PEERS)):
        with tempfile.TemporaryDirectory() as folder:
            arguments = [who, table or "", f"{folder}/store", *map(str, sizes)]
            command = [mpiexec, "-n", "2", sys.executable, peer, *arguments]
            done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        if not done.stdout:
            sys.exit(f"{who} failed: {done.stderr}")
        for nbytes, time in json.loads(done.stdout).items():
            result.setdefault(nbytes, {})[who] = time
    return result


def ratios(passes: list[Times]) -> dict[str, dict[str, dict[str, float]]]:
    """By operation and bytes: speed of `auto` over the best candidate's (median over passes), and median times."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for operation, sizes in passes[0].items():
        for nbytes in sizes:
            points = [each[operation][nbytes] for each in passes]
            others = [name for name in points[0] if name != "auto"]
            row = {name: statistics.median(point[name] for point in points) for name in points[0]}
            row["ratio"] = statistics.median(min(point[name] for name in others) / point["auto"] for point in points)
            result.setdefault(operation, {})[nbytes] = row
    return result


def compared(passes: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """By bytes: median times, and the median over passes of each other way's time over `auto`'s."""
    result = {}
    for nbytes in passes[0]:
        points = [each[nbytes] for each in passes]
        row = {who: statistics.median(point[who] for point in points) for who in PEERS}
        for who in PEERS[1:]:
            row[f"{who} / auto"] = statistics.median(point[who] / point["auto"] for point in points)
        result[nbytes] = row
    return result


def main() -> None:
    """Measure, report, and print whether the targets are met."""
    parser = script.parser(__doc__, reports=True)
    parser.set_defaults(sizes=SIZES)
    parser.add_argument("--table", help="the tuning table (this machine's in the user's cache)")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--budget", type=float, default=0.4, help="seconds per point and pass")
    parser.add_argument("--ops", nargs="+", default=_C.operations())
    given = script.parse(parser, passes=1, budget=0.02, ops=["all_reduce", "barrier"], sizes=SIZES[:2])
    passes, peers, facts, shuffle = [], [], {}, random.Random(1)
    for index in range(given.passes):
        print(f"pass {index + 1} of {given.passes}", flush=True)
        facts = one_pass(given.ops, given.sizes, given.table, given.budget)
        passes.append(facts.pop("times"))
        if "all_reduce" in given.ops:
            peers.append(peer_pass(given.sizes, given.table, shuffle))
    document = {
        "date": str(date.today()),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "passes": given.passes,
        "budget_seconds": given.budget,
        "table": Path(facts["table"]).name or "none",
        "libraries": facts["libraries"],
        "points": ratios(passes),
        "peers": compared(peers) if peers else {},
    }
    script.publish(given, "auto", document, markdown(document), draw if document["peers"] else None)


if __name__ == "__main__":
    main()
