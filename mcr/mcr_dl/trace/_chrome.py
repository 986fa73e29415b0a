# SPDX-License-Identifier: Apache-2.0
"""The traces of all ranks as one trace-event file, for Perfetto (ui.perfetto.dev) and chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from mcr_dl.records.log import Record
from mcr_dl.trace import _files
from mcr_dl.trace._files import Trace

Event = dict[str, Any]
_THREADS = 1  # of a rank's process: the number of its first track; each thread has one for regions and one for calls


def _arguments(record: Record) -> Event:
    """The details of a slice, shown on a click; absent values are left out."""
    values = {
        "group": record.group.name,
        "seq": record.seq,
        "backend": record.backend,
        "nbytes": record.nbytes,
        "dtype": record.dtype,
        "reduction": record.red,
        "root": record.root,
        "tag": record.tag,
        "in_count": record.in_count,
        "out_count": record.out_count,
        "in_splits": list(record.in_splits) or None,
        "out_splits": list(record.out_splits) or None,
        "sent_bytes": record.sent_bytes,
        "codec": record.codec,
        "error_bound": record.error_bound,
        "fused": record.fused or None,
        "caller": record.caller,
        "priority": record.priority or None,
        "key": record.key,
        "state": record.state,
    }
    return {name: value for name, value in values.items() if value is not None}


class _Lanes:
    """Puts overlapping works on separate tracks, as slices on one track must not cross."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._free: dict[str, list[int]] = {}  # by backend: the time when each lane is free again
        self._numbers: dict[tuple[str, int], int] = {}

    def place(self, backend: str, begin: int, end: int) -> int:
        lanes = self._free.setdefault(backend, [])
        lane = next((index for index, free in enumerate(lanes) if free <= begin), len(lanes))
        lanes[lane:] = [end] if lane == len(lanes) else [end, *lanes[lane + 1 :]]
        return self._numbers.setdefault((backend, lane), self._first + len(self._numbers))

    def names(self) -> Iterator[tuple[int, str]]:
        for (backend, lane), number in self._numbers.items():
            yield number, f"asynchronous, {backend}" + (f" ({lane + 1})" if lane else "")


class _Rank:
    """The events of one rank."""

    def __init__(self, trace: Trace, offset: int, zero: int, flows: Iterator[int]) -> None:
        self._trace, self._shift, self._flows = trace, offset - zero, flows
        threads = {record.thread for record in trace.records} | {region.thread for region in trace.regions}
        self._threads = {thread: index for index, thread in enumerate(sorted(threads))}
        self._lanes = _Lanes(_THREADS + 2 * len(threads))

    def _regions(self, thread: int) -> int:
        return _THREADS + 2 * self._threads[thread]

    def _calls(self, thread: int) -> int:
        return self._regions(thread) + 1

    def _slice(self, name: str, category: str, track: int, begin: int, end: int, **more: Any) -> Event:
        return {
            "name": name,
            "cat": category,
            "ph": "X",
            "ts": (begin + self._shift) / 1000,
            "dur": max(0, end - begin) / 1000,
            "pid": self._trace.rank,
            "tid": track,
            **more,
        }

    def _arrow(self, phase: str, flow: int, track: int, time: int) -> Event:
        """One end of an arrow between slices; it binds to the slice around the time."""
        event = {"name": "work", "cat": "flow", "ph": phase, "id": flow, "pid": self._trace.rank, "tid": track}
        return {**event, "ts": (time + self._shift) / 1000, **({"bp": "e"} if phase != "s" else {})}

    def _call(self, record: Record) -> Iterator[Event]:
        track, end = self._calls(record.thread), record.end if record.end is not None else self._trace.saved
        title = f"{record.name} [{record.backend or '-'}]"
        if not record.asynchronous:
            yield self._slice(title, "blocking", track, record.issue, end, args=_arguments(record))
            return
        handed = record.start if record.start is not None else end
        yield self._slice(f"start {title}", "issue", track, record.issue, handed, args=_arguments(record))
        works = self._lanes.place(record.backend or "-", record.issue, max(end, record.issue))
        yield self._slice(title, "asynchronous", works, record.issue, end, args=_arguments(record))
        flow = next(self._flows)
        yield self._arrow("s", flow, track, record.issue)
        yield self._arrow("t", flow, works, record.issue)
        wait = record.wait(self._trace.saved)
        if wait is not None:
            yield self._slice(f"wait {title}", "wait", track, *wait, args={"seq": record.seq})
            yield self._arrow("f", flow, track, wait[0])

    def events(self) -> Iterator[Event]:
        for record in sorted(self._trace.records, key=lambda record: record.issue):
            yield from self._call(record)
        for region in self._trace.regions:
            yield self._slice(region.name, "region", self._regions(region.thread), region.begin, region.end)
        yield from self._names()

    def _names(self) -> Iterator[Event]:
        host = self._trace.provenance.get("host", "?")
        rank = {"ph": "M", "pid": self._trace.rank}
        yield {**rank, "name": "process_name", "args": {"name": f"rank {self._trace.rank} ({host})"}}
        yield {**rank, "name": "process_sort_index", "args": {"sort_index": self._trace.rank}}
        with_regions = {region.thread for region in self._trace.regions}
        tracks = [(self._regions(thread), f"regions, thread {thread}") for thread in sorted(with_regions)]
        with_calls = {record.thread for record in self._trace.records}
        tracks += [(self._calls(thread), f"calls, thread {thread}") for thread in sorted(with_calls)]
        for track, name in [*tracks, *self._lanes.names()]:
            yield {**rank, "tid": track, "name": "thread_name", "args": {"name": name}}
            yield {**rank, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}}


def chrome(traces: Sequence[Trace]) -> dict[str, Any]:
    """One trace-event document of all ranks, their clocks aligned; times are in µs from the first event on.

    Each rank is a process with a track for the regions and one for the calls of each thread (blocking calls, starts of
    asynchronous ones, waits), and as many tracks for asynchronous works of each backend as run at a time. Arrows lead
    from the start of a work to the wait for it.
    """
    offsets = _files.offsets(traces)
    begins = [
        time + offset
        for trace, offset in zip(traces, offsets, strict=True)
        for time in (*(record.issue for record in trace.records), *(region.begin for region in trace.regions))
    ]
    zero, flows = min(begins, default=0), count(1)
    events = [
        event
        for trace, offset in zip(traces, offsets, strict=True)
        for event in _Rank(trace, offset, zero, flows).events()
    ]
    clocks = {str(trace.rank): {"method": trace.clock.method, "error_ns": trace.clock.error} for trace in traces}
    other = {"clocks": clocks, "lost": {str(trace.rank): trace.lost for trace in traces}, **traces[0].provenance}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}
