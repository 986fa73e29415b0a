# SPDX-License-Identifier: Apache-2.0
"""An inquiry: ranks whose calls fail raise an alarm; one of each group reads the reports and makes the diagnosis."""

from __future__ import annotations

import time
from typing import NamedTuple

from mcr_dl import _C
from mcr_dl.base.stores import STORE_ERRORS
from mcr_dl.watch._alarm import ENDED, INQUIRY, MEMBER, STEPS, Alarm, Answers, Exchange
from mcr_dl.watch._diagnosis import ARRIVED, absent, diagnose, group_in, whereabouts
from mcr_dl.watch._losses import Losses
from mcr_dl.watch._report import Report

SAME = 2.0  # seconds for which a diagnosis stays valid for its call
_NEWS = 1.0  # seconds from an alarm until the loss of a rank that does not answer is known
# Seconds in which a rank uses the diagnosis of another one's alarm: at least, and for each rank of the job.
_FRESH, _FRESH_EACH = 0.5, 2e-3
_NEAR = 4  # alarms: the reports on older ones may not be there any more


class Found(NamedTuple):
    """The diagnosis, and whether this rank knows of ranks that have not answered."""

    text: str
    silent: bool


class _Heard(NamedTuple):
    number: int
    alarm: Alarm
    time: float


