# SPDX-License-Identifier: Apache-2.0
"""Alarms: a rank that detects a problem gets a report from every other rank, over the store.

The first rank that counts itself at alarm number k raises it; the alarm rings at every rank's own key, where that
rank's listener waits without polling. Each listener answers with its report. One rank of each group that asks reads the
reports of its members and makes the diagnosis, which the others read: so all ranks report the same cause.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch.distributed as torch_dist

from mcr_dl.base import documents, stores
from mcr_dl.base.stores import STORE_ERRORS, absent, own_connection
from mcr_dl.watch._report import Report

_LONG = timedelta(days=1)
# A report is read within seconds of its alarm, while other groups may raise more alarms. In a large job these follow
# each other slowly, and the reports on one of them take many megabytes of the store.
_KEPT, _LEAST_KEPT, _MOST_KEPT = 4096, 8, 64  # reports of all ranks that stay; alarms whose reports do
_COUNTED = 1000  # counters of alarms that stay: a rank that is so many alarms late may be another first one
_PAUSE = 0.02  # between two checks for answers
_RATE = 20_000  # checks a second of all ranks together: the store answers more, but has other requests too
_MORE = 2e-4  # seconds that the steps of an alarm take longer for each rank of the job
STEPS = 0.15  # seconds for the steps of an inquiry after its waits
_POLL = 0.5  # between two checks for alarms, on stores that a waiting thread would block for the others
ANSWERS = 0.8  # seconds for the other ranks' reports
INQUIRY = 1.3  # seconds for all steps of an alarm
PARTING = 5.0  # seconds for what a rank must leave at its end
_RUNG = _POLL + 0.2  # seconds in which an alarm is heard after it has been counted
_CLOSING = 0.5  # seconds for the other listeners to leave a store that closes
_LONGEST_PAUSE = 0.25  # seconds between two looks of a rank that waits for the ends of the others
_PREFIX = "watch"  # of the keys in the store
# Each rank leaves there: the identity of its process, its last report, the address at which other hosts connect to it.
MEMBER, ENDED, ADDRESS = "member", "ended", "address"
ENDINGS = "endings"  # a counter: how many processes have left their last report
REPORTED = ("timeout", "error")  # the kinds of alarms that get reports; the others are news
_SLOW = "it does not answer"
_ELSEWHERE = "elsewhere"  # there is a later life, of some of the ranks at least
decode = partial(stores.decode, what="what another rank has left at the store")
T = TypeVar("T")


@dataclass(frozen=True)
class Alarm:
    """The reason of an alarm: ``text`` is the error so far, ``group`` the name of the group concerned."""

    by: int
    # REPORTED; "desync", "lost": news; "closing": the store closes, and there will be no more alarms
    kind: str
    group: str
    text: str
    seq: int = 0  # of the failed call, in its group
    message: bool = False  # it is a send or receive
    lost: int = -1  # the rank whose process has ended
    process: str = ""  # that process


@dataclass
class Answers:
    """The answers so far: reports by global rank, and the ranks that have sent none."""

    reports: dict[int, Report]
    silent: list[int]


def member(store: torch_dist.Store, rank: int) -> dict[str, Any] | None:
    """The identity of the process that has a rank, from the job's store; None if it has not started. STORE_ERRORS."""
    key, left = f"{MEMBER}/{rank}", torch_dist.PrefixStore(_PREFIX, store)
    found: dict[str, Any] | None = decode(left.get(key)) if left.check([key]) else None
    return found


def leave_member(store: torch_dist.Store, rank: int, identity: dict[str, Any]) -> None:
    """Leave the identity of the process that takes the place of a lost rank. Raises STORE_ERRORS."""
    torch_dist.PrefixStore(_PREFIX, store).set(f"{MEMBER}/{rank}", documents.dumps(identity))


def missing(store: torch_dist.Store, key: str, numbers: Sequence[int]) -> list[int]:
    """Return the numbers that have no value at the store; few numbers take few requests. Raises STORE_ERRORS."""
    return [numbers[place] for place in absent(store, [f"{key}/{number}" for number in numbers])]


