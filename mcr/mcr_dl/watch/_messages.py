# SPDX-License-Identifier: Apache-2.0
"""Compares the sends and receives of one group, on the group's first rank.

The k-th send from one rank to another with a tag and a backend matches the k-th such receive. A message that is
received from any rank may match a send of each rank, so these are compared as a whole, at the end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from mcr_dl.base.warning import say

ANY = -1  # as a message's peer: it is received from any rank
MOST = 200_000  # runs of messages that wait for their match, in one group
_NUMBERED = 20_000  # places that are kept after all their messages have matched


class Form(NamedTuple):
    """The values that a message's send and receive have in common."""

    dtype: str
    nbytes: int
    layout: str | None  # of the tensor in memory, if not row by row


@dataclass(slots=True)
class Run:
    """Equal messages that one rank has made one after the other."""

    form: Form
    rank: int
    caller: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Taken:
    """A run as ``_C.take_messages()`` describes it. ``peer``: a global rank, or ANY."""

    sends: bool
    peer: int
    tag: int
    backend: str | None
    dtype: str
    nbytes: int
    layout: str | None
    caller: str | None
    count: int


class _Place(NamedTuple):
    """Messages to one rank that a receive from any rank could get."""

    target: int
    tag: int
    backend: str | None


@dataclass(slots=True)
class _Order:
    """The messages from one rank to a place that have no match yet: after a comparison, those of one side alone."""

    sends: deque[Run] = field(default_factory=deque)
    receives: deque[Run] = field(default_factory=deque)
    matched: int = 0


@dataclass(slots=True)
class _Balance:
    """How many messages of a form were sent to a place, less those that were received there from any rank."""

    count: int = 0
    send: Run | None = None
    receive: Run | None = None


@dataclass(slots=True)
class _State:
    orders: dict[int, _Order] = field(default_factory=dict)  # by sender
    from_any: dict[Form, _Balance] | None = None  # of the messages that none of the orders has; None: there are none


@dataclass(frozen=True, slots=True)
class _Single:
    """Messages without a match at the end. ``source``: a rank, or ANY."""

    sends: bool
    source: int
    place: _Place
    run: Run
    count: int

    @property
    def message(self) -> str:
        """``send(float32, 4000 bytes, mpi) on rank 0, called at ...``."""
        return _message_text(self.sends, self.run, self.place, tagged=False)

    @property
    def whole(self) -> str:
        """The text of the message with its tag and its peer."""
        peer = f"to rank {self.place.target}" if self.sends else f"from {_rank_text(self.source)}"
        return f"{_message_text(self.sends, self.run, self.place, tagged=True)}, {peer}"


def _rank_text(rank: int) -> str:
    return "any rank" if rank == ANY else f"rank {rank}"


def _message_text(sends: bool, run: Run, place: _Place, *, tagged: bool) -> str:
    parts = [run.form.dtype, f"{run.form.nbytes} bytes", run.form.layout]
    parts += [f"tag {place.tag}" if tagged else None, place.backend]
    at = f", called at {run.caller}" if run.caller else ""
    name = "send" if sends else "recv"
    return f"{name}({', '.join(part for part in parts if part)}) on rank {run.rank}{at}"


