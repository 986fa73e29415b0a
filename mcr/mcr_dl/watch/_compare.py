# SPDX-License-Identifier: Apache-2.0
"""``MCR_DL_DEBUG=detail``: checks that all ranks of every group make the same calls.

Each rank leaves its new calls at the store, in batches that the group numbers, ten times a second; the first rank of
each group collects and compares them: collectives here, sends and receives in _messages.py. None of this is on the path
of a call. At the end of the runtime all ranks wait until the last calls have been compared. They wait for counters, as
many ranks that look for many keys would keep the store from everything else.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Any, NamedTuple

import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.base import documents
from mcr_dl.watch._alarm import ENDED, ENDINGS, decode, missing
from mcr_dl.watch._diagnosis import call_text, collectives_text, difference, ranks_text
from mcr_dl.watch._messages import Messages, Taken

_Call = dict[str, Any]
# Keys.
_LEFT, _ENDS = "calls-end", "calls-ends"  # each rank that has left its last calls; how many these are
_RESULT, _RESULTS = "calls-result", "calls-results"  # what the groups that a rank compares have shown; how many left it
_VERDICT = "calls-verdict"  # for all ranks
_MOST_NAMED = 8  # messages without a match
_AT_ONCE = 10_000  # batches that one request reads
_RUNS = 20_000  # of messages in one batch: a store refuses values above 8 MiB
_NONE = 1 << 62  # the number of no collective


class Verdict(NamedTuple):
    """The result of the comparison: the first difference with its group, and the ranks that did not take part."""

    group: str
    text: str
    missing: list[int]


class _Group:
    """The calls that one rank has left, and, on the group's first rank, the state of all ranks.

    Groups may have the same name, at the same time without common ranks, and one after the other with the same ranks.
    """

    def __init__(self, position: dict[str, Any], rank: int) -> None:
        self.name, self.ranks, self._rank = str(position["group"]), list(position["ranks"]), rank
        members = hashlib.sha256(documents.dumps(self.ranks).encode()).hexdigest()[:16]
        self.key = f"calls/{members}/{position['former']}/{self.name}"
        self.leads = self.ranks[0] == rank
        self.next = 1  # the first collective that is not left yet
        self._made = 0  # batches of this rank
        self.ended = self._lost = False  # this rank has left its last calls; some of its messages are not known
        self.unsent: deque[str] = deque()  # batches that are not at the store yet
        self.known = 0  # batches of all ranks that have been numbered
        self.awaited: list[int] = []  # the numbers of those that have not been taken yet
        self._taken = dict.fromkeys(self.ranks, 0)  # batches
        self.calls: dict[int, dict[int, _Call]] = {rank: {} for rank in self.ranks}
        # By rank that makes no more calls, how many collectives there were; None: that is not known.
        self.ends: dict[int, int | None] = {}
        self.messages = Messages(self.name)

    def prepare(
        self, calls: list[_Call], messages: list[tuple[Any, ...]], *, lost: bool, last: bool, known: bool = True
    ) -> None:
        """Make batches of new calls. ``lost``: some of the messages are not known. ``last``: there are no more.

        ``known``: the calls of a group that has ended are; otherwise it may have made more than these.
        """
        if self.ended:
            return
        self.ended, lost = last, lost or not known
        new = [call for call in calls if call["seq"] >= self.next]
        if new:
            self.next = new[-1]["seq"] + 1
        lost, self._lost = lost and not self._lost, lost or self._lost
        if not (new or messages or lost or last):
            return
        parts = [messages[first : first + _RUNS] for first in range(0, len(messages), _RUNS)] or [[]]
        for number, part in enumerate(parts):
            first, final = number == 0, number == len(parts) - 1
            content: dict[str, Any] = {"rank": self._rank, "turn": self._made, "calls": new if first else []}
            content |= {"messages": part, "lost": lost and first}
            if last and final:
                content["end"] = self.next - 1 if known else None
            self.unsent.append(documents.dumps(content))
            self._made += 1

    def add(self, batch: dict[str, Any]) -> bool:
        """Take a batch of a rank, unless it has been taken; False if an earlier one of that rank has to come before."""
        rank, turn = batch["rank"], batch["turn"]
        if turn == self._taken[rank]:
            self._taken[rank] += 1
            self.calls[rank].update((call["seq"], call) for call in batch["calls"])
            self.messages.add(rank, (Taken(*run) for run in batch["messages"]), lost=batch["lost"])
            if "end" in batch:
                self.ends[rank] = batch["end"]
        return bool(turn < self._taken[rank])

    def compare(self) -> str | None:
        """The first difference among the calls that can be compared now; equal ones are forgotten."""
        return self._told(self._compare_collectives() or self.messages.compare())

    def over(self) -> bool:
        """Whether no rank makes more calls."""
        return len(self.ends) == len(self.ranks)

    def compare_ends(self) -> str | None:
        """The first call that has no counterpart, when the group is over."""
        return self._told(self._compare_counts() or self.messages.compare_ends())

    def _compare_collectives(self) -> str | None:
        common = set.intersection(*(set(calls) for calls in self.calls.values()))
        for seq in sorted(common):
            forms = {rank: calls.pop(seq) for rank, calls in self.calls.items()}
            told = difference(forms)
            if told is not None:
                return f"collective {seq} of group '{self.name}' is {told}"
            if len({form["history"] for form in forms.values()}) > 1:
                return f"those of group '{self.name}' differ before collective {seq}"
        if common:  # a rank that makes many calls at once may leave some out; the history has them
            newest = max(common)
            for rank, calls in self.calls.items():
                self.calls[rank] = {seq: call for seq, call in calls.items() if seq > newest}
        return None

    def _compare_counts(self) -> str | None:
        counts = {rank: end for rank in self.ranks if (end := self.ends[rank]) is not None}
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
    """One process's part in it.

    Derived groups are left out: their calls follow from another group's, in an order of each backend alone.
    """

    def __init__(self, store: torch_dist.Store, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._groups: dict[int, _Group] = {}  # by the number of their position
        self._uneven: tuple[str, str] | None = None  # the first group whose ranks made other numbers of calls
        self._difference: tuple[str, str] | None = None  # the first group with another one, and its text
        self._ended = self._judged = False
        self._missed = False  # a step may have come too late for the last calls of a group
        self._skipped: set[int] = set()  # positions that are not compared
        self._endings = 0  # processes that have left their last report

    def step(self) -> tuple[str, str] | None:
        """Leave new calls, and compare where this rank does that: the group and the text of the first difference.

        The difference stays, as the caller may not have waited for the end of the step that has found it.
        """
        if self._difference is None:
            self._leave_new()
            self._difference = self._compare()
        return self._difference

    def miss(self) -> None:
        """A step has not come to its end in time: groups that end now may have made calls that it has not seen."""
        self._missed = True

    def unmatched(self, name: str) -> list[str]:
        """Messages of the group that have no match so far, if this rank compares them. From any thread."""
        led = (group for group in list(self._groups.values()) if group.name == name and group.leads)
        return [text for group in led for text in group.messages.waiting(_MOST_NAMED)]

    def finish(self) -> Verdict | None:
        """A step of the end, when this process makes no more calls; None if other ranks have not got there yet."""
        if not self._ended:
            self._leave_new(last=True)
            self._store.set(f"{_LEFT}/{self._rank}", "")
            self._store.add(_ENDS, 1)
            self._ended = True
        if not self._judged and self._store.add(_ENDS, 0) == self._size:
            self._difference = self._difference or self._compare()
            self._store.set(f"{_RESULT}/{self._rank}", documents.dumps(self._difference or self._uneven))
            self._store.add(_RESULTS, 1)
            self._judged = True
        if self._rank:
            return self._told()
        verdict = self._verdict()
        if verdict is not None:
            self._store.set(_VERDICT, documents.dumps(list(verdict)))
        return verdict

    def _told(self) -> Verdict | None:
        """The verdict of rank 0, which must not end before."""
        gone = self._store.check([f"{ENDED}/0"])
        if self._store.check([_VERDICT]):
            return Verdict(*decode(self._store.get(_VERDICT)))
        return Verdict("", "", [0]) if gone else None

    def _verdict(self) -> Verdict | None:
        """On rank 0."""
        if self._store.add(_RESULTS, 0) == self._size:
            results = map(decode, self._store.multi_get([f"{_RESULT}/{rank}" for rank in range(self._size)]))
            group, text = next(filter(None, results), ("", ""))
            return Verdict(group, text, [])
        endings = self._store.add(ENDINGS, 0)
        if endings == self._endings:
            return None
        self._endings = endings
        late = missing(self._store, _LEFT, range(self._size))
        running = set(missing(self._store, ENDED, late))
        gone = [rank for rank in late if rank not in running]  # ended without taking part
        return Verdict("", "", gone) if gone else None

    def _leave_new(self, *, last: bool = False) -> None:
        """Leave the new calls of all groups at the store. ``last``: this process makes no more."""
        self._collect(last=last)
        for group in self._groups.values():
            while group.unsent:
                turn = self._store.add(f"{group.key}/made", 1)
                self._store.set(f"{group.key}/{turn}", group.unsent[0])  # if it fails, the next number gets it
                group.unsent.popleft()
        self._groups = {number: group for number, group in self._groups.items() if group.leads or not group.ended}

    def _collect(self, *, last: bool) -> None:
        """Take the new calls of all groups out of the core: the store may fail after that."""
        missed, self._missed = self._missed, False
        messages = {number: (runs, lost) for number, runs, lost in _C.take_messages()}
        calls = {}
        first = {number: group.next for number, group in self._groups.items()} | dict.fromkeys(self._skipped, _NONE)
        self._skipped = set()
        for position in _C.positions(first):
            number = position["number"]
            if position["derived"] or len(position["ranks"]) == 1:
                self._groups.pop(number, None)
                self._skipped.add(number)
                continue
            calls[number] = position["calls"]
            if number not in self._groups:
                self._groups[number] = _Group(position, self._rank)
        for number, group in self._groups.items():
            runs, lost = messages.get(number, ([], False))
            gone = number not in calls
            known = not (gone and missed)
            group.prepare(calls.get(number, []), runs, lost=lost, last=last or gone, known=known)

    def _compare(self) -> tuple[str, str] | None:
        for number, group in [*self._groups.items()]:
            if not group.leads:
                continue
            self._take(group)
            told = group.compare()
            if told is not None:
                return group.name, told
            if group.over():
                told = group.compare_ends()
                self._uneven = self._uneven or (told and (group.name, told)) or None
                self._store.delete_key(f"{group.key}/made")
                del self._groups[number]
        return None

    def _take(self, group: _Group) -> None:
        """Take the batches that the ranks have left."""
        made = self._store.add(f"{group.key}/made", 0)
        group.awaited += range(group.known + 1, made + 1)
        group.known = made
        for numbers in [group.awaited[first : first + _AT_ONCE] for first in range(0, len(group.awaited), _AT_ONCE)]:
            absent = set(missing(self._store, group.key, numbers))  # another rank is about to leave these
            here = [number for number in numbers if number not in absent]
            values = self._store.multi_get([f"{group.key}/{number}" for number in here]) if here else []
            batches = sorted(
                zip(map(decode, values), here, strict=True), key=lambda each: (each[0]["rank"], each[0]["turn"])
            )
            taken = {number for batch, number in batches if group.add(batch)}
            group.awaited = [number for number in group.awaited if number not in taken]
            for number in taken:
                self._store.delete_key(f"{group.key}/{number}")