class Exchange:
    """One process's end. ``answer`` makes its report; the listener calls ``heard`` with every alarm."""

    def __init__(
        self,
        store: torch_dist.Store,
        rank: int,
        size: int,
        answer: Callable[[Alarm], Report],
        heard: Callable[[int, Alarm], None],
        number: int = 0,
        gone: Callable[[], Container[int]] = frozenset,
    ) -> None:
        """``number``: of the first alarm that concerns this process; ``gone``: the lost ranks."""
        self.rank, self.size = rank, size
        self.pause = max(_PAUSE, size / _RATE)  # seconds between two checks of each rank, if all ranks wait
        self.more = size * _MORE  # seconds that a step takes longer than in a small job
        self._kept = min(max(_KEPT // size, _LEAST_KEPT), _MOST_KEPT)
        self._answer, self._heard, self._gone = answer, heard, gone
        self.store: Any = torch_dist.PrefixStore(_PREFIX, own_connection(store))  # of the threads that do not listen
        listening = own_connection(store)
        self._sleeps = listening is not store  # a wait there blocks no other thread's use of the store
        self._listening = torch_dist.PrefixStore(_PREFIX, listening)
        self.number = number  # of the next alarm
        self._reported: deque[int] = deque()  # alarms on which this rank's report is at the store
        self._news: set[int] = set()  # alarms without reports
        self._absent: list[int] | None = None  # ranks that hear no alarms; None: another rank removes theirs
        self._asked: deque[tuple[int, str]] = deque()  # alarms and inquiries of which this rank has published diagnoses
        self._ending = threading.Event()
        self.lost: str | None = None  # why the store cannot be reached; _SLOW may pass
        self.closed_well = False  # the store has closed at the intended end of the rank that held it
        self._listener = threading.Thread(target=self._listen, name="mcr_dl alarms", daemon=True)
        self._requests: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._asker = threading.Thread(target=self._serve, name="mcr_dl store", daemon=True)

    @property
    def slow(self) -> bool:
        """Whether the store can be asked again, though it may not have answered the last time."""
        return self.lost in (None, _SLOW)

    def start(self) -> None:
        """Listen from now on."""
        self._asker.start()
        self._listener.start()

    def stop(self) -> None:
        """End the listener."""
        self._ending.set()
        with contextlib.suppress(*STORE_ERRORS):
            if self._listener.is_alive():
                self.ask(lambda: self.store.set(f"ring/{self.number}/{self.rank}", ""))
        if self._listener.is_alive():  # it has not been started if the system allows no more threads
            self._listener.join(1.0)

    # ---- the thread that uses the store for the others: where a network has been cut, it never returns

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None:
            request()

    def end(self) -> None:
        """End that thread: no more requests will be made."""
        self._requests.put(None)

    def ask(self, action: Callable[[], T], limit: float = INQUIRY, *, anyhow: bool = False) -> T:
        """Run an action that uses the store; raises STORE_ERRORS, also if it takes longer than the limit.

        ``anyhow``: also if the store has not answered the last time.
        """
        if self.lost is not None and not (anyhow and self.slow):
            raise RuntimeError(self.lost)
        results: list[T | Exception] = []
        done = threading.Event()

        def run() -> None:
            try:
                results.append(action())
            except Exception as error:
                results.append(error)
            done.set()
            if self.lost == _SLOW and not isinstance(results[0], Exception):
                self.lost = None  # the store was only slow

        self._requests.put(run)
        if not done.wait(limit):
            self.lost = _SLOW
            if done.is_set():
                self.lost = None
            raise RuntimeError(_SLOW)
        if isinstance(results[0], Exception):
            raise results[0]
        return results[0]

    # ---- the listener

    def _listen(self) -> None:
        while not self._ending.is_set():
            try:
                alarm = self._next()
                if alarm is None:
                    continue
                if alarm.kind == "closing":
                    self.closed_well = alarm.lost < 0
                    self.lost = alarm.text
                    self._listening.add("closed", 1)
                    return
                number = self.number
                if alarm.kind in REPORTED:
                    self._listening.set(f"report/{number}/{self.rank}", documents.dumps(self._answer(alarm)))
                    self._reported.append(number)
                else:
                    self._news.add(number)
                self._heard(number, alarm)  # before this process can raise another one, which it may make needless
                self.number += 1
                with contextlib.suppress(*STORE_ERRORS):  # a store of another kind may not delete
                    self._forget(number)
            except STORE_ERRORS as error:
                self.lost = str(error).partition("\n")[0]
                return

    def _forget(self, number: int) -> None:
        """Delete what no rank reads any more: a program may catch a timeout every second for weeks."""
        self._listening.delete_key(f"ring/{number}/{self.rank}")
        self._news.discard(number - _COUNTED)
        if (old := number - _COUNTED) >= 0:
            self._forget_alarm(old)
        while len(self._reported) > self._kept:
            self._listening.delete_key(f"report/{self._reported.popleft()}/{self.rank}")
        while self._asked and self._reported and self._asked[0][0] < self._reported[0]:
            _, inquiry = self._asked.popleft()
            self._listening.delete_key(f"asker/{inquiry}")
            self._listening.delete_key(f"diagnosis/{inquiry}")

    def _forget_alarm(self, number: int) -> None:
        """Delete an old alarm, and its rings at ranks that hear none, which do not delete them."""
        if number % _COUNTED == 0:  # a process that takes a lost rank's place later listens for later alarms
            self._absent = self._find_absent()
        if self._absent is not None:
            self._listening.delete_key(f"alarm/{number}")
            for rank in self._absent:
                self._listening.delete_key(f"ring/{number}/{rank}")

    def _find_absent(self) -> list[int] | None:
        """The ranks that are lost or have ended communication, on the lowest of the others; None on the rest."""
        gone = self._gone()
        present = [rank for rank in range(self.size) if rank not in gone and rank != self.rank]
        lower = [f"{ENDED}/{rank}" for rank in present if rank < self.rank]
        if lower and not self._listening.check(lower):
            return None
        running = {self.rank, *missing(self._listening, ENDED, present)}
        return [rank for rank in range(self.size) if rank not in running]

    def _next(self) -> Alarm | None:
        key = f"ring/{self.number}/{self.rank}"
        if self._sleeps:
            begin = time.monotonic()
            try:
                self._listening.wait([key], _LONG)
            except RuntimeError:  # the time is over, which each kind of store says in its own way
                if not self._listening.check([key]):  # which raises if the store is gone
                    self._ending.wait(0 if time.monotonic() - begin > _POLL else _POLL)
                    return None
        elif not self._listening.check([key]):
            self._ending.wait(_POLL)
            return None
        value = self._listening.get(key)
        return Alarm(**decode(value)) if value and not self._ending.is_set() else None

    # ---- raising an alarm

    def raise_alarm(self, alarm: Alarm, limit: float = INQUIRY) -> tuple[int, bool]:
        """Ring at all ranks; returns the alarm's number, and whether this rank was its first. Raises STORE_ERRORS."""
        return self.ask(partial(self._ring, alarm), limit)

    def tell(self, alarm: Alarm, limit: float, needless: Callable[[], bool] = lambda: False) -> bool:
        """Ring at all ranks, after the alarms of other ranks that come first; whether it has rung, or is needless.

        ``limit``: in seconds.
        """
        deadline = time.monotonic() + limit
        with contextlib.suppress(*STORE_ERRORS):
            while (left := deadline - time.monotonic()) > 0:
                if needless() or self.raise_alarm(alarm, max(left, STEPS))[1]:
                    return True
                time.sleep(_PAUSE)
        return False

    def _ring(self, alarm: Alarm) -> tuple[int, bool]:
        number = self.number
        first = self.store.add(f"alarm/{number}", 1) == 1
        if first:
            self._ring_all(number, alarm)
        return number, first

    def _ring_all(self, number: int, alarm: Alarm) -> None:
        value = documents.dumps(asdict(alarm))
        self.store.multi_set([f"ring/{number}/{rank}" for rank in range(self.size)], [value] * self.size)

    def ring_again(self, number: int, alarm: Alarm, deadline: float) -> None:
        """Ring an alarm that its first rank may have counted, but not rung, as it ended. Raises STORE_ERRORS."""

        def ring() -> None:
            if number == self.number and not self.store.check([f"ring/{number}/{self.rank}"]):
                self._ring_all(number, alarm)

        self.proceed(ring, deadline)

    def await_heard(self, number: int, deadline: float) -> bool:
        """Wait a moment until this rank has heard the alarm that another one has raised; whether it has."""
        over = min(time.monotonic() + _RUNG + self.more, deadline - STEPS)
        while self.number <= number and time.monotonic() < over:
            time.sleep(_PAUSE)
        return self.number > number

    def is_news(self, number: int) -> bool:
        """Whether no rank reports on that alarm, which this rank has heard."""
        return number in self._news

    # ---- an inquiry: what the members of a group do about an alarm; named by the alarm's number and the group

    def asker(self, inquiry: str, former: int | None, deadline: float) -> int:
        """The rank that reads the reports: the first that wanted to, or, if ``former`` does not, another one."""
        expected = "" if former is None else str(former)
        claim = partial(self.store.compare_set, f"asker/{inquiry}", expected, str(self.rank))
        return int(self.proceed(claim, deadline))

    def gather(self, number: int, ranks: Sequence[int], deadline: float, gone: Callable[[], Container[int]]) -> Answers:
        """The reports of these ranks on an alarm, as far as they come in time. Raises STORE_ERRORS.

        ``deadline``: for the whole inquiry, a time of time.monotonic(); ``gone``: the lost ranks, which send none.
        """

        def complete() -> bool:
            lost = gone()
            return bool(self.store.check([f"report/{number}/{rank}" for rank in ranks if rank not in lost]))

        self._until(complete, ANSWERS + self.more, deadline)
        reports = self.proceed(lambda: self.all_left(f"report/{number}", ranks), deadline)
        return Answers(reports, [rank for rank in ranks if rank not in reports])

    def _until(self, condition: Callable[[], bool], limit: float, deadline: float, latest: float | None = None) -> bool:
        """Wait for a state of the store, on the caller's thread, so that requests of other threads come in between.

        ``latest``: the time of its end; unless given, some time is left until the deadline for what follows.
        """
        over = min(time.monotonic() + limit, deadline - STEPS if latest is None else latest)
        while not self.proceed(condition, deadline):
            left = over - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, self.pause))
        return True

    def proceed(self, action: Callable[[], T], deadline: float) -> T:
        """The next step of an inquiry. (A slow answer to another thread's request does not end it.)"""
        return self.ask(action, max(deadline - time.monotonic(), _PAUSE), anyhow=True)

    def publish(self, number: int, inquiry: str, diagnosis: str, deadline: float) -> str:
        """Publish the diagnosis; returns the one that all ranks read, if another rank was faster. STORE_ERRORS."""
        self._asked.append((number, inquiry))
        text = documents.dumps(diagnosis)
        return str(decode(self.proceed(lambda: self.store.compare_set(f"diagnosis/{inquiry}", "", text), deadline)))

    def diagnosis(self, inquiry: str, lost: Callable[[], bool], deadline: float, latest: float) -> str | None:
        """The diagnosis of the rank that asks; None if it does not come, or if that rank is lost. STORE_ERRORS."""
        key = f"diagnosis/{inquiry}"
        limit = INQUIRY - 0.1 + 2 * self.more
        self._until(lambda: lost() or self.store.check([key]), limit, deadline, latest)
        found = self.proceed(lambda: self.store.get(key) if self.store.check([key]) else None, deadline)
        return None if found is None else str(decode(found))

    def leave_together(self, well: bool, limit: float | None, *, begun: bool) -> bool:
        """At the end of the process: whether all ranks get there without an error. False as soon as one does not.

        All ranks get the same answer, because the first rank that decides stores it for all: a rank that comes later
        must not wait for one that has gone.

        ``limit``: None if the libraries themselves wait for all ranks, and all end if one fails. Then ranks that are
        not counted at this store are left to the libraries: where this life has not ``begun`` on all ranks, or another
        one has begun on some, and if the store does not answer.
        """
        end, pause = math.inf if limit is None else time.monotonic() + limit, self.pause

        def complete() -> bool:
            return bool(self.store.add("leaving", 0) == self.size)

        def over() -> bool:
            return complete() or bool(self.store.check(["failed"]))

        def apart() -> bool:
            return limit is None and (not begun or bool(self.store.check([_ELSEWHERE])))

        def decided() -> bool:
            together = complete() and not self.store.check(["failed"])
            if not together:
                self.store.set("failed", "")  # ranks that wait longer must not wait for this one
            return bool(self.store.compare_set("together", "", "1" if together else "0") == b"1")

        try:
            self._part(lambda: self._leaving(well))
            while not self._part(over):
                if self._part(apart):
                    return True
                left = end - time.monotonic()
                if left <= 0:
                    break
                time.sleep(min(left, pause))
                pause = min(2 * pause, _LONGEST_PAUSE)
            return self._part(decided)
        except STORE_ERRORS:
            if well and limit is None:
                return True
            self.fail()  # the others may have counted this rank
            return False

    def _part(self, action: Callable[[], T]) -> T:
        """Run an action at the end of the process, for which a slow store gets more time."""
        return self.ask(action, PARTING, anyhow=True)

    def move_on(self) -> None:
        """Another life begins in this process, whose end will be counted at the store of that one."""

        def tell() -> None:
            with contextlib.suppress(*STORE_ERRORS):
                self.store.set(_ELSEWHERE, "")

        if self.slow:
            self._requests.put(tell)

    def _leaving(self, well: bool) -> None:
        if not well:
            self.store.set("failed", "")
        self.store.add("leaving", 1)

    def close(self, reason: str, *, well: bool) -> None:
        """Notify the other listeners that the store closes with this process. (A client that waits at a store when it
        closes prints a long error to stderr.)
        """
        with contextlib.suppress(*STORE_ERRORS):
            listening = self.ask(lambda: self._close(reason, well=well))
            deadline = time.monotonic() + INQUIRY
            self._until(lambda: bool(self.store.add("closed", 0) >= listening), _CLOSING, deadline)

    def _close(self, reason: str, *, well: bool) -> int:
        """Returns the number of listeners. This process has left its last report."""
        listening = self.size - int(self.store.add(ENDINGS, 0))
        if listening > 0:
            value = documents.dumps(asdict(Alarm(self.rank, "closing", "", reason, lost=-1 if well else self.rank)))
            others = [rank for rank in range(self.size) if rank != self.rank]
            keys = [f"ring/{number}/{rank}" for rank in others for number in (self.number, self.number + 1)]
            self.store.multi_set(keys, [value] * len(keys))
        return listening

    def fail(self) -> None:
        """Let ranks that are about to leave together not wait for this one."""
        with contextlib.suppress(*STORE_ERRORS):
            self.ask(lambda: self.store.set("failed", ""), anyhow=True)

    # ---- values that stay at the store

    def take_over(self) -> None:
        """Before start(): remove what the process that had this rank before has left at its end."""
        ring = f"ring/{self.number}/{self.rank}"
        with contextlib.suppress(*STORE_ERRORS):
            if self.store.delete_key(f"{ENDED}/{self.rank}"):
                self.store.add(ENDINGS, -1)
            if self.store.check([ring]) and not self.store.get(ring):
                self.store.delete_key(ring)

    def leave(self, key: str, value: Any, *, limit: float = INQUIRY, anyhow: bool = False) -> bool:
        """Leave a value for all ranks, under this rank's number; False if the store cannot be reached.

        ``anyhow``: also if the store has not answered the last time.
        """

        def put() -> None:
            self.store.set(f"{key}/{self.rank}", documents.dumps(value))
            if key == ENDED:
                self.store.add(ENDINGS, 1)

        try:
            self.ask(put, limit, anyhow=anyhow)
        except STORE_ERRORS:
            return False
        return True

    def left(self, key: str, rank: int) -> Any | None:
        """The value that a rank has left there, or None. Raises STORE_ERRORS."""
        name = f"{key}/{rank}"
        return decode(self.store.get(name)) if self.store.check([name]) else None

    def all_left(self, key: str, ranks: Iterable[int]) -> dict[int, Any]:
        """The values that these ranks have left there. Raises STORE_ERRORS."""
        wanted = list(ranks)
        away = set(missing(self.store, key, wanted))
        here = [rank for rank in wanted if rank not in away]
        values = self.store.multi_get([f"{key}/{rank}" for rank in here]) if here else []
        return {rank: decode(value) for rank, value in zip(here, values, strict=True)}
