# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/syndicate_forms.py: calls in the forms of plans, which take turns."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

import mcr_dl
from mcr_dl.base.documents import write_rows
from mcr_dl.schedule import step
from mcr_dl.schedule.syndicate.execution import Document
from mcr_dl.schedule.syndicate.iteration import Iteration
from mcr_dl.testing.plans import Planned

Way = list[tuple[str, list[str]]]
"""Form and channels of each call."""

LIMIT = 5000  # iterations after which something is wrong


def plan(name: str, way: Way) -> Document:
    """The document of a plan that issues the motifs of calls in turns, each call on a lane of its own."""
    motifs = [(motif, call) for call, (_, channels) in enumerate(way) for motif in range(len(channels))]
    calls = [[form, channels, [call] * len(channels)] for call, (form, channels) in enumerate(way)]
    return {"name": name, "calls": calls, "order": [[call, motif, 0] for motif, call in sorted(motifs)]}


def starter(op: str, nbytes: int) -> Callable[[], Any]:
    """Starts the call on its own tensors."""
    n = mcr_dl.get_world_size()
    count = -(-nbytes // 4 // n) * n
    value, result = torch.zeros(count), torch.zeros(count)
    if op == "all_reduce":
        return lambda: mcr_dl.all_reduce(value, async_op=True)
    assert op == "all_to_all"
    return lambda: mcr_dl.all_to_all_single(result, value, async_op=True)


def measure(calls: list[tuple[str, int]], ways: dict[str, Way], rounds: int) -> dict[str, float]:
    """Median ms of an iteration by plan."""

    def make(_iteration: Iteration, _most: int) -> list[Document]:
        return [plan(name, way) for name, way in ways.items()]

    starters = [starter(op, nbytes) for op, nbytes in calls]
    with Planned(make, rounds=rounds) as planned:
        for number in range(LIMIT):
            step()
            works = [start() for start in starters]
            for work in works:
                work.wait()
            if planned.phase == "steady":
                break
            if planned.phase == "off" or number == LIMIT - 1:
                raise SystemExit(f"no plan: {planned.events}")
        taken = {name: [each for turn in planned.turns if turn.name == name for each in turn.times] for name in ways}
    return {name: median(times) for name, times in taken.items()}


def main(cases: list[tuple[list[tuple[str, int]], dict[str, Way]]], rounds: int, output: str) -> None:
    """Measure all cases; rank 0 writes the figures, slowest rank each."""
    mcr_dl.init_process_group(["gloo", "mpi"])
    found = []
    for calls, ways in cases:
        mine = measure(calls, ways, rounds)
        values = torch.tensor(list(mine.values()), dtype=torch.float64)
        mcr_dl.all_reduce(values, op=mcr_dl.ReduceOp.MAX)
        found.append(dict(zip(mine, values.tolist(), strict=True)))
        if mcr_dl.get_rank() == 0:
            print(f"{calls}: done", flush=True)
    if mcr_dl.get_rank() == 0:
        write_rows(Path(output), {"cases": found})
    mcr_dl.destroy_process_group()


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
