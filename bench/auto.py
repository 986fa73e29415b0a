# SPDX-License-Identifier: Apache-2.0
"""How close `auto` comes to the best candidate, and how it compares with mpi4py and torch.distributed.

After ``mcr-tune --quick``, or with ``--first-start``, where each pass begins with an empty cache and `auto` measures in
its first three seconds. For every operation and size, `auto` and every candidate in interleaved rounds in one pair of
ranks. For all_reduce also `auto`, mpi4py and torch.distributed's gloo, each alone in its own ranks, in sequence.
Several passes, each in new ranks; ratios are taken within a pass, and their medians reported. Points whose ratio is
not yet certain to 0.8 % are measured in further passes. Writes ``docs/results/auto.{json,md}`` and
``docs/images/auto.png``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import date
from pathlib import Path
from typing import Any

import auto_rank
import script
from auto_rank import SIZES
from auto_report import draw, markdown
from mcr_dl import _C

TUNED = "`mcr-tune --quick`, then `python bench/auto.py` (table `{table}`)"
FIRST_START = "`python bench/auto.py --first-start --budget {budget:g}`"
AGAIN = " In each pass, `auto` measures again in its first three seconds."
PEERS = ("auto", "mpi4py", "gloo")  # torch.distributed's gloo
CERTAIN = 0.008  # the standard error of a median ratio
Points = dict[str, dict[str, dict[str, float]]]  # operation -> bytes, as text -> candidate -> µs
Samples = dict[str, dict[str, list[dict[str, float]]]]  # the same for each pass that measured the point


@contextmanager
def empty_cache() -> Iterator[None]:
    """Give the programs started in the block an empty cache, and no other table."""
    before = {name: os.environ.pop(name, None) for name in ("XDG_CACHE_HOME", "MCR_DL_TUNING_TABLE")}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        yield
    del os.environ["XDG_CACHE_HOME"]
    os.environ.update({name: value for name, value in before.items() if value is not None})


def peer_pass(sizes: list[int], table: str | None, shuffle: random.Random) -> dict[str, dict[str, float]]:
    """all_reduce in each way alone, in random order: bytes -> way -> µs."""
    mpiexec, peer = str(Path(sys.prefix) / "bin" / "mpiexec"), str(Path(__file__).with_name("auto_peer_rank.py"))
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


def _ratios_of(point: list[dict[str, float]]) -> list[float]:
    """The speed of `auto` over the best candidate's, in each pass.

    The best candidate is the one with the least median time. (The least time of each pass would be too low: of equal
    candidates, it is that of the one with the luckiest disturbances.)
    """
    best = min(set(point[0]) - {"auto"}, key=lambda name: statistics.median(times[name] for times in point))
    return [times[best] / times["auto"] for times in point]


def uncertain(samples: Samples) -> dict[str, list[int]]:
    """The points whose ratio needs more passes: operation -> bytes. Only the spread counts, not the ratio itself."""
    result: dict[str, list[int]] = {}
    for operation, sizes in samples.items():
        for nbytes, point in sizes.items():
            found = _ratios_of(point)
            middle = statistics.median(found)
            deviation = 1.48 * statistics.median(abs(ratio - middle) for ratio in found)  # of a normal distribution
            if 1.25 * deviation / math.sqrt(len(found)) > CERTAIN:
                result.setdefault(operation, []).append(int(nbytes))
    return result


def ratios(samples: Samples) -> Points:
    """By operation and bytes: median times over the passes, the median ratio, and the number of passes."""
    result: Points = {}
    for operation, sizes in samples.items():
        for nbytes, point in sizes.items():
            row = {name: statistics.median(times[name] for times in point) for name in point[0]}
            row |= {"ratio": statistics.median(_ratios_of(point)), "passes": len(point)}
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


def one_pass(given: argparse.Namespace, points: dict[str, list[int]], samples: Samples) -> dict[str, Any]:
    """Measure these points in new ranks, add their times to ``samples``, and return facts about the ranks."""
    facts = script.samples(auto_rank.measure_all, points, given.table, given.budget)
    for operation, sizes in facts.pop("times").items():
        for nbytes, times in sizes.items():
            samples.setdefault(operation, {}).setdefault(nbytes, []).append(times)
    return facts


def _tuned(facts: dict[str, Any]) -> str:
    return TUNED.format(table=Path(facts["table"]).name or "none")


def main() -> None:
    """Measure, report, and print whether the targets are met."""
    parser = script.parser(__doc__, reports=True)
    parser.add_argument("--table", help="the tuning table (this machine's in the user's cache)")
    parser.add_argument("--first-start", action="store_true", help="begin each pass with an empty cache")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--most-passes", type=int, default=25, help="for points that vary from pass to pass")
    parser.add_argument("--budget", type=float, default=0.4, help="seconds per point and pass")
    parser.add_argument("--ops", nargs="+", default=_C.operations())
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, metavar="BYTES")
    given = script.parse(parser, passes=1, most_passes=1, budget=0.02, ops=["all_reduce", "barrier"], sizes=SIZES[:2])
    samples: Samples = {}
    peers, facts, shuffle = [], {}, random.Random(1)
    points = {operation: [0] if operation == "barrier" else given.sizes for operation in given.ops}
    for index in range(max(given.passes, given.most_passes)):
        if index >= given.passes and not (points := uncertain(samples)):
            break
        print(f"pass {index + 1}: {sum(map(len, points.values()))} points", flush=True)
        with empty_cache() if given.first_start else nullcontext():
            facts = one_pass(given, points, samples)
            if index < given.passes and "all_reduce" in given.ops:
                peers.append(peer_pass(given.sizes, given.table, shuffle))
    document = {
        "date": str(date.today()),
        "machine": script.machine(),
        "passes": given.passes,
        "budget_seconds": given.budget,
        "way": FIRST_START.format(budget=given.budget) if given.first_start else _tuned(facts),
        "remark": AGAIN if given.first_start else "",
        "libraries": facts["libraries"],
        "points": ratios(samples),
        "peers": compared(peers) if peers else {},
    }
    script.publish(given, "auto", document, markdown, draw if document["peers"] else None)


if __name__ == "__main__":
    main()
