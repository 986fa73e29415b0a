# SPDX-License-Identifier: Apache-2.0
"""Syndicate's plan of an iteration and its course in one timeline, for Perfetto or chrome://tracing."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from mcr_dl import _C
from mcr_dl.base.errors import McrError
from mcr_dl.commands.sizes import short_size_text
from mcr_dl.groups import default_group
from mcr_dl.planner import capture
from mcr_dl.records import log as records
from mcr_dl.records.log import Record
from mcr_dl.schedule import timelines
from mcr_dl.schedule.syndicate.known import Phase
from mcr_dl.schedule.syndicate.replanning import Replanner
from mcr_dl.schedule.timelines import (
    COMPUTATION,
    ITERATIONS,
    PLAN,
    RANK,
    WAITING,
    Row,
    Span,
    Traced,
    named,
    operation,
    span,
)


@dataclass(frozen=True)
class _Motif:
    name: str
    iteration: int
    begin: int
    end: int


@contextmanager
def traced(replanner: Replanner, rank: int, path: str | os.PathLike[str]) -> Iterator[Traced]:
    """Record the iterations in the block, and write them to ``path`` at its end; as ``Syndicate.traced``."""
    if replanner.phase is not Phase.STEADY:
        message = "Syndicate: traced(): expected a plan that stays, or that none is better"
        raise McrError(f"{message}, got {replanner.phase.value!r}")
    timelines.require_possible("Syndicate: traced()", path, running=replanner.begins is not None)
    result, first = Traced(), _C.log_made() + 1  # records have numbers from 1
    begins: list[int] = []
    replanner.control.trace()
    replanner.begins = begins
    try:
        yield result
        default_group.synchronize()
    finally:
        rows = replanner.control.traced()
        replanner.begins = None
    motifs = _motifs(rows)
    made = records.records(since=first)
    waits = [found for record in made if (found := _wait(record)) is not None]
    for begin, end in pairwise(begins):
        inside = [(max(start, begin), min(last, end)) for start, last in waits]
        result.exposed_ms.append(sum(max(0, last - start) for start, last in inside) / 1e6)
    planned, exposed = _planned(replanner)
    result.planned_ms = exposed / 1e6
    origin = begins[0] if begins else min((motif.begin for motif in motifs), default=0)
    name = "" if replanner.plan is None else replanner.plan["name"]
    timelines.write(path, [*planned, *_measured(motifs, made, waits, begins, origin, rank)], name, result)


def _wait(record: Record) -> Span | None:
    """When the program waited for a call; None if it did not."""
    if not record.asynchronous:
        return None if record.end is None else (record.issue, record.end)
    return None if record.wait_end is None else record.wait(record.wait_end)


def _motifs(rows: Sequence[tuple[int, int, str, int, int, str, int, int]]) -> list[_Motif]:
    """The motifs that have ended; of several messages, from the beginning of the first to the end of the last."""
    parts: dict[tuple[int, int, str], list[Span]] = defaultdict(list)
    for iteration, call, op, nbytes, motif, candidate, issued, ended in rows:
        if ended:
            name = f"{op} {short_size_text(nbytes)}, motif {motif} [{candidate}]"
            parts[iteration, call, name].append((issued, ended))
    found = []
    for (iteration, _, name), spans in parts.items():
        found.append(_Motif(name, iteration, min(begin for begin, _ in spans), max(end for _, end in spans)))
    return found


def _planned(replanner: Replanner) -> tuple[list[Row], int]:
    """An iteration as it was simulated, and the ns that its communication is exposed; nothing on other ranks than 0."""
    if replanner.simulated is None:
        return [], 0
    planner, plan = replanner.simulated
    rows = named(PLAN, f"the plan: {plan.name}", {COMPUTATION: "computation"})
    index = computed = 0
    nodes = planner.play(plan)[-1]
    origin = min((start for node in nodes for _, start, _ in node), default=0)
    for place, node in enumerate(planner.graph.nodes):
        for motif, (_, start, end) in enumerate(nodes[place]):
            begin, last = start - origin, end - origin
            if node.time is not None:
                computed += end - start
                rows.append(span(PLAN, COMPUTATION, node.key, begin, last))
                continue
            option = planner.options[place][plan.chosen[place]]
            label = "" if option.form == capture.AS_IT_IS else f", motif {motif}"
            rows += operation(PLAN, index, f"{node.key}{label} [{option.pieces[motif].channel}]", begin, last)
            index += 1
    return rows, max(0, round(plan.iteration) - computed)


def _measured(
    motifs: Sequence[_Motif],
    made: Sequence[Record],
    waits: Sequence[Span],
    begins: Sequence[int],
    origin: int,
    rank: int,
) -> list[Row]:
    rows = named(RANK, f"rank {rank}", {ITERATIONS: "iterations", WAITING: "waiting for calls"})
    for index, (begin, end) in enumerate(pairwise(begins)):
        rows.append(span(RANK, ITERATIONS, f"iteration {index}", begin - origin, end - origin))
    rows += [span(RANK, WAITING, "calls", begin - origin, end - origin) for begin, end in waits]
    for index, record in enumerate(made, start=len(motifs)):
        if record.end is not None:
            name = f"{record.name} {short_size_text(record.nbytes)} [{record.backend or '-'}]"
            rows += operation(RANK, index, name, record.issue - origin, record.end - origin)
    for index, motif in enumerate(motifs):
        first, last = operation(RANK, index, motif.name, motif.begin - origin, motif.end - origin)
        rows += [{**first, "args": {"iteration": motif.iteration}}, last]
    return rows
