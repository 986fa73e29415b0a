# SPDX-License-Identifier: Apache-2.0
"""The last iterations of the program on this rank, from the log, and what all ranks must have alike of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from mcr_dl import _C
from mcr_dl.base import agreement
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.planner import capture
from mcr_dl.records import log as records
from mcr_dl.records.log import Record
from mcr_dl.runtime import state
from mcr_dl.schedule.syndicate import execution, measured
from mcr_dl.schedule.syndicate.iteration import Iteration, Seen
from mcr_dl.schedule.syndicate.known import KEPT, Known

_COMPLETE = timedelta(seconds=1)  # for the calls of the last iteration to be complete


class Captures:
    """Captures iterations, and remembers the candidates of their calls without a plan, as the log has the plan's."""

    def __init__(self) -> None:
        self._used: dict[tuple[str, int], str] = {}  # by group and signature
        self._planned: set[tuple[str, int]] = set()

    def follow(self, plan: execution.Document | None, seen: Sequence[Seen]) -> None:
        """From now on the log may have the plan's candidates of the calls of an iteration."""
        rows = [] if plan is None else plan["calls"]
        self._planned |= {(each.group, each.signature) for row, each in zip(rows, seen, strict=False) if row}

    def take(self, control: _C.PlanControl, seen: Sequence[Seen]) -> Iteration | None:
        """The last iterations on this rank, with these calls; None if the log has other calls."""
        control.flush(_COMPLETE)  # calls of groups that still follow an earlier plan
        period, names = len(seen), list(dict.fromkeys(each.group for each in seen))
        groups = [state.find(name) for name in names]
        deadline = time.monotonic() + _COMPLETE.total_seconds()
        while True:
            mine = _logged(names, KEPT * period)
            if all(each.end is not None for each in mine) or time.monotonic() > deadline:
                break
            time.sleep(0.0005)
        alike = [each.group.name for each in mine[-period:]] == [each.group for each in seen]
        if len(mine) < KEPT * period or any(each.end is None for each in mine) or None in groups or not alike:
            return None
        if not _whole(mine):
            return None
        found = capture.iterations(mine, period)
        of_call = [names.index(each.group) for each in seen]
        used = [self._used_by(call, record) for call, record in zip(seen, found[-1], strict=True)]
        return Iteration(found, seen, [each for each in groups if each is not None], of_call, used)

    def _used_by(self, call: Seen, record: Record) -> str:
        key = (call.group, call.signature)
        if key not in self._planned:
            self._used[key] = record.backend or ""
        return self._used.get(key, record.backend or "")


def _logged(names: Sequence[str], most: int) -> list[Record]:
    """The newest collectives of these groups in the log, oldest first, without the one that begins, and without those
    that failed before they were sent, which have no number.
    """
    window, before = 2 * most + 64, -1
    while True:
        found = records.records(since=max(_C.log_made() - window, 0))
        mine = [each for each in found if each.seq and not each.peer and each.group.name in names][:-1][-most:]
        if len(mine) == most or len(found) == before:
            return mine
        window, before = 2 * window, len(found)


def _whole(found: Sequence[Record]) -> bool:
    """Whether the log has left out no call of a group, as ``Log(ops=...)`` does: it counts these too."""
    numbers: dict[tuple[str, int], list[int]] = {}
    for each in found:
        numbers.setdefault(each.group.key, []).append(each.seq)
    return all(sorted(each) == [*range(max(each) - len(each) + 1, max(each) + 1)] for each in numbers.values())


def facts(iteration: Iteration, known: Mapping[str, Known]) -> dict[str, Any]:
    """This rank's facts of an iteration, in JSON's types, for ``common``."""
    usable = {key: each.digest() for key, each in known.items() if not execution.problem(each.plans, iteration)}
    return {
        "calls": iteration.terms(),
        "used": list(iteration.used),
        "times": capture.times(iteration.found),
        "time": iteration.time,
        "at": iteration.at(),
        "threads": iteration.threads,
        "known": usable,
        "lacks": measured.lacking(iteration, _ranks_here()),
    }


def _ranks_here() -> int:
    """The ranks of the job on this host."""
    current = state.current()
    return len(current.knowledge.same_node(current.launch.rank))


def common(values: Sequence[Any]) -> dict[str, Any]:
    """The facts of all ranks: the calls, and their shortest times over the ranks, which also wait for the last one.

    Raises InvalidArgumentError if the ranks can have no common plan.
    """
    if None in values:
        raise InvalidArgumentError(
            f"rank {values.index(None)} has other calls in its log, or not all: log all operations"
        )
    at: dict[str, int] = {}
    found_at: dict[str, tuple[int, int]] = {}  # by group: its number among those that a rank uses, and the rank
    for rank, value in enumerate(values):
        # Between two calls of one thread, another one may make any number of its own: a plan would not begin for these
        # at the same call on all ranks.
        if value["threads"] > 1:
            raise InvalidArgumentError(f"{value['threads']} threads make the calls of an iteration on rank {rank}")
        for index, (group, number) in enumerate(value["at"].items(), 1):
            if at.setdefault(group, number) != number:
                raise InvalidArgumentError(f"rank {rank} is at another call of group {group!r} than others")
            # Groups are measured in this order: with other orders, ranks of a ring of groups would wait in a circle.
            before, other = found_at.setdefault(group, (index, rank))
            if before != index:
                raise InvalidArgumentError(
                    f"expected one order of an iteration's groups, got group {group!r} as number {before} on rank "
                    f"{other} and as number {index} on rank {rank}"
                )
    agreement.require_equal("calls of an iteration", [value["calls"] for value in values])
    agreement.require_equal("candidates of an iteration's calls", [value["used"] for value in values])
    first = values[0]["known"]
    known = [key for key in sorted(first) if all(value["known"].get(key) == first[key] for value in values)]
    return {
        "calls": values[0]["calls"],
        "times": [min(column) for column in zip(*(value["times"] for value in values), strict=True)],
        "time": max(value["time"] for value in values),
        "known": known,
        "lacks": next((f"rank {rank}: {value['lacks']}" for rank, value in enumerate(values) if value["lacks"]), ""),
        "phases": max(value["phases"] for value in values),
        "left": _left([value["left"] for value in values]),
    }


def _left(values: Sequence[Any]) -> list[int] | None:
    """The iterations that all ranks left last: their calls, for how many ns they stayed, and what their begin took."""
    if None in values or len({calls for calls, _, _ in values}) > 1:
        return None
    return [values[0][0], min(stay for _, stay, _ in values), max(begin for _, _, begin in values)]