class Inquiries:
    """The inquiries of one process about calls that do not complete.

    A call that some ranks entered later than others times out later there, too. These ranks use the diagnosis of an
    alarm that they have just answered, instead of having all ranks report once more for each of them. In a large job,
    more of them do.
    """

    def __init__(self, exchange: Exchange, losses: Losses) -> None:
        self._exchange, self._losses = exchange, losses
        self._fresh = min(max(exchange.size * _FRESH_EACH, _FRESH), SAME)
        self._heard: dict[str, _Heard] = {}  # by group: the last alarm on a call at which this rank has arrived, too

    def note(self, number: int, alarm: Alarm, report: Report) -> None:
        """This rank answers an alarm with this report. On the listener's thread."""
        position, now = group_in(report, alarm.group), time.monotonic()
        if not alarm.message and position is not None and position["collectives"] >= alarm.seq:
            recent = {group: each for group, each in self._heard.items() if now - each.time < self._fresh}
            self._heard = {**recent, alarm.group: _Heard(number, alarm, now)}

    def find_out(self, alarm: Alarm, ranks: list[int], patience: float) -> Found:
        """Raise an alarm for a call of a group, and diagnose it. Raises STORE_ERRORS.

        ``ranks``: the group's global ranks; ``patience``: seconds for everything.
        """
        deadline = time.monotonic() + patience
        heard = self._about(alarm, ranks)
        number = self._raise(alarm, deadline) if heard is None else heard.number
        found = self._diagnose(number, alarm, ranks, deadline)
        if heard is not None and heard.alarm.seq != alarm.seq and ARRIVED in found.text:
            number = self._raise(alarm, deadline)
            found = self._diagnose(number, alarm, ranks, deadline)
        self._exchange.await_heard(number, deadline)  # the program may end when it gets the error
        return found

    def _about(self, alarm: Alarm, ranks: list[int]) -> _Heard | None:
        """A recent alarm on the same call, or on one that this call waits for."""
        heard = self._heard.get(alarm.group)
        if heard is None or alarm.message or heard.alarm.by not in ranks:
            return None
        earlier = heard.alarm.kind == alarm.kind == "timeout" and heard.alarm.seq < alarm.seq
        recent = time.monotonic() - heard.time < self._fresh and self._exchange.number - heard.number <= _NEAR
        return heard if recent and (earlier or heard.alarm.seq == alarm.seq) else None

    def _raise(self, alarm: Alarm, deadline: float) -> int:
        """The number of an alarm on which the ranks report: this one, or one that was raised at the same time."""
        while True:
            number, first = self._exchange.raise_alarm(alarm, max(deadline - time.monotonic(), STEPS))
            if first or not (self._exchange.await_heard(number, deadline) and self._exchange.is_news(number)):
                return number

    def _diagnose(self, number: int, alarm: Alarm, ranks: list[int], deadline: float) -> Found:
        inquiry = f"{number}/{ranks[0]}/{alarm.group}"
        told = self._told(inquiry, deadline)
        if told is not None:
            return Found(told, silent=False)
        began = time.monotonic()
        exchange, losses = self._exchange, self._losses
        exchange.ring_again(number, alarm, deadline)
        answers = exchange.gather(number, ranks, deadline, lambda: losses.texts)
        ended = exchange.proceed(lambda: exchange.all_left(ENDED, answers.silent), deadline)
        news = min(began + _NEWS, deadline - 2 * STEPS) - time.monotonic()  # others wait for what is published then
        losses.await_news([rank for rank in answers.silent if rank not in ended], news)
        absences = exchange.proceed(lambda: _absences(exchange, answers, losses.texts), deadline)
        told = diagnose(answers.reports, absences, alarm.group, ranks, alarm.seq, message=alarm.message)
        return Found(exchange.publish(number, inquiry, told, deadline), silent=bool(answers.silent))

    def _told(self, inquiry: str, deadline: float) -> str | None:
        """The diagnosis of the rank that reads the reports; None if that is this one.

        Another rank takes its place if it is lost or has not come to a diagnosis in time.
        """
        exchange, losses = self._exchange, self._losses
        asker, over = exchange.asker(inquiry, None, deadline), deadline - 2 * STEPS
        while asker != exchange.rank:
            last = time.monotonic() >= over  # too late for another one
            end = deadline - STEPS / 2 if last else over
            told = exchange.diagnosis(inquiry, lambda: asker in losses.texts, deadline, end)  # noqa: B023
            if told is not None:
                return told
            if last:
                return f"Which ranks have not arrived is not known, as rank {asker}, which reads the reports, is slow."
            asker = exchange.asker(inquiry, asker, deadline)
        return None

    def locate(self, text: str, ranks: list[int]) -> str:
        """Where these ranks are, which have not come to a step of the start; empty if that cannot be found out."""
        exchange, losses = self._exchange, self._losses
        alarm, deadline = Alarm(exchange.rank, "timeout", "", text), time.monotonic() + INQUIRY + exchange.more
        try:
            number = self._raise(alarm, deadline)
            exchange.ring_again(number, alarm, deadline)
            answers = exchange.gather(number, ranks, deadline, lambda: losses.texts)
            absences = exchange.proceed(lambda: _absences(exchange, answers, {}), deadline)
        except STORE_ERRORS:
            return ""
        where = {**absences, **{rank: whereabouts(report) for rank, report in answers.reports.items()}}
        return "; ".join(f"rank {rank}: {where[rank]}" for rank in ranks)


def _absences(exchange: Exchange, answers: Answers, lost: dict[int, str]) -> dict[int, str]:
    """Why ranks have not answered. The last reports of those that have left one join the answers."""
    answers.reports.update(exchange.all_left(ENDED, answers.silent))
    missing = [rank for rank in answers.silent if rank not in answers.reports]
    members = exchange.all_left(MEMBER, [rank for rank in missing if rank not in lost])
    return {rank: end_of(lost[rank]) if rank in lost else absent(members.get(rank)) for rank in missing}


def end_of(lost: str) -> str:
    """``process 7 on a has ended``, from the text for a lost rank."""
    return lost.partition(": ")[2]


def with_loss(told: str, label: str) -> str:
    """A diagnosis, with what has become known of a lost rank meanwhile."""
    lost = _C.lost(label)
    return told if lost is None or end_of(lost) in told else f"{told} {sentence(lost)}".strip()


def sentence(text: str) -> str:
    """The text for a lost rank as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."
