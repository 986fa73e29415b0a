# SPDX-License-Identifier: Apache-2.0
"""ByteScheduler's plan of a training step and its course in one timeline, for Perfetto or chrome://tracing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from mcr_dl.base.errors import McrError
from mcr_dl.schedule import timelines
from mcr_dl.schedule.bytescheduler import credit, planning
from mcr_dl.schedule.bytescheduler.issue import Issuer, Partition
from mcr_dl.schedule.timelines import COMPUTATION, PLAN, RANK, WAITING, Row, Span, Traced, named, operation, span

_THREADS = {COMPUTATION: "computation", WAITING: "waiting for gradients"}


@dataclass
class _Record:
    operations: list[tuple[str, int, int, int]] = field(default_factory=list)  # name, ready, issued, ended
    forward: list[Span] = field(default_factory=list)
    backward: list[Span] = field(default_factory=list)

    def add(self, partitions: Sequence[Partition]) -> None:
        """Add the operations of one backward pass, whose last gradients are ready at its end."""
        self.operations += [(each.name, each.ready, each.issued, each.ended) for each in partitions]
        last = max((each.ready for each in partitions if each.shard is None), default=0)
        before = [end for _, end in self.forward if end <= last]
        if before:
            self.backward.append((before[-1], last))


@contextmanager
def traced(
    module: nn.Module, issuer: Issuer, known: planning.Costs | None, plan: planning.Plan, rank: int, path: Any
) -> Iterator[Traced]:
    """Record the steps in the block; the caller synchronizes before it and at its end."""
    if known is None:
        raise McrError("ByteScheduler: traced(): expected a plan, which the fourth step makes, got none yet")
    timelines.require_possible("ByteScheduler: traced()", path, running=issuer.recording)
    record, result, begin = _Record(), Traced(), [0]
    hooks = [
        module.register_forward_pre_hook(lambda *_: begin.__setitem__(0, time.perf_counter_ns())),
        module.register_forward_hook(lambda *_: record.forward.append((begin[0], time.perf_counter_ns()))),
    ]
    issuer.record(record.add)
    try:
        yield result
    finally:
        waits = issuer.record(None)
        for hook in hooks:
            hook.remove()
    planned = known.simulated(plan.settings)
    result.planned_ms = (planned.end - known.backward - sum(known.forward)) / 1e6
    ends = [end for _, end in record.backward]
    for first, last in zip(ends, [*ends[1:], 1 << 63], strict=False):
        result.exposed_ms.append(sum(end - start for start, end in waits if first <= start < last) / 1e6)
    origin = record.backward[0][0] if record.backward else 0
    runs = known.runs(plan.settings)
    rows = [*_planned(known, planned, runs), *_measured(record, waits, origin, rank)]
    timelines.write(path, rows, str(plan), result)


def _planned(known: planning.Costs, timeline: credit.Timeline, runs: Sequence[Sequence[int]]) -> list[Row]:
    rows = [*named(PLAN, "the plan", _THREADS), span(PLAN, COMPUTATION, "backward", 0, known.backward)]
    for index, ((run, part), (begin, end)) in enumerate(zip(timeline.order, timeline.spans, strict=True)):
        rows += operation(PLAN, index, f"gradient {runs[run][0]}[{part}]", begin, end)
    now = known.backward
    for index, (members, complete) in enumerate(zip(runs, timeline.complete, strict=True)):
        begin = max(now, complete)
        if begin > now:
            rows.append(span(PLAN, WAITING, f"for gradient {members[0]}", now, begin))
        now = begin + sum(known.forward[each] for each in members)
        rows.append(span(PLAN, COMPUTATION, f"forward {index}", begin, now))
    return rows


def _measured(record: _Record, waits: Sequence[Span], origin: int, rank: int) -> list[Row]:
    rows = named(RANK, f"rank {rank}", _THREADS)
    for name, spans in (("forward", record.forward), ("backward", record.backward)):
        rows += [span(RANK, COMPUTATION, name, begin - origin, end - origin) for begin, end in spans]
    rows += [span(RANK, WAITING, "gradients", begin - origin, end - origin) for begin, end in waits]
    for index, (name, ready, issued, ended) in enumerate(record.operations):
        first, last = operation(RANK, index, name, issued - origin, ended - origin)
        rows += [{**first, "args": {"ready_ms": (ready - origin) / 1e6}}, last]
    return rows
