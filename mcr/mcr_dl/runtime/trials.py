# SPDX-License-Identifier: Apache-2.0
"""Makes the ranks agree on the times of trials, while the program goes on (src/choose/trials.h).

A thread of each process takes the reports of its groups' trials. The ranks' values meet at the store, since a rank may
be many calls ahead of another. Calls that need an agreement wait for it; after a second the ranks agree to do without,
since one of them may need something from the program that waits.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.base.stores import STORE_ERRORS, own_connection
from mcr_dl.runtime import state
from mcr_dl.runtime.rounds import PATIENCE, Round, pause

_log = logging.getLogger("mcr_dl")
_SHORTEST, _LONGEST = 0.0002, 0.02  # seconds between two checks for answers: the first while a call waits for one
_IDLE = 3600.0  # seconds; the thread is woken by reports
_LIMIT = 1.0  # seconds that a call waits for an agreement


@dataclass
class _Open:
    """A report without an answer."""

    report: _C.TrialReport
    round: Round
    size: int  # of the group
    begin: float = field(default_factory=time.monotonic)
    closed: float = 0.0  # since when another rank has to answer


class _Agreements:
    """The thread, and its connection to the store."""

    def __init__(self, store: torch_dist.Store) -> None:
        self._store = own_connection(store)
        self._ending = False
        self._open: list[_Open] = []
        self._thread = threading.Thread(target=self._run, name="mcr_dl trials", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; open reports get no answer."""
        self._ending = True
        _C.wake_trials()
        self._thread.join(1.0)

    def _run(self) -> None:
        while not self._ending:
            report = _C.next_trials(self._pause())
            if report is not None:
                self._step(report, partial(self._begin, report))
            self._open = [each for each in self._open if not self._step(each.report, partial(self._over, each))]

    def _step(self, report: _C.TrialReport, step: Callable[[], bool | None]) -> bool:
        """Take a step of the report; whether it was the last one. After any error the thread goes on: calls need it."""
        try:
            return bool(step())
        except Exception as error:
            _log.warning("trials (group %r): %r", report.group, error)
            report.fail(_lost(report, repr(error)))
            return True

    def _pause(self) -> float:
        if not self._open:
            return _IDLE
        size = max(each.size for each in self._open)
        awaited = max(each.report.awaited() for each in self._open)
        passed = awaited or time.monotonic() - max(each.begin for each in self._open)
        return max(pause(passed, size, _SHORTEST if awaited else _LONGEST), _SHORTEST)

    def _begin(self, report: _C.TrialReport) -> None:
        group = state.find(report.group)
        if group is None or report.closed:  # a later group may have the name
            return
        members = f"{report.group}/{group.ranks[0]}"  # parts of one group may share a name
        store = torch_dist.PrefixStore(f"trials/{members}", self._store)
        place = group.rank(), group.size()
        one = _Open(report, Round(store, report.key, *place, values=f"value/{report.key}"), group.size())
        try:
            last = one.round.arrive({"what": report.what, "times": report.times()})
        except STORE_ERRORS as error:
            if one.round.counting:  # the store may have counted this rank, and the others may agree
                report.fail(_lost(report, error))
                return
            # No rank can have an answer without this rank's value.
            _log.info("trials (group %r): the ranks cannot agree: %s", report.group, error)
            report.abandon()
            return
        try:
            if last:
                one.round.answer(_answer(one.round.values(), max if report.largest_counts else min))
        except STORE_ERRORS as error:
            report.fail(_lost(report, error))
            return
        self._open.append(one)

    def _over(self, one: _Open) -> bool:
        """Whether the report has its answer, or never gets one."""
        report, now = one.report, time.monotonic()
        if report.closed:  # no call needs the answer, and other ranks may never come
            one.closed = one.closed or now
            with contextlib.suppress(*STORE_ERRORS):
                if one.round.answered():
                    one.round.leave()
                elif one.round.close() or now - one.closed > PATIENCE:
                    one.round.withdraw()
                else:  # all have come, and the last one is about to answer; or another one is about to withdraw, too
                    return False
            return True
        try:
            if one.round.answered():
                _finish(report, one.round.result())
                one.round.leave()
                return True
            if not one.closed and report.awaited() > _LIMIT:
                one.closed = now
                if one.round.close():
                    one.round.answer({"late": True})
            if one.closed and now - one.closed > PATIENCE:
                report.fail(_lost(report, "the last rank to come has not answered"))
                return True
        except STORE_ERRORS as error:
            report.fail(_lost(report, error))
            return True
        return False


def _lost(report: _C.TrialReport, reason: object) -> str:
    calls, _, _ = report.what.partition(":")
    return (
        f"trials (group {report.group!r}): expected the ranks' agreement on the backend of {calls}; whether they have "
        f"agreed is not known: {reason}; name a backend in these calls, or make a new group"
    )


def _answer(values: list[Any], choose: Callable[[tuple[int, ...]], int]) -> dict[str, Any]:
    """One time for each timed call, of those of the ranks; or what differs between the ranks."""
    if None in values:  # the group has ended on another rank, which has withdrawn
        return {"late": True}
    for rank, value in enumerate(values):
        if value["what"] != values[0]["what"]:
            return {"different": [rank, value["what"], values[0]["what"]]}
    candidates = zip(*(value["times"] for value in values), strict=True)
    # A call that some rank has not timed counts for nothing.
    calls = [[(min(times), choose(times)) for times in zip(*ranks, strict=True)] for ranks in candidates]
    return {"times": [[time if least >= 0 else least for least, time in each] for each in calls]}


def _finish(report: _C.TrialReport, answer: dict[str, Any]) -> None:
    if "times" in answer:
        report.agree(answer["times"])
        return
    if "different" in answer:
        rank, got, expected = answer["different"]
        _log.warning(
            "trials (group %r): expected the same calls on all ranks, got %s on rank %d and %s on rank 0; the ranks "
            "try no other candidates for them",
            report.group,
            got,
            rank,
            expected,
        )
    report.abandon()


_running: _Agreements | None = None


def start() -> None:
    """Let the ranks agree from now on. Collective only in that all ranks must do it."""
    global _running
    if _running is None:
        _running = _Agreements(state.current().store)


def stop() -> None:
    """End that, if it runs."""
    global _running
    running, _running = _running, None
    if running is not None:
        with contextlib.suppress(RuntimeError):
            running.stop()


def enable(group: _C.Group) -> bool:
    """Try candidates for the calls of a new group that its measurements do not cover, where trials are on.

    They are on where ``auto`` measures by itself, since no table is named and mcr-tune has not measured the group's
    shape. All ranks decide alike: the knowledge is equal on all ranks.
    """
    known = state.current().knowledge
    if not known.seconds or group.size() < 2 or len(group.candidates) < 2:
        return False
    if not known.quick(known.shape(group.ranks)):
        return False
    start()
    group._try_candidates()
    return True
