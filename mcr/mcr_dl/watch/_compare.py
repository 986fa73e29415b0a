# SPDX-License-Identifier: Apache-2.0
"""``MCR_DL_DEBUG=detail``: checks that all ranks of every group make the same calls.

Each rank leaves its new calls at the store, in numbered batches, ten times a second; the first rank of each group
collects and compares them: collectives here, sends and receives in _messages.py. None of this is on the path of a call.
At the end of the runtime all ranks wait until the last calls have been compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.base import documents
from mcr_dl.watch._alarm import decode
from mcr_dl.watch._diagnosis import call_text, collectives_text, difference, ranks_text
from mcr_dl.watch._messages import Messages, Taken

_Call = dict[str, Any]
_MOST_NAMED = 8  # messages without a match


class Verdict(NamedTuple):
    """The result of the comparison: the first difference with its group, and the ranks that did not take part."""

    group: str
    text: str
    missing: list[int]


class _Group:
    """The calls that one rank has left, and, on the group's first rank, the state of all ranks."""

    def __init__(self, name: str, ranks: list[int], counted: bool) -> None:
        self.name, self.ranks = name, ranks
        self.counted = counted  # its calls are the program's: all ranks end with the same number of them
        self.next = 1  # the first collective that is not left yet
        self.batch = 0
        self.unsent: deque[str] = deque()  # batches that are not at the store yet
        self.read = dict.fromkeys(ranks, 0)  # batches
        self.calls: dict[int, dict[int, _Call]] = {rank: {} for rank in ranks}
        self.messages = Messages(name)

    def prepare(self, calls: list[_Call], messages: list[tuple[Any, ...]], *, lost: bool) -> None:
        """Make a batch of new calls. ``lost``: some of the messages are not known."""
        new = [call for call in calls if call["seq"] >= self.next]
        if new:
            self.next = new[-1]["seq"] + 1
        if not self.counted:
            messages, lost = [], False  # they follow from the program's calls in another group
        if len(self.ranks) > 1 and (new or messages or lost):
            self.unsent.append(documents.dumps({"calls": new, "messages": messages, "lost": lost}))

    def add(self, rank: int, batch: dict[str, Any]) -> None:
        """Take a batch of a rank."""
        self.calls[rank].update((call["seq"], call) for call in batch["calls"])
        self.messages.add(rank, (Taken(*run) for run in batch["messages"]), lost=batch["lost"])

    def compare(self) -> str | None:
        """The first difference among the calls that can be compared now; equal ones are forgotten."""
        return self._told(self._compare_collectives() or self.messages.compare())

    def compare_ends(self, counts: dict[int, int]) -> str | None:
        """The first call that has no counterpart, from the number of each rank's collectives."""
        if not self.counted:
            return None
        return self._told(self._compare_counts(counts) or self.messages.compare_ends())

    def _compare_collectives(self) -> str | None:
        common = set.intersection(*(set(calls) for calls in self.calls.values()))
        for seq in sorted(common):
            forms = {rank: calls.pop(seq) for rank, calls in self.calls.items()}
            told = difference(forms)
            if told is not None:
                return f"collective {seq} of group '{self.name}' is {told}"
            if len({form["history"] for form in forms.values()}) > 1:
                return f"those of group '{self.name}' differ before collective {seq}"
        return None

    def _compare_counts(self, counts: dict[int, int]) -> str | None:
        if len(set(counts.values())) < 2:
            return None
        least = min(counts.values())
        short = [rank for rank, count in counts.items() if count == least]
        more, count = next((rank, count) for rank, count in counts.items() if count > least)
        call = self.calls[more].get(least + 1)
        what = f", then {call_text(call)}" if call else ""
        return (
            f"group '{self.name}' ends after {collectives_text(least)} on {ranks_text(short)}, but after {count} on "
            f"rank {more}{what}"
        )

    @staticmethod
    def _told(what: str | None) -> str | None:
        return what and f"the ranks have made different calls: {what}"


