# SPDX-License-Identifier: Apache-2.0
"""The calls of a program's last iterations on this rank, and what a plan may change about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from mcr_dl import _C
from mcr_dl.base.operations import operation_of
from mcr_dl.libraries import registry
from mcr_dl.planner import capture, options
from mcr_dl.planner.graph import Call
from mcr_dl.records.log import Record

Needs = dict[tuple[int, str], tuple[str, list[int]]]


class Seen(NamedTuple):
    """A call as the core has seen it on this rank."""

    group: str
    signature: int  # of what makes calls of different iterations equal
    named: str  # the candidate that the program or a rule of MCR_DL_TUNE names; empty: none
    fixed: bool  # it must stay as it is


@dataclass(frozen=True)
class Iteration:
    """The calls of the last iterations on this rank, oldest iteration first.

    ``seen``: the calls of one iteration; ``groups``: the core group of each group, by first use; ``of_call``: the index
    of each call's group; ``used``: the candidate that each call uses without a plan.
    """

    found: Sequence[Sequence[Record]]
    seen: Sequence[Seen]
    groups: Sequence[_C.Group]
    of_call: Sequence[int]
    used: Sequence[str]

    @property
    def time(self) -> int:
        """ns of an iteration, the shortest one of those in the log."""
        begins = [each[0].issue for each in self.found]
        return min((end - begin for begin, end in pairwise(begins)), default=0)

    @property
    def threads(self) -> int:
        """How many threads have made the calls."""
        return len({record.thread for calls in self.found for record in calls})

    @property
    def calls(self) -> Sequence[Record]:
        """The calls of the last iteration."""
        return self.found[-1]

    def planned(self, index: int) -> Call | None:
        """A call as the motif algebra has it; None: a plan leaves it as it is."""
        return None if self.seen[index].fixed else capture.call_of(self.calls[index])

    def terms(self) -> list[list[Any]]:
        """The facts that must be equal on all ranks: sizes and backends of the groups, and the calls."""
        rows = [[len(group.ranks), *self.measured(index)] for index, group in enumerate(self.groups)]
        for group, seen, record in zip(self.of_call, self.seen, self.calls, strict=True):
            sizes = [] if record.vectored else _sizes(record)
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
        hosts = [name for name in core.backends if core._streams(name) is None and not _C.CandidateName(name).parts]
        return [name for name in hosts if registry.describe(name).measured]

    def channels(self, group: int) -> list[str]:
        """These, and the candidates that its calls use now."""
        used = [name for index, name in zip(self.of_call, self.used, strict=True) if index == group]
        return list(dict.fromkeys([*self.measured(group), *used]))

    def candidates(self, group: int, op: str, dtype: str) -> list[str]:
        """The channels for an operation: not those that the measurements of ``auto`` leave out, unless calls that need
        the operation use them now. Equal on all ranks, as these measurements are.
        """
        excluded = self.groups[group]._explain(op, 0, dtype, "SUM", "cpu", True)["excluded"]
        used: set[str] = set()
        for index, of_group in enumerate(self.of_call):
            call = self.planned(index) if of_group == group else None
            if call is not None and op in options.operations(call):
                used.add(self.used[index])
        return [name for name in self.channels(group) if name in used or name not in excluded]

    def needs(self) -> Needs:
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


def _sizes(record: Record) -> list[int]:
    """The sizes of a call that all ranks have alike: of a gather or scatter, only the root has both tensors."""
    operation = operation_of(record.op)
    return [record.nbytes] if operation.rooted and operation.blocks else [record.in_count, record.out_count]
