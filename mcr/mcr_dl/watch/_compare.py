# SPDX-License-Identifier: Apache-2.0
"""``MCR_DL_DEBUG=detail``: whether all ranks of every group have made the same calls, compared a moment later.

Each rank leaves its new calls at the store, in numbered batches; the first rank of each group takes all of them away
and compares. Nothing of that is on the path of a call.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as torch_dist

from mcr_dl import _C, _documents
from mcr_dl.watch._alarm import decode
from mcr_dl.watch._diagnosis import difference

_Call = dict[str, Any]


class _Group:
    """What one rank has left, and, on the group's first rank, what it knows of all."""

    def __init__(self, ranks: list[int]) -> None:
        self.ranks = ranks
        self.next = 1  # the first collective that is not left yet
        self.batch = 0
        self.read = dict.fromkeys(ranks, 0)  # batches
        self.calls: dict[int, dict[int, _Call]] = {rank: {} for rank in ranks}

    def compare(self, name: str) -> str | None:
        """The first difference among the collectives that all have left; what is equal is forgotten."""
        common = set.intersection(*(set(calls) for calls in self.calls.values()))
        for seq in sorted(common):
            told = difference({rank: calls.pop(seq) for rank, calls in self.calls.items()})
            if told is not None:
                return f"the ranks have made different calls: collective {seq} of group '{name}' is {told}"
        return None


class Comparison:
    """One process's part in it."""

    def __init__(self, store: torch_dist.Store, rank: int) -> None:
        self._store, self._rank = store, rank
        self._groups: dict[str, _Group] = {}
        self._found = False

    def step(self) -> tuple[str, str] | None:
        """Leave what is new, and compare where this rank does that: the group and the text of the first difference."""
        if self._found:
            return None
        positions = _C.positions({label: group.next for label, group in self._groups.items()})
        for position in positions:
            group = self._groups.setdefault(position["label"], _Group(position["ranks"]))
            self._leave(position, group)
            if self._rank == group.ranks[0]:
                self._take(position["group"], group)
                told = group.compare(position["group"])
                if told is not None:
                    self._found = True
                    return position["group"], told
        return None

    def _leave(self, position: dict[str, Any], group: _Group) -> None:
        calls = [call for call in position["calls"] if call["seq"] >= group.next]
        if not calls or len(group.ranks) == 1:
            return
        self._store.set(self._key(position["group"], self._rank, group.batch), _documents.dumps(calls))
        group.batch += 1
        group.next = calls[-1]["seq"] + 1

    def _take(self, name: str, group: _Group) -> None:
        for rank in group.ranks:
            while self._store.check([key := self._key(name, rank, group.read[rank])]):
                for call in decode(self._store.get(key)):
                    group.calls[rank][call["seq"]] = call
                self._store.delete_key(key)
                group.read[rank] += 1

    @staticmethod
    def _key(name: str, rank: int, batch: int) -> str:
        return f"calls/{name}/{rank}/{batch}"
