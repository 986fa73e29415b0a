# SPDX-License-Identifier: Apache-2.0
"""Graphs of iterations whose calls may use all backends of their groups, with costs measured at the iteration's sizes.

All ranks measure the same operations in the same order, between two calls of the program, and use the medians over the
ranks, in whole nanoseconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from math import comb
from typing import Any

from mcr_dl import _C
from mcr_dl.base import agreement
from mcr_dl.base.errors import McrError
from mcr_dl.commands.sizes import short_size_text
from mcr_dl.measure import memory
from mcr_dl.measure.cases import Case, Prepared, prepare, require_support
from mcr_dl.planner import capture, options
from mcr_dl.planner.graph import Channel, Graph, Node
from mcr_dl.schedule.syndicate.iteration import Iteration, Needs

_LIMIT = 2_000_000_000  # ns for repetitions, and for the largest sizes
_REPETITIONS = (3, 1)  # the most that fit into the limit; otherwise, the largest sizes are left out too
_SERIAL = 0.5  # two operations that overlap by less than this share of the shorter one use one resource

Row = list[Any]  # group, operation, dtype, channel, bytes, ns
Agree = Callable[[list[int]], "list[int] | None"]


def measure(
    iteration: Iteration, lanes: Sequence[_C.Group], others: Sequence[_C.Group], agree: Agree
) -> dict[str, Any] | None:
    """Rows of costs, and which channels share a resource. Collective over all ranks.

    Each operation is made once, but for its largest size; how often it is made then, and whether in its largest size,
    depends on the longest of these times over the ranks, so that slow networks do not stop the program for long.

    ``lanes`` and ``others``: for each group, two groups of its ranks on which nothing else runs. ``agree``: the largest
    values over the ranks; None, as the result is then, if not all of them come.
    """
    needs = iteration.needs()
    rows: list[Row] = []
    for (group, op), (dtype, sizes) in needs.items():
        for channel in iteration.candidates(group, op, dtype):
            for nbytes in sizes[:-1] or sizes:
                call = _prepared(op, nbytes, dtype, channel, lanes[group])
                if call is not None:
                    rows.append([group, op, dtype, channel, nbytes, _timed(call)])
    first = agree([row[-1] for row in rows])
    if first is None:
        return None
    largest = _largest(needs, rows, first)
    pair = _pair(needs)
    pairs = 0 if pair is None else comb(len(iteration.candidates(*pair, needs[pair][0])), 2)
    repetitions = affordable(first, [each for _, each in largest], pairs)
    if repetitions:
        rows += [row for row, _ in largest]
        for row in rows:
            group, op, dtype, channel, nbytes, _ = row
            call = _prepared(op, nbytes, dtype, channel, lanes[group])
            if call is not None:
                row[-1] = min(_times(call, repetitions))
        rows = [row for row in rows if row[-1]]
    elif pair is not None:
        sizes = needs[pair][1]
        needs = {pair: (needs[pair][0], sizes[:-1] or sizes)}
    shared = [] if pair is None else _sharing(iteration, pair, needs[pair], repetitions, (lanes, others))
    return {"rows": rows, "shared": shared}


def lacking(iteration: Iteration, here: int) -> str:
    """Why the tensors of the measurements do not fit into this host's memory, with so many ranks; empty if they do."""
    wanted = 0
    for (group, op), (dtype, sizes) in iteration.needs().items():
        wanted = max(wanted, memory.needed(op, sizes[-1:], dtype, iteration.groups[group].size(), here))
    wanted, left = 2 * wanted, memory.available()  # two calls at once, for channels that may share a resource
    if wanted <= left:
        return ""
    return f"measurements need {short_size_text(wanted)} of memory, of which its host has {short_size_text(left)}"


