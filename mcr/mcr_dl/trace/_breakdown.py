# SPDX-License-Identifier: Apache-2.0
"""The time of a program (MCR-DL paper, Figures 1 and 12): computation, and communication by operation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
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


def _parts(spans: Sequence[Span], windows: Iterable[Span]) -> Iterator[tuple[int, Span]]:
    """The parts of the spans that lie in the windows, each with the index of its span.

    Both are in order and without overlaps. The time depends on the spans in the windows, not on all spans.
    """
    for begin, end in windows:
        place = bisect_right(spans, begin, key=lambda span: span[1])
        while place < len(spans) and spans[place][0] < end:
            yield place, (max(begin, spans[place][0]), min(end, spans[place][1]))
            place += 1


def _clip(spans: Sequence[Span], windows: Iterable[Span]) -> list[Span]:
    return [part for _, part in _parts(spans, windows)]


def _length(spans: Iterable[Span]) -> int:
    return sum(end - begin for begin, end in spans)


class _Times:
    """When calls of a rank were exposed, and when asynchronous ones ran."""

    def __init__(self, trace: Trace) -> None:
        self._running = union(_running(record, trace.saved) for record in trace.records if record.asynchronous)
        # If threads are in several calls at once, the call that began first counts.
        self._exposed: list[Span] = []
        self._names: list[str] = []
        done = 0
        for begin, end, name in sorted(
            (*span, record.name) for record in trace.records for span in _exposed(record, trace.saved)
        ):
            if end > max(begin, done):
                self._exposed.append((max(begin, done), end))
                self._names.append(name)
            done = max(done, end)

    def breakdown(self, name: str, windows: list[Span]) -> Breakdown:
        """The breakdown of the time in the windows."""
        exposed: dict[str, int] = {}
        for place, (begin, end) in _parts(self._exposed, windows):
            operation = self._names[place]
            exposed[operation] = exposed.get(operation, 0) + end - begin
        running = _clip(self._running, windows)
        hidden = _length(running) - _length(_clip(running, _clip(self._exposed, windows)))
        seconds = {operation: value / 1e9 for operation, value in sorted(exposed.items())}
        return Breakdown(name, _length(windows) / 1e9, seconds, hidden / 1e9)


def whole(trace: Trace) -> Breakdown:
    """From the rank's first call to the end of its last one."""
    if not trace.records:
        return Breakdown(WHOLE, 0.0, {}, 0.0)
    ends = [max(_running(record, trace.saved)[1], record.wait_end or 0) for record in trace.records]
    return _Times(trace).breakdown(WHOLE, [(min(record.issue for record in trace.records), max(ends))])


def by_region(trace: Trace) -> list[Breakdown]:
    """For each region name, in the order of first appearance: the total time inside all regions of that name."""
    spans: dict[str, list[Span]] = {}
    for region in sorted(trace.regions, key=lambda region: region.begin):
        spans.setdefault(region.name, []).append((region.begin, region.end))
    times = _Times(trace)
    return [times.breakdown(name, union(each)) for name, each in spans.items()]


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
