# SPDX-License-Identifier: Apache-2.0
"""Graphs of iterations whose calls may use all backends of their groups, with costs measured at the iteration's sizes.

All ranks measure the same operations in the same order, between two calls of the program, and use the medians over the
ranks, in whole nanoseconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import combinations, starmap
from math import comb
from typing import Any, NamedTuple

from mcr_dl import _C
from mcr_dl.base import agreement
from mcr_dl.base.errors import McrError
from mcr_dl.commands.sizes import short_size_text
from mcr_dl.measure import memory
from mcr_dl.measure.cases import Case, Prepared
from mcr_dl.planner import capture, options
from mcr_dl.planner.graph import Channel, Graph, Node
from mcr_dl.schedule.syndicate.iteration import Iteration, Needs

_LIMIT = 2_000_000_000  # ns for repetitions, and for the largest sizes
_REPETITIONS = (3, 1)  # the most that fit into the limit; otherwise, the largest sizes are left out too
_SERIAL = 0.5  # two operations that overlap by less than this share of the shorter one use one resource

Agree = Callable[[list[int]], "list[int] | None"]


class Cost(NamedTuple):
    """The time of an operation on a channel; a list where the ranks agree on it."""

    group: int  # of the iteration's
    op: str
    dtype: str
    channel: str
    nbytes: int
    ns: int


Sharing = tuple[str, str, int]
"""Channel, other channel, percent: how much longer both together take than the longer one, of the shorter one."""


def measure(
    iteration: Iteration, lanes: Sequence[_C.Group], others: Sequence[_C.Group], agree: Agree
) -> dict[str, Any] | None:
    """Costs, and which channels share a resource. Collective over all ranks.

    Each operation is made once, but for its largest size; how often it is made then, and whether in its largest size,
    depends on the longest of these times over the ranks, so that slow networks do not stop the program for long.

    ``lanes`` and ``others``: for each group, two groups of its ranks on which nothing else runs. ``agree``: the largest
    values over the ranks; None, as the result is then, if not all of them come.
    """
    needs = iteration.needs()
    costs: list[Cost] = []
    for (group, op), (dtype, sizes) in needs.items():
        for channel in iteration.candidates(group, op, dtype):
            for nbytes in sizes[:-1] or sizes:
                call = _prepared(op, nbytes, dtype, channel, lanes[group])
                if call is not None:
                    costs.append(Cost(group, op, dtype, channel, nbytes, _timed(call)))
    first = agree([each.ns for each in costs])
    if first is None:
        return None
    largest = _largest(needs, costs, first)
    pair = _pair(needs)
    pairs = 0 if pair is None else comb(len(iteration.candidates(*pair, needs[pair][0])), 2)
    repetitions = affordable(first, [each.ns for each in largest], pairs)
    if repetitions:
        timed = []
        for each in [*costs, *largest]:
            call = _prepared(each.op, each.nbytes, each.dtype, each.channel, lanes[each.group])
            if call is not None:
                timed.append(each._replace(ns=min(_times(call, repetitions))))
        costs = timed
    elif pair is not None:
        sizes = needs[pair][1]
        needs = {pair: (needs[pair][0], sizes[:-1] or sizes)}
    shared = [] if pair is None else _sharing(iteration, pair, needs[pair], repetitions, (lanes, others))
    return {"rows": costs, "shared": shared}


def lacking(iteration: Iteration, here: int) -> str:
    """Why the tensors of the measurements do not fit into this host's memory, with so many ranks; empty if they do."""
    wanted = 0
    for (group, op), (dtype, sizes) in iteration.needs().items():
        wanted = max(wanted, memory.needed(op, sizes[-1:], dtype, iteration.groups[group].size(), here))
    wanted, left = 2 * wanted, memory.available()  # two calls at once, for channels that may share a resource
    if wanted <= left:
        return ""
    return f"measurements need {short_size_text(wanted)} of memory, of which its host has {short_size_text(left)}"


def _largest(needs: Needs, costs: Sequence[Cost], first: Sequence[int]) -> list[Cost]:
    """The costs of the largest sizes that were not made yet, by those of the size before, which took ``first``."""
    found = []
    for each, taken in zip(costs, first, strict=True):
        sizes = needs[each.group, each.op][1]
        if len(sizes) > 1 and each.nbytes == sizes[-2]:
            found.append(each._replace(nbytes=sizes[-1], ns=taken * sizes[-1] // each.nbytes))
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
        return Prepared(case, channel, group)
    except McrError:
        return None


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
) -> list[Sharing]:
    (group, op), (dtype, sizes), (lanes, others) = pair, need, groups
    found: list[Sharing] = []
    for one, other in combinations(iteration.candidates(group, op, dtype), 2):
        first = _prepared(op, sizes[-1], dtype, one, lanes[group])
        second = _prepared(op, sizes[-1], dtype, other, others[group])
        if first is None or second is None:
            continue
        alone = [min(_times(each, repetitions)) if repetitions else _timed(each) for each in (first, second)]
        both = min(_timed(first, second) for _ in range(max(1, repetitions)))
        found.append((one, other, max(0, both - max(alone)) * 100 // min(alone)))
    return found


def longest(values: list[list[int]]) -> list[int]:
    """The longest times over the ranks. Raises InvalidArgumentError if these have measured other operations."""
    agreement.require_equal("schedule: measured operations", [len(each) for each in values])
    return [max(column) for column in zip(*values, strict=True)]


def medians(values: list[Any]) -> dict[str, Any]:
    """The costs on which all ranks agree: medians, but of a message the longest time, as most ranks take no part."""
    given = [list(starmap(Cost, each["rows"])) for each in values]
    agreement.require_equal("schedule: measured operations", [[cost[:-1] for cost in costs] for costs in given])
    found: dict[str, Any] = {"rows": [], "shared": []}
    for costs in zip(*given, strict=True):
        times = [cost.ns for cost in costs]
        agreed = max(times) if costs[0].op == "send" else statistics.median_low(times)
        found["rows"].append(costs[0]._replace(ns=agreed))
    for rows in zip(*(each["shared"] for each in values), strict=True):
        one, other, _ = rows[0]
        found["shared"].append((one, other, statistics.median_low(percent for _, _, percent in rows)))
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


def _channels(iteration: Iteration, group: int, shared: Sequence[Sharing]) -> list[Channel]:
    found = []
    for candidate in iteration.channels(group):
        resources = list(_C.CandidateName(candidate).parts) or [_C.CandidateName(candidate).backend]
        for one, other, percent in shared:
            if candidate in (one, other) and percent > 100 * _SERIAL:
                resources.append(f"{one} and {other}")
        found.append(Channel(_name(iteration, group, candidate), tuple(dict.fromkeys(resources))))
    return found


def _model(iteration: Iteration, group: int, costs: Sequence[Sequence[Any]]) -> _C.CostModel:
    """The costs of a group's calls, by the names of its channels."""
    points: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for each in starmap(Cost, costs):
        if each.group == group:
            points.setdefault((each.channel, each.op), []).append((each.nbytes, each.ns))
    model = _C.CostModel()
    for (channel, op), measured in points.items():
        model.add_cost("issue", _name(iteration, group, channel), op, points=_growing(measured))
    return model


def _growing(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The points by size; a larger call never takes less time than a smaller one."""
    found: list[tuple[int, int]] = []
    for nbytes, taken in sorted(points):
        found.append((nbytes, max(taken, found[-1][1] if found else 1)))
    return found