class Messages:
    """The messages of one group that have no match yet. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._places: dict[_Place, _State] = {}
        self._changed: set[_Place] = set()
        self._kept = 0
        self._most = _NUMBERED  # places, before those whose messages have all matched are forgotten
        self._numbered = True  # no place has been forgotten: the numbers of messages are known
        self.given_up = False  # they are not compared any more

    def add(self, rank: int, runs: Iterable[Taken], *, lost: bool) -> None:
        """Take what a rank has made since the last time. ``lost``: some of it is not known."""
        with self._lock:
            for run in [] if self.given_up else runs:
                place = _Place(run.peer if run.sends else rank, run.tag, run.backend)
                state = self._places.setdefault(place, _State())
                made = Run(Form(run.dtype, run.nbytes, run.layout), rank, run.caller, run.count)
                if run.peer == ANY:
                    if state.from_any is None:
                        state.from_any = {}
                    self._weigh(state.from_any, made, sends=False)
                else:
                    order = state.orders.setdefault(rank if run.sends else run.peer, _Order())
                    self._append(order.sends if run.sends else order.receives, made)
                self._changed.add(place)
            if lost:
                self._give_up()

    def compare(self) -> str | None:
        """The first difference among the messages that have a match; equal ones are forgotten."""
        with self._lock:
            for place in self._changed:
                state = self._places[place]
                for source, order in state.orders.items():
                    told = self._match(source, place, order)
                    if told is not None:
                        return told
                    while state.from_any is not None and order.sends:
                        self._kept -= 1
                        self._weigh(state.from_any, order.sends.popleft(), sends=True)
            self._changed.clear()
            if len(self._places) > self._most:
                self._forget()
            if self._kept > MOST:
                self._give_up()
            return None

    def compare_ends(self) -> str | None:
        """The first message without a match, when there will be no more."""
        with self._lock:
            singles = [single for place, state in self._places.items() for single in _singles(place, state)]
            receives: dict[tuple[object, int], _Single] = {}
            for each in singles:
                for where in () if each.sends else (each.place, each.place.target):
                    receives.setdefault((where, each.source), each)
            for send in (single for single in singles if single.sends):
                wheres = (send.place, send.place.target)  # another form is likelier than another tag or backend
                keys = [(where, source) for where in wheres for source in (send.source, ANY)]
                found = next((receives[key] for key in keys if key in receives), None)
                if found is not None:
                    return self._differ(send, found)
            return self._alone(singles[0]) if singles else None

    def waiting(self, most: int) -> list[str]:
        """Messages without a match so far, in an order that does not depend on when they became known."""
        with self._lock:
            places = sorted(self._places, key=lambda place: (place.target, place.tag, place.backend or ""))
            singles = (each for place in places for each in _singles(place, self._places[place]))
            return [each.whole for each in islice(singles, most)]

    def _differ(self, send: _Single, receive: _Single) -> str:
        texts = [_message_text(each.sends, each.run, each.place, tagged=True) for each in (send, receive)]
        source = "" if receive.source == ANY else f" from rank {send.source}"  # else it may be another's
        what = f"a message{source} to rank {send.place.target} of group '{self._name}'"
        return f"{what} is {texts[0]}, but {texts[1]}"

    def _alone(self, single: _Single) -> str:
        call, others = ("send", "receives") if single.sends else ("receive", "sends")
        what = f"{single.count} more {call}{'' if single.count == 1 else 's'} than {others}"
        first = "" if single.count == 1 else "the first "
        which = "such as " if self._places[single.place].from_any is not None else first
        where = f"from {_rank_text(single.source)} to rank {single.place.target} (tag {single.place.tag})"
        return f"group '{self._name}' ends with {what} {where}: {which}{single.message}"

    def _match(self, source: int, place: _Place, order: _Order) -> str | None:
        while order.sends and order.receives:
            send, receive = order.sends[0], order.receives[0]
            if send.form != receive.form:
                number = f"send {order.matched + 1}" if self._numbered else "a send"
                what = f"{number} from rank {source} to rank {place.target} (tag {place.tag}) of group '{self._name}'"
                texts = [_message_text(run is send, run, place, tagged=False) for run in (send, receive)]
                return f"{what} is {texts[0]}, but {texts[1]}"
            count = min(send.count, receive.count)
            order.matched += count
            for runs in (order.sends, order.receives):
                runs[0].count -= count
                if runs[0].count == 0:
                    runs.popleft()
                    self._kept -= 1
        return None

    def _append(self, runs: deque[Run], made: Run) -> None:
        if runs and (runs[-1].form, runs[-1].caller) == (made.form, made.caller):
            runs[-1].count += made.count
        else:
            runs.append(made)
            self._kept += 1

    def _weigh(self, balances: dict[Form, _Balance], run: Run, *, sends: bool) -> None:
        if run.form not in balances:
            balances[run.form] = _Balance()
            self._kept += 1
        balance = balances[run.form]
        balance.count += run.count if sends else -run.count
        if sends:
            balance.send = balance.send or run
        else:
            balance.receive = balance.receive or run
        if balance.count == 0:
            del balances[run.form]
            self._kept -= 1

    def _forget(self) -> None:
        for place, state in list(self._places.items()):
            if state.from_any is None and not any(order.sends or order.receives for order in state.orders.values()):
                del self._places[place]
                self._numbered = False
        self._most = max(_NUMBERED, 2 * len(self._places))

    def _give_up(self) -> None:
        if not self.given_up:
            reason = "too many of them wait for their match, or one was refused while it was recorded"
            text = f"mcr_dl: sends and receives of group '{self._name}' are not compared any more: {reason}"
            say(text)
        self.given_up = True
        self._places.clear()
        self._changed.clear()
        self._kept = 0


def _singles(place: _Place, state: _State) -> Iterator[_Single]:
    for source, order in state.orders.items():
        for sends, runs in ((True, order.sends), (False, order.receives)):
            if runs:
                yield _Single(sends, source, place, runs[0], sum(run.count for run in runs))
    for balance in (state.from_any or {}).values():
        if balance.count > 0 and balance.send is not None:
            yield _Single(True, balance.send.rank, place, balance.send, balance.count)
        elif balance.count < 0 and balance.receive is not None:
            yield _Single(False, ANY, place, balance.receive, -balance.count)
