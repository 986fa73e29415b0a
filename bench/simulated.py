# SPDX-License-Identifier: Apache-2.0
"""Simulated times against measured ones: striped, compressed and emulated calls on ranks of this machine.

Measures the parts (native calls alone, copies, combinations, codecs), simulates whole calls with these costs, and
measures them among the parts.
"""

from __future__ import annotations

import json
import os
import statistics
from datetime import date
from typing import Any

import script
import simulated_rank
from markdown_text import size_text, table
from mcr_dl import _C
from simulated_rank import CallRow, PartRow, TaskRow
from simulated_schedules import EMULATED, whole

SIZES = [1 << 16, 1 << 18, 1 << 20, 1 << 22]
UNIT = 1024  # of a core
BACKENDS = ["mpi", "gloo", "stripe(gloo,mpi)"]
STRIPED = ("stripe(gloo,mpi)", "stripe(gloo,mpi,25)", "stripe(gloo,mpi,75)")
CODECS = ("bf16", "int8")

INTRODUCTION = """\
# Simulated and measured times

`bench/simulated.py` on {date}: {machine}. Medians of {rounds} interleaved rounds, each a mean over 4 to 64 calls; a
call begins when the last rank begins it, and ends when the last one has ended it. First the parts are timed: native
calls, each alone, in the non-blocking form that schedules use, with an input that the core has just written if a host
task comes before them; copies, combinations and codecs, on all ranks at once, after as much other memory as the
call's other tasks touch. Then `simulate()` walks the engine's schedules with these costs; no constant is fitted.
Resources are the host's cores (each library takes as much of them as it used when it ran alone) and each rank's
thread, which runs one copy, combination or codec at a time. `least` compares the shortest rounds, which other
programs on the machine disturb least. The simulation serves to compare plans: its times are too short for calls of
two ranks with a codec, in which the ranks wait for each other more often than in the parts alone.
"""


def wholes(sizes: list[int]) -> list[CallRow]:
    """The calls: kind, name, bytes."""
    names = [("striped", name) for name in STRIPED]
    names += [("compressed", f"{backend}|{codec}") for backend in ("mpi", "gloo") for codec in CODECS]
    names += [("emulated", f"{op} on gloo") for op in EMULATED]
    return [(kind, name, nbytes) for nbytes in sizes for kind, name in names]


def parts(sizes: list[int], ranks: int) -> list[PartRow]:
    """The native calls that they consist of: operation, backend, bytes, and the size of the whole call."""
    found: list[PartRow] = []
    for kind, name, length in wholes(sizes):
        made = whole(kind, name, length, ranks)
        for op, backend, nbytes, fresh in made.issues():
            entry = (op, backend, nbytes, made.touched() if fresh else 0, length)
            if entry not in found:
                found.append(entry)
    return found


def host_tasks(sizes: list[int], ranks: int) -> list[TaskRow]:
    """The host's tasks that they consist of: kind, element type, codec, bytes, and the size of the whole call."""
    found: list[TaskRow] = []
    for form, name, length in wholes(sizes):
        made = whole(form, name, length, ranks)
        dtype = EMULATED[name.partition(" ")[0]][0] if form == "emulated" else "float32"
        for kind, nbytes in made.host_tasks():
            codec = made.codec if kind in ("encode", "decode") else ""
            entry = (kind, "float32" if kind == "copy" else dtype, codec, nbytes, made.touched(), length)
            if entry not in found:
                found.append(entry)
    return found


def model_of(report: dict[str, Any], way: str, nbytes: int) -> _C.CostModel:
    """The cost model of the measurements, from medians (``ns``) or minima, for calls of one size."""
    model = _C.CostModel()
    capacity = (os.cpu_count() or 1) * UNIT
    cores = model.add_resource("cores", "all", capacity)
    thread = model.add_resource("thread", "rank", UNIT, 1)
    tasks: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for kind, dtype, codec, size, touched, length in report["tasks"]:
        if length == nbytes:
            types = "any" if kind == "copy" else _C.dtype_class(dtype)
            timed = report["times"][json.dumps([kind, dtype, codec, size, touched])]
            tasks.setdefault((kind, types, codec), []).append((size, timed[way]))
    for (kind, types, codec), points in tasks.items():
        model.add_cost(kind, codec, types=types, demands=[(cores, UNIT), (thread, 0)], points=sorted(points))
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    used: dict[tuple[str, str], list[float]] = {}
    for op, backend, size, touched, length in report["parts"]:
        timed = report["times"][json.dumps([op, backend, size, touched])]
        if length == nbytes:
            found.setdefault((op, backend), []).append((size, timed[way]))
            # A message has a task at either end, and each rank is at both ends of one.
            used.setdefault((op, backend), []).append(timed["cores"] / (2 if op == "send" else 1))
    for (op, backend), points in found.items():
        share = min(capacity, round(statistics.mean(used[op, backend]) * UNIT))
        model.add_cost("issue", backend, op, demands=[(cores, share)], points=points)
    return model


