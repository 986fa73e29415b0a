# SPDX-License-Identifier: Apache-2.0
"""The time of a program (MCR-DL paper, Figures 1 and 12): computation, and communication by operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mcr_dl.records.log import Record
from mcr_dl.trace._files import Trace

Span = tuple[int, int]
WHOLE = "all"


@dataclass(frozen=True)
class Breakdown:
    """Seconds of one rank, or means over ranks. ``exposed`` by operation: some thread was in a call or in a wait.

    ``overlapped`` is the time in which asynchronous works ran while no thread was; it is part of ``compute``.
    """

    name: str
    total: float
    exposed: dict[str, float]
    overlapped: float

    @property
    def communication(self) -> float:
        """All exposed time."""
        return sum(self.exposed.values())

    @property
    def compute(self) -> float:
        """The rest of the time, in which the program was not in calls or waits."""
        return max(0.0, self.total - self.communication)


def _exposed(record: Record, saved: int) -> list[Span]:
    """When the call blocked the thread that made it, or one that waited for it."""
    end = saved if record.end is None else record.end
    if not record.asynchronous:
        return [(record.issue, end)]
    spans = [(record.issue, end if record.start is None else record.start)]
    wait = record.wait(saved)
    return spans if wait is None else [*spans, wait]


def _running(record: Record, saved: int) -> Span:
    return record.issue, saved if record.end is None else record.end


def union(spans: Iterable[Span]) -> list[Span]:
    """The union of the spans: in order, without overlaps."""
    result: list[Span] = []
    for begin, end in sorted(spans):
        if end <= begin:
            continue
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((begin, end))
    return result


def _clip(spans: Iterable[Span], windows: Sequence[Span]) -> list[Span]:
    """The parts of the spans that lie in the windows; both are in order and without overlaps."""
    result: list[Span] = []
    first = 0
    for begin, end in spans:
        while first < len(windows) and windows[first][1] <= begin:
            first += 1
        place = first
        while place < len(windows) and windows[place][0] < end:
            result.append((max(begin, windows[place][0]), min(end, windows[place][1])))
            place += 1
    return result


def _length(spans: Iterable[Span]) -> int:
    return sum(end - begin for begin, end in spans)


def _by_operation(trace: Trace, windows: Sequence[Span]) -> dict[str, float]:
    """Exposed seconds by operation. If threads are in several calls at once, the call that began first counts."""
    named = sorted((*span, record.name) for record in trace.records for span in _exposed(record, trace.saved))
    seconds: dict[str, float] = {}
    done = 0
    for begin, end, name in named:
        if end > max(begin, done):
            seconds[name] = seconds.get(name, 0.0) + _length(_clip([(max(begin, done), end)], windows)) / 1e9
        done = max(done, end)
    return {name: value for name, value in sorted(seconds.items()) if value > 0}


def _of(trace: Trace, name: str, windows: list[Span]) -> Breakdown:
    exposed = union(span for record in trace.records for span in _exposed(record, trace.saved))
    running = union(_running(record, trace.saved) for record in trace.records if record.asynchronous)
    hidden = _length(_clip(running, windows)) - _length(_clip(running, _clip(exposed, windows)))
    return Breakdown(name, _length(windows) / 1e9, _by_operation(trace, windows), hidden / 1e9)


def whole(trace: Trace) -> Breakdown:
    """From the rank's first call to the end of its last one."""
    if not trace.records:
        return Breakdown(WHOLE, 0.0, {}, 0.0)
    ends = [max(_running(record, trace.saved)[1], record.wait_end or 0) for record in trace.records]
    return _of(trace, WHOLE, [(min(record.issue for record in trace.records), max(ends))])


def by_region(trace: Trace) -> list[Breakdown]:
    """For each region name, in the order of first appearance: the total time inside all regions of that name."""
    ordered = sorted(trace.regions, key=lambda region: region.begin)
    names = dict.fromkeys(region.name for region in ordered)
    return [
        _of(trace, name, union((region.begin, region.end) for region in ordered if region.name == name))
        for name in names
    ]


def mean(parts: Sequence[Breakdown]) -> Breakdown:
    """The mean over ranks, under the first one's name."""
    count = len(parts)
    names = sorted({name for part in parts for name in part.exposed})
    return Breakdown(
        parts[0].name,
        sum(part.total for part in parts) / count,
        {name: sum(part.exposed.get(name, 0.0) for part in parts) / count for name in names},
        sum(part.overlapped for part in parts) / count,
    )


def common_regions(traces: Sequence[Trace]) -> list[str]:
    """The names of regions that all ranks have, in the order of their first appearance on rank 0."""
    ordered = sorted(traces[0].regions, key=lambda region: region.begin)
    names = [{region.name for region in trace.regions} for trace in traces]
    return [name for name in dict.fromkeys(region.name for region in ordered) if all(name in each for each in names)]


def tables(traces: Sequence[Trace]) -> dict[str, list[Breakdown]]:
    """For each region that all ranks have (without regions: for the whole trace), the breakdown of each rank."""
    names = common_regions(traces)
    if not names:
        return {WHOLE: [whole(trace) for trace in traces]}
    ranks = [{part.name: part for part in by_region(trace)} for trace in traces]
    return {name: [rank[name] for rank in ranks] for name in names}


def left_out(traces: Sequence[Trace]) -> dict[str, list[int]]:
    """The regions that ``tables`` leaves out, as not all ranks have them, each with the ranks that do."""
    ranks: dict[str, list[int]] = {}
    for trace in traces:
        for name in dict.fromkeys(region.name for region in trace.regions):
            ranks.setdefault(name, []).append(trace.rank)
    return {name: those for name, those in ranks.items() if len(those) < len(traces)}
