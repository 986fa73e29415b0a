# SPDX-License-Identifier: Apache-2.0
"""A training iteration of an unmodified program, from its log, as a graph for the planner.

The log has the calls of all threads in the order of their times, and the waits of asynchronous ones; the gaps between
them are computation. A wait that found its call complete has left no time: the call then counts as needed where it
ended, which is never later than the wait. Structure and computation are rank 0's. A call's time is the shortest of all
ranks, as the others also wait for the last rank to call.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.planner import motifs
from mcr_dl.planner.graph import BACK, Call, Channel, Graph, Node, Option, Piece
from mcr_dl.records.log import Record

_MOST = 16  # iterations that are looked at, the last ones
AS_IT_IS = "as it is"  # the only form of a call that a plan leaves unchanged


class Event(NamedTuple):
    """Where the program enters a call or a wait. ``back``: iterations since the call was made."""

    wait: bool
    call: int
    back: int


def signature(record: Record) -> tuple[Any, ...]:
    """The identity of a call in every iteration. The sizes of a vectored one may change."""
    sizes = () if record.vectored else (record.in_count, record.out_count)
    return (record.group.key, record.op, record.vectored, record.dtype, record.root, record.asynchronous, *sizes)


def period(signatures: Sequence[tuple[Any, ...]]) -> int:
    """The number of calls after which the calls repeat themselves, from some call to the last one.

    Raises InvalidArgumentError if there are no two equal iterations at the end, which make up a third of the calls.
    """
    count, newest = len(signatures), signatures[::-1]
    # Calls from the newest on that equal those so many calls before, by that number. A run within an earlier one, which
    # ends at `end`, is known up to there (the Z algorithm), so that the time is linear.
    runs, begin, end = [0] * count, 0, 0
    for each in range(1, count // 2 + 1):
        run = min(end - each, runs[each - begin]) if each < end else 0
        while run < count - each and newest[run] == newest[run + each]:
            run += 1
        if run >= each and run >= count // 3:
            return each
        runs[each] = run
        if each + run > end:
            begin, end = each, each + run
    message = f"expected calls that repeat themselves in at least two iterations, got {count} calls that do not"
    raise InvalidArgumentError(f"capture: {message}: log more iterations, or without the calls before and after them")


def iterations(records: Sequence[Record], calls: int | None) -> list[list[Record]]:
    """The calls of the last iterations, oldest first; of ``calls`` each, or of as few as possible."""
    signatures = list(map(signature, records))
    length = period(signatures) if calls is None else calls
    if length > len(records):
        raise InvalidArgumentError(f"capture: expected at least {length} calls, got {len(records)}")
    found = [list(records[-length:])]
    while len(found) < _MOST and len(records) >= length * (len(found) + 1):
        end = len(records) - length * len(found)
        if signatures[end - length : end] != signatures[-length:]:
            break
        found.insert(0, list(records[end - length : end]))
    return found


def _returned(record: Record) -> int:
    """When the program went on after it had made the call."""
    if record.asynchronous:
        return record.issue if record.start is None else record.start
    assert record.end is not None
    return record.end


def _events(found: Sequence[Sequence[Record]], place: int) -> tuple[list[Event], list[int]]:
    """The events of an iteration, and the computation after each, in ns."""
    begin, end = found[place][0].issue, found[place + 1][0].issue
    spans = []
    for back in range(min(place, 1) + 1):
        for index, record in enumerate(found[place - back]):
            if back == 0:
                spans.append((record.issue, _returned(record), Event(False, index, 0)))
            needed = record.end if record.wait_begin is None else record.wait_begin
            if record.asynchronous and needed is not None and begin <= needed < end:
                spans.append((needed, max(needed, record.wait_end or 0), Event(True, index, back)))
    spans.sort()
    starts = [start for start, _, _ in spans[1:]] + [end]
    gaps = [max(0, start - returned) for start, (_, returned, _) in zip(starts, spans, strict=True)]
    return [event for _, _, event in spans], gaps


def times(found: Sequence[Sequence[Record]]) -> list[int]:
    """ns of each call of an iteration on one rank: the median over the iterations."""

    def time(record: Record) -> int:
        assert record.end is not None
        # A call may end before it is known to be started.
        begin = record.issue if record.start is None or record.start >= record.end else record.start
        return max(1, record.end - begin)

    return [statistics.median_low(map(time, column)) for column in zip(*found, strict=True)]


def _shortest(ranks: Sequence[Sequence[Record]], found: Sequence[Sequence[Record]]) -> list[int]:
    """The times of the calls: the shortest of all ranks that make the same calls."""
    rows = [times(found)]
    for records in ranks[1:]:
        finished = _finished(records)
        if len(finished) < len(found[-1]):  # it does not take part in these calls
            continue
        others = iterations(finished, len(found[-1]))
        same = [signature(record)[1:] for record in others[-1]] == [signature(record)[1:] for record in found[-1]]
        rows += [times(others)] if same else []
    return [min(column) for column in zip(*rows, strict=True)]


def _finished(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.end is not None and record.backend is not None]


def call_of(record: Record) -> Call | None:
    """The call as the motif algebra has it; None: the plan leaves it as it is."""
    if record.vectored or record.peer or record.op not in motifs.ONE_TENSOR + motifs.BLOCKS:
        return None
    ranks = len(record.group.ranks)
    count = max(record.in_count, record.out_count)
    if record.op in motifs.BLOCKS:
        count //= ranks
    return Call(record.op, count, record.dtype, ranks, record.root or 0)


def as_it_is(record: Record, time: int, channel: str | None = None) -> Option:
    """The only option of a call that a plan leaves unchanged."""
    assert record.backend is not None
    return Option(AS_IT_IS, (Piece(channel or record.backend, time, (), record.op),))


def _costs(records: Sequence[Record], times: Sequence[int]) -> tuple[dict[str, Any], ...]:
    points: dict[tuple[str, str], dict[int, int]] = {}
    for record, time in zip(records, times, strict=True):
        if call_of(record) is not None and record.backend is not None:
            sizes = points.setdefault((record.backend, record.op), {})
            sizes[record.nbytes] = min(time, sizes.get(record.nbytes, time))
    return tuple(
        {"channel": backend, "op": op, "points": [list(point) for point in sorted(sizes.items())]}
        for (backend, op), sizes in points.items()
    )


def capture(ranks: Sequence[Sequence[Record]], calls: int | None = None) -> Graph:
    """The graph of an iteration. Its channels are the backends of the log, with the costs that were measured there.

    ``ranks``: the records of each rank, rank 0's first. ``calls``: of an iteration; None: as few as repeat themselves,
    which are too few if an iteration consists of equal calls, such as DDP's all_reduces of buckets of one size.

    Raises InvalidArgumentError if the calls do not repeat themselves in three iterations at least: the last one has no
    end, and another one is needed for waits of calls of the iteration before.
    """
    finished = _finished(ranks[0])
    found = iterations(finished, calls)
    compared = (calls or 0) * (len(found) + 1)
    if calls is not None and len(found) < 3 and compared <= len(finished):
        message = f"expected calls that repeat themselves every {calls} calls, got {compared} at the end that do not"
        raise InvalidArgumentError(f"capture: {message}: give another number of calls, or leave it out")
    shortest = _shortest(ranks, found)

    def node(index: int, key: str, after: tuple[str, ...]) -> Node:
        record = found[-1][index]
        call = call_of(record)
        return (
            Node(key, after, options=(as_it_is(record, shortest[index]),))
            if call is None
            else Node(key, after, call=call)
        )

    names = dict.fromkeys(record.backend for record in found[-1] if record.backend is not None)
    channels = tuple(Channel(name, (name,)) for name in names)
    return Graph(channels, graph_nodes(found, node), _costs(found[-1], shortest))


def graph_nodes(
    found: Sequence[Sequence[Record]], node: Callable[[int, str, tuple[str, ...]], Node]
) -> tuple[Node, ...]:
    """Computation and calls of an iteration, in program order.

    ``node``: makes the node of a call from its number in the iteration, its key and the keys of the nodes before it.
    Raises InvalidArgumentError for fewer than three iterations.
    """
    if len(found) < 3:
        raise InvalidArgumentError(f"capture: expected three equal iterations at least, got {len(found)}: log more")
    inner = [_events(found, place) for place in range(1, len(found) - 1)]
    events = list(Counter(tuple(each) for each, _ in inner).most_common(1)[0][0])
    gaps = [each for known, each in inner if known == events]
    compute = [statistics.median_low(column) for column in zip(*gaps, strict=True)]
    waited = {event.call for event in events if event.wait}
    nodes: list[Node] = []
    last, pending = f"compute {len(events) - 1}{BACK}", []
    keys = [f"{record.op} {index}" for index, record in enumerate(found[-1])]
    for place, (event, time) in enumerate(zip(events, compute, strict=True)):
        record = found[-1][event.call]
        if not event.wait:
            nodes.append(node(event.call, keys[event.call], (last,)))
        if event.wait or not record.asynchronous:
            pending.append(keys[event.call] + BACK * event.back)
        if place == len(events) - 1:  # nothing waited for these: they end with the iteration
            pending += [
                keys[index] for index, each in enumerate(found[-1]) if each.asynchronous and index not in waited
            ]
        nodes.append(Node(f"compute {place}", (last, *dict.fromkeys(pending)), time=time))
        last, pending = f"compute {place}", []
    return tuple(nodes)