def predicted(report: dict[str, Any], row: CallRow, way: str) -> int:
    """Nanoseconds of a call according to the model."""
    kind, name, nbytes = row
    ranks = report["ranks"]
    made = whole(kind, name, nbytes, ranks)
    pairs = [(part, 0) for part in made.parts]
    jobs = [_C.Job(each, rank, pairs, made.codec) for rank, each in enumerate(made.schedules)]
    end: int = _C.simulate(model_of(report, way, nbytes), jobs, [list(range(ranks))], together=True)["end"]
    return end


def measured(ranks: int, sizes: list[int], rounds: int) -> dict[str, Any]:
    """All times with one number of ranks."""
    calls, native = wholes(sizes), parts(sizes, ranks)
    tasks = host_tasks(sizes, ranks)
    arguments = (native, tasks, calls, rounds, BACKENDS)
    environment = {"MCR_DL_TUNING_TABLE": "none"}
    times = script.samples(simulated_rank.measure, *arguments, ranks=ranks, environment=environment, limit=2000.0)
    report: dict[str, Any] = {"ranks": ranks, "tasks": tasks, "parts": native, "times": times, "calls": []}
    for row in calls:
        timed = report["times"][json.dumps(row)]
        entry: dict[str, Any] = {"call": row}
        for way in ("ns", "least"):
            entry[way] = {"predicted": predicted(report, row, way), "measured": timed[way]}
        report["calls"].append(entry)
    return report


def _ratio(entry: dict[str, Any], way: str) -> float:
    return float(entry[way]["predicted"] / entry[way]["measured"])


def _summary(report: dict[str, Any]) -> list[list[str]]:
    rows = []
    for kind in dict.fromkeys(entry["call"][0] for entry in report["calls"]):
        entries = [entry for entry in report["calls"] if entry["call"][0] == kind]
        cells = []
        for way in ("ns", "least"):
            ratios = sorted(_ratio(entry, way) for entry in entries)
            near = sum(0.9 <= ratio <= 1.1 for ratio in ratios)
            cells += [
                f"{near} of {len(ratios)}",
                f"{statistics.median(ratios):.2f}",
                f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
            ]
        rows.append([f"{kind}, {report['ranks']} ranks", *cells])
    return rows


def markdown(document: dict[str, Any]) -> str:
    """The report."""
    lines = [INTRODUCTION.format(**document)]
    header = ["calls", "within 10 %", "median predicted / measured", "range"]
    summary = [row for report in document["reports"] for row in _summary(report)]
    lines += table([*header, *(f"least: {text}" for text in header[1:])], summary)
    for report in document["reports"]:
        lines += [f"## {report['ranks']} ranks", ""]
        rows = []
        for entry in report["calls"]:
            kind, name, nbytes = entry["call"]
            times = [f"{entry['ns'][key] / 1000:.0f}" for key in ("predicted", "measured")]
            ratios = [f"{_ratio(entry, way):.2f}" for way in ("ns", "least")]
            rows.append([f"{kind} {name}".replace("|", "\\|"), size_text(nbytes), *times, *ratios])
        lines += table(["call", "size", "predicted µs", "measured µs", "ratio", "least: ratio"], rows)
    return "\n".join(lines)


def main() -> None:
    """Measure, simulate and report."""
    parser = script.parser(__doc__, reports=True)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="bytes")
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 3])
    parser.add_argument("--rounds", type=int, default=15)
    given = script.parse(parser, sizes=SIZES[:1], ranks=[2], rounds=2)
    document = {
        "date": str(date.today()),
        "machine": script.machine(),
        "rounds": given.rounds,
        "reports": [measured(ranks, given.sizes, given.rounds) for ranks in given.ranks],
    }
    script.publish(given, "simulated", document, markdown)


if __name__ == "__main__":
    main()
