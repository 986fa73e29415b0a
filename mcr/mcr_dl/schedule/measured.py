# SPDX-License-Identifier: Apache-2.0
"""Graphs of iterations whose calls may use all backends of their groups, with costs measured at the iteration's sizes.

All ranks measure the same operations in the same order, between two calls of the program, and use the medians over the
ranks, in whole nanoseconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

from mcr_dl import _C
from mcr_dl.base import agreement
from mcr_dl.base.errors import McrError
from mcr_dl.libraries import registry
from mcr_dl.measure.cases import Case, Prepared, prepare, require_support
from mcr_dl.planner import capture, options
from mcr_dl.planner.graph import Call, Channel, Graph, Node
from mcr_dl.records.log import Record

_REPETITIONS = 3
_SERIAL = 0.5  # two operations that overlap by less than this share of the shorter one use one resource

Row = list[Any]  # group, operation, dtype, channel, bytes, ns


class Seen(NamedTuple):
    """A call as the core has seen it on this rank."""

    group: str
    signature: int  # of what makes calls of different iterations equal
    named: str  # the candidate that the program names; empty: none
    fixed: bool  # it must stay as it is


@dataclass(frozen=True)
class Iteration:
    """The calls of the last iterations on this rank, oldest iteration first.

    ``seen``: the calls of one iteration; ``groups``: the core group of each group, by first use; ``of_call``: the index
    of each call's group.
    """

    found: Sequence[Sequence[Record]]
    seen: Sequence[Seen]
    groups: Sequence[_C.Group]
    of_call: Sequence[int]

    @property
    def calls(self) -> Sequence[Record]:
        """The calls of the last iteration."""
        return self.found[-1]

    def planned(self, index: int) -> Call | None:
        """A call as the motif algebra has it; None: a plan leaves it as it is."""
        return None if self.seen[index].fixed else capture.call_of(self.calls[index])

    def terms(self) -> list[Row]:
        """The facts that must be equal on all ranks: sizes and backends of the groups, and the calls."""
        rows = [[len(group.ranks), *self.measured(index)] for index, group in enumerate(self.groups)]
        for group, seen, record in zip(self.of_call, self.seen, self.calls, strict=True):
            sizes = [] if record.vectored else [record.in_count, record.out_count]
            asynchronous = record.asynchronous and not self.groups[group]._any_form
            traits = [asynchronous, seen.fixed, seen.named]
            rows.append([group, record.op, record.vectored, record.dtype, *traits, *sizes])
        return rows

    def at(self) -> dict[str, int]:
        """The number of the newest collective of each group, by the group's name and first rank."""
        return {f"{each.name()}/{each.ranks[0]}": _C.newest_collective(each)[0] for each in self.groups}

    def measured(self, group: int) -> list[str]:
        """The host backends of a group that a plan may choose for its calls."""
        core = self.groups[group]
        hosts = [name for name in core.backends if core._streams(name) is None and not _C.Candidate(name).parts]
        return [name for name in hosts if registry.describe(name).measured]

    def channels(self, group: int) -> list[str]:
        """These, and the candidates that its calls use now."""
        used = [record.backend for index, record in zip(self.of_call, self.calls, strict=True) if index == group]
        return list(dict.fromkeys([*self.measured(group), *(name for name in used if name is not None)]))

    def needs(self) -> dict[tuple[int, str], tuple[str, list[int]]]:
        """By group and operation: the dtype, and sizes in bytes between which times of motifs are interpolated."""
        sizes: dict[tuple[int, str], list[tuple[int, str]]] = {}
        for index, (group, record) in enumerate(zip(self.of_call, self.calls, strict=True)):
            call = self.planned(index)
            if call is not None and record.nbytes > 0:
                for op in options.operations(call):
                    sizes.setdefault((group, op), []).append((record.nbytes, record.dtype))
        found = {}
        for key, each in sizes.items():
            largest, dtype = max(each)
            found[key] = dtype, sorted({largest, max(largest // 4, 1), max(min(each)[0] // 4, 1)})
        return found


def measure(iteration: Iteration, lanes: Sequence[_C.Group], others: Sequence[_C.Group]) -> dict[str, Any]:
    """Rows of costs, and which channels share a resource. Collective over all ranks.

    ``lanes`` and ``others``: for each group, two groups of its ranks on which nothing else runs.
    """
    needs = iteration.needs()
    rows: list[Row] = []
    for (group, op), (dtype, sizes) in needs.items():
        for channel in iteration.channels(group):
            for nbytes in sizes:
                call = _prepared(op, nbytes, dtype, channel, lanes[group])
                if call is not None:
                    rows.append([group, op, dtype, channel, nbytes, min(_times(call))])
    return {"rows": rows, "shared": _sharing(iteration, needs, lanes, others)}


def _prepared(op: str, nbytes: int, dtype: str, channel: str, group: _C.Group) -> Prepared | None:
    # Of messages, those between the first and the last rank count, which are on different hosts if any two are.
    root = group.size() - 1 if op == "send" else 0
    case = Case(op, nbytes, dtype, root=root, asynchronous=True)
    try:
        require_support(case, channel, group)
    except McrError:
        return None
    return prepare(case, channel, group)


def _times(call: Prepared) -> list[int]:
    call.call()
    return [_timed(call) for _ in range(_REPETITIONS)]


def _timed(*calls: Prepared) -> int:
    begin = time.perf_counter_ns()
    works = [work for call in calls for work in call.start()]
    for work in works:
        work.wait()
    return time.perf_counter_ns() - begin


def _sharing(
    iteration: Iteration,
    needs: dict[tuple[int, str], tuple[str, list[int]]],
    lanes: Sequence[_C.Group],
    others: Sequence[_C.Group],
) -> list[Row]:
    """[channel, other channel, percent]: how much longer both together take than the longer one, of the shorter one."""
    if not needs:
        return []
    (group, op), (dtype, sizes) = max(needs.items(), key=lambda item: item[1][1][-1])
    found: list[Row] = []
    for one, other in combinations(iteration.channels(group), 2):
        first = _prepared(op, sizes[-1], dtype, one, lanes[group])
        second = _prepared(op, sizes[-1], dtype, other, others[group])
        if first is None or second is None:
            continue
        alone = [min(_times(each)) for each in (first, second)]
        both = min(_timed(first, second) for _ in range(_REPETITIONS))
        found.append([one, other, max(0, both - max(alone)) * 100 // min(alone)])
    return found


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
    """The channel of a call as it is."""
    return _name(iteration, iteration.of_call[index], iteration.calls[index].backend or "")


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
