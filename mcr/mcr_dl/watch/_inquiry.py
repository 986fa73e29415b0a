# SPDX-License-Identifier: Apache-2.0
"""An inquiry: one rank raises an alarm, collects the others' reports, and makes or reads the diagnosis."""

from __future__ import annotations

import time
from typing import NamedTuple

from mcr_dl.base.agreement import STORE_ERRORS
from mcr_dl.watch._alarm import ENDED, INQUIRY, MEMBER, STEPS, Alarm, Answers, Exchange
from mcr_dl.watch._diagnosis import absent, diagnose, whereabouts
from mcr_dl.watch._losses import Losses

_NEWS = 1.0  # seconds from an alarm until the loss of a rank that does not answer is known


class Found(NamedTuple):
    """The diagnosis, and whether this rank knows of ranks that have not answered."""

    text: str
    silent: bool


def find_out(exchange: Exchange, losses: Losses, alarm: Alarm, ranks: list[int], patience: float) -> Found:
    """Raise an alarm for a call of a group, and diagnose it. Raises STORE_ERRORS.

    ``ranks``: the group's global ranks; ``patience``: seconds for everything.
    """
    began = time.monotonic()
    deadline = began + patience
    number, first = exchange.raise_alarm(alarm, patience)
    if not first:
        told = exchange.diagnosis(number, alarm.group, deadline)
        if told is not None:
            return Found(told, silent=False)
        exchange.ring_again(number, alarm, deadline)
    answers = exchange.gather(number, deadline, lambda: losses.texts)
    ended = exchange.proceed(lambda: exchange.all_left(ENDED, answers.silent), deadline)
    news = min(began + _NEWS, deadline - 2 * STEPS) - time.monotonic()  # other ranks wait for what is published then
    losses.await_news([rank for rank in answers.silent if rank not in ended], news)
    absences = exchange.proceed(lambda: _absences(exchange, answers, losses.texts), deadline)
    told = diagnose(answers.reports, absences, alarm.group, ranks, alarm.seq, message=alarm.message)
    if first:
        exchange.publish(number, alarm.group, told, deadline)
    return Found(told, silent=bool(answers.silent))


def _absences(exchange: Exchange, answers: Answers, lost: dict[int, str]) -> dict[int, str]:
    """Why ranks have not answered. The last reports of those that have left one join the answers."""
    answers.reports.update(exchange.all_left(ENDED, answers.silent))
    missing = [rank for rank in answers.silent if rank not in answers.reports]
    members = exchange.all_left(MEMBER, [rank for rank in missing if rank not in lost])
    return {rank: end_of(lost[rank]) if rank in lost else absent(members.get(rank)) for rank in missing}


def end_of(lost: str) -> str:
    """``process 7 on a has ended``, from the text for a lost rank."""
    return lost.partition(": ")[2]


def locate(exchange: Exchange, losses: Losses, alarm: Alarm, ranks: list[int]) -> str:
    """Where these ranks are; empty if that cannot be found out."""
    deadline = time.monotonic() + INQUIRY

    def where(rank: int, answers: Answers) -> str:
        report = answers.reports.get(rank) or exchange.left(ENDED, rank)
        return absent(exchange.left(MEMBER, rank)) if report is None else whereabouts(report)

    try:
        number, _ = exchange.raise_alarm(alarm)
        answers = exchange.gather(number, deadline, lambda: losses.texts)
        return exchange.proceed(lambda: "; ".join(f"rank {rank}: {where(rank, answers)}" for rank in ranks), deadline)
    except STORE_ERRORS:
        return ""