class Comparison:
    """One process's part in it. ``derived`` tells whether a group was made by a pass for its own calls."""

    def __init__(self, store: torch_dist.Store, rank: int, size: int, derived: Callable[[str], bool]) -> None:
        self._store, self._rank, self._size, self._derived = store, rank, size, derived
        self._groups: dict[str, _Group] = {}
        self._found = self._ended = self._judged = False

    def step(self) -> tuple[str, str] | None:
        """Leave new calls, and compare where this rank does that: the group and the text of the first difference."""
        if self._found:
            return None
        self._leave_new()
        return self._compare()

    def unmatched(self, name: str) -> list[str]:
        """Messages of the group that have no match so far, if this rank compares them. From any thread."""
        led = (group for group in list(self._groups.values()) if group.name == name and group.ranks[0] == self._rank)
        return [text for group in led for text in group.messages.waiting(_MOST_NAMED)]

    def finish(self) -> Verdict | None:
        """A step of the end, when this process makes no more calls; None if other ranks have not got there yet."""
        if not self._ended:
            counts = self._leave_new()
            self._store.set(f"calls-end/{self._rank}", documents.dumps(counts))
            self._ended = True
        if not self._judged and self._store.check(self._keys("calls-end")):
            found = self._compare() or self._compare_ends()
            self._store.set(f"calls-result/{self._rank}", documents.dumps(found))
            self._judged = True
        verdict = self._verdict()
        if verdict is not None and self._rank == 0:
            self._store.set("calls-verdict", documents.dumps(list(verdict)))
        return verdict

    def _verdict(self) -> Verdict | None:
        if self._store.check(["calls-verdict"]):
            return Verdict(*decode(self._store.get("calls-verdict")))
        if self._rank == 0 and self._store.check(self._keys("calls-result")):
            results = map(decode, self._store.multi_get(self._keys("calls-result")))
            group, text = next(filter(None, results), ("", ""))
            return Verdict(group, text, [])
        gone = [rank for rank in range(self._size) if self._gone(rank)]
        return Verdict("", "", gone) if gone else None

    def _gone(self, rank: int) -> bool:
        """Whether the rank ended without taking part; rank 0 must not end before it has given the verdict."""
        ended = self._store.check([f"ended/{rank}"])
        return ended and not self._store.check(["calls-verdict" if rank == 0 else f"calls-end/{rank}"])

    def _keys(self, kind: str) -> list[str]:
        return [f"{kind}/{rank}" for rank in range(self._size)]

    def _leave_new(self) -> dict[str, int]:
        messages = {label: (runs, lost) for label, runs, lost in _C.take_messages()}
        calls = {}
        for position in _C.positions({label: group.next for label, group in self._groups.items()}):
            label, name = position["label"], position["group"]
            calls[label] = position["calls"]
            if label not in self._groups:
                self._groups[label] = _Group(name, position["ranks"], not self._derived(name))
        for label, group in self._groups.items():
            runs, lost = messages.get(label, ([], False))
            group.prepare(calls.get(label, []), runs, lost=lost)
        for group in self._groups.values():
            while group.unsent:
                self._store.set(self._key(group.name, self._rank, group.batch), group.unsent[0])
                group.unsent.popleft()
                group.batch += 1
        return {group.name: group.next - 1 for group in self._groups.values()}

    def _compare(self) -> tuple[str, str] | None:
        for group in self._led():
            self._take(group)
            told = group.compare()
            if told is not None:
                self._found = True
                return group.name, told
        return None

    def _compare_ends(self) -> tuple[str, str] | None:
        counts = [decode(value) for value in self._store.multi_get(self._keys("calls-end"))]
        for group in self._led():
            told = group.compare_ends({rank: counts[rank].get(group.name, 0) for rank in group.ranks})
            if told is not None:
                self._found = True
                return group.name, told
        return None

    def _led(self) -> list[_Group]:
        return [group for group in self._groups.values() if group.ranks[0] == self._rank and len(group.ranks) > 1]

    def _take(self, group: _Group) -> None:
        for rank in group.ranks:
            while self._store.check([key := self._key(group.name, rank, group.read[rank])]):
                batch = decode(self._store.get(key))
                group.read[rank] += 1
                group.add(rank, batch)
                self._store.delete_key(key)

    @staticmethod
    def _key(name: str, rank: int, batch: int) -> str:
        return f"calls/{name}/{rank}/{batch}"