def _largest(needs: Needs, rows: Sequence[Row], first: Sequence[int]) -> list[tuple[Row, int]]:
    """The rows of the largest sizes that were not made yet, and the ns that each will take by the size before."""
    found = []
    for (group, op, dtype, channel, nbytes, _), taken in zip(rows, first, strict=True):
        sizes = needs[group, op][1]
        if len(sizes) > 1 and nbytes == sizes[-2]:
            found.append(([group, op, dtype, channel, sizes[-1], 0], taken * sizes[-1] // nbytes))
    return found


def affordable(first: Sequence[int], largest: Sequence[int], pairs: int) -> int:
    """How often each operation is timed; 0: only the smaller sizes count, as they were made first.

    ``first`` and ``largest``: ns of the operations in their smaller and largest sizes; ``pairs``: of channels.
    """
    longest = max([*first, *largest], default=0)
    for repetitions in _REPETITIONS:
        times = (1 + repetitions) * (sum(first) + sum(largest)) + pairs * (4 * repetitions + 2) * longest
        if times <= _LIMIT:
            return repetitions
    return 0


def _pair(needs: Needs) -> tuple[int, str] | None:
    """The group and the operation by which channels are compared: that of the largest messages."""
    return max(needs, key=lambda each: needs[each][1][-1], default=None)


def _prepared(op: str, nbytes: int, dtype: str, channel: str, group: _C.Group) -> Prepared | None:
    # Of messages, those between the first and the last rank count, which are on different hosts if any two are.
    root = group.size() - 1 if op == "send" else 0
    case = Case(op, nbytes, dtype, root=root, asynchronous=True)
    try:
        require_support(case, channel, group)
    except McrError:
        return None
    return prepare(case, channel, group)


def _times(call: Prepared, repetitions: int) -> list[int]:
    call.call()
    return [_timed(call) for _ in range(repetitions)]


def _timed(*calls: Prepared) -> int:
    begin = time.perf_counter_ns()
    works = [work for call in calls for work in call.start()]
    for work in works:
        work.wait()
    return time.perf_counter_ns() - begin


def _sharing(
    iteration: Iteration,
    pair: tuple[int, str],
    need: tuple[str, list[int]],
    repetitions: int,
    groups: tuple[Sequence[_C.Group], Sequence[_C.Group]],
) -> list[Row]:
    """[channel, other channel, percent]: how much longer both together take than the longer one, of the shorter one."""
    (group, op), (dtype, sizes), (lanes, others) = pair, need, groups
    found: list[Row] = []
    for one, other in combinations(iteration.candidates(group, op, dtype), 2):
        first = _prepared(op, sizes[-1], dtype, one, lanes[group])
        second = _prepared(op, sizes[-1], dtype, other, others[group])
        if first is None or second is None:
            continue
        alone = [min(_times(each, repetitions)) if repetitions else _timed(each) for each in (first, second)]
        both = min(_timed(first, second) for _ in range(max(1, repetitions)))
        found.append([one, other, max(0, both - max(alone)) * 100 // min(alone)])
    return found


def longest(values: list[list[int]]) -> list[int]:
    """The longest times over the ranks. Raises InvalidArgumentError if these have measured other operations."""
    agreement.require_equal("schedule: measured operations", [len(each) for each in values])
    return [max(column) for column in zip(*values, strict=True)]


def medians(values: list[Any]) -> dict[str, Any]:
    """The costs on which all ranks agree: medians, but of a message the longest time, as most ranks take no part."""
    agreement.require_equal("schedule: measured operations", [[row[:5] for row in each["rows"]] for each in values])

    def agreed(row: Row, times: Sequence[int]) -> Row:
        return [*row[:-1], max(times) if row[1] == "send" else statistics.median_low(times)]

    found: dict[str, Any] = {}
    for name in ("rows", "shared"):
        columns = zip(*(each[name] for each in values), strict=True)
        found[name] = [agreed(rows[0], [row[-1] for row in rows]) for rows in columns]
    return found


def graph(iteration: Iteration, times: Sequence[int], costs: dict[str, Any]) -> Graph:
    """The graph of an iteration. ``times``: ns of each call as it is; ``costs``: what the ranks have measured."""
    models = [_model(iteration, group, costs["rows"]) for group in range(len(iteration.groups))]
    channels = [_channels(iteration, group, costs["shared"]) for group in range(len(iteration.groups))]

    def node(index: int, key: str, after: tuple[str, ...]) -> Node:
        record, group = iteration.calls[index], iteration.of_call[index]
        call, named = iteration.planned(index), iteration.seen[index].named
        allowed = [each for each in channels[group] if not named or each.name == _name(iteration, group, named)]
        used = used_channel(iteration, index)
        allowed.sort(key=lambda each: each.name != used)
        found = () if call is None else options.of_call(call, allowed, models[group])
        return Node(key, after, options=found or (capture.as_it_is(record, times[index], used),))

    nodes = capture.graph_nodes(iteration.found, node)
    return Graph(tuple(each for of_group in channels for each in of_group), nodes)


def used_channel(iteration: Iteration, index: int) -> str:
    """The channel of a call without a plan."""
    return _name(iteration, iteration.of_call[index], iteration.used[index])


def candidate_of(channel: str) -> str:
    """The candidate of a channel of such a graph."""
    return channel.split(" of group ", maxsplit=1)[0]


def _name(iteration: Iteration, group: int, candidate: str) -> str:
    return candidate if len(iteration.groups) == 1 else f"{candidate} of group {group}"


def _channels(iteration: Iteration, group: int, shared: Sequence[Row]) -> list[Channel]:
    found = []
    for candidate in iteration.channels(group):
        resources = list(_C.Candidate(candidate).parts) or [_C.Candidate(candidate).backend]
        for one, other, percent in shared:
            if candidate in (one, other) and percent > 100 * _SERIAL:
                resources.append(f"{one} and {other}")
        found.append(Channel(_name(iteration, group, candidate), tuple(dict.fromkeys(resources))))
    return found


def _model(iteration: Iteration, group: int, rows: Sequence[Row]) -> _C.CostModel:
    """The costs of a group's calls, by the names of its channels."""
    points: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for of_group, op, _, channel, nbytes, taken in rows:
        if of_group == group:
            points.setdefault((channel, op), []).append((nbytes, taken))
    model = _C.CostModel()
    for (channel, op), each in points.items():
        model.add_cost("issue", _name(iteration, group, channel), op, points=_growing(each))
    return model


def _growing(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The points by size; a larger call never takes less time than a smaller one."""
    found: list[tuple[int, int]] = []
    for nbytes, taken in sorted(points):
        found.append((nbytes, max(taken, found[-1][1] if found else 1)))
    return found
