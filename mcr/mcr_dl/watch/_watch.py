# SPDX-License-Identifier: Apache-2.0
"""The watch of one process: it checks timeouts, raises and answers alarms, and ends calls that cannot continue."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.base import agreement, stores, variables
from mcr_dl.base.launcher import holds
from mcr_dl.base.warning import say
from mcr_dl.watch import _fork, _report, dump
from mcr_dl.watch._alarm import ANSWERS, ENDED, INQUIRY, MEMBER, PARTING, Alarm, Exchange
from mcr_dl.watch._detail import FAREWELL, Detail
from mcr_dl.watch._diagnosis import ARRIVED, complete, name_of, number_of
from mcr_dl.watch._inquiry import SAME, Inquiries, sentence, with_loss
from mcr_dl.watch._losses import Losses

_log = logging.getLogger("mcr_dl")
_PERIOD = 0.1  # seconds between two samples
_GRACE = 0.3  # after a call's timeout: most calls raise by themselves
_ERROR_INQUIRY = 1.8  # for the other ranks' reports, if the error came without a delay of the sampler
_LONGEST_INQUIRY = 10.0  # for reports after a timeout: half of the call's own limit, at most this
_ROUND = 1.5  # for the inquiries of operations that time out together; the rest of these share the last diagnosis
_LOOK, _LOOKS = 0.1, 4  # for a thread to leave its call after the communicator has been aborted
_SAYING = 6.0  # for the last words of a process that ends itself
_PROMPT = 1.0  # within which a call must react to Ctrl-C by itself
_SPACING = 1.0  # between alarms on errors that the program may catch
_LEAST_INQUIRY = 0.5  # of _ERROR_INQUIRY, after the rest of the spacing
EXIT_TIMEOUT = 70  # exit codes of processes ended in a call that cannot be interrupted (sysexits.h: EX_SOFTWARE)
EXIT_INTERRUPTED = 130


_Living = Callable[[], list[_C.Group]]  # the groups that exist


class Former(NamedTuple):
    """The job's state before a process took the place of a lost rank."""

    alarm: int  # the number of the next alarm
    lost: dict[int, str]  # the other ranks that have been lost, and what happened to each


class _Known(NamedTuple):
    """The last diagnosis, and the call that it was made for."""

    label: str
    message: bool
    seq: int
    told: str
    time: float
    begun: dict[str, dict[str, Any]]  # the positions of this process's groups then, by their labels

    def holds_for(self, label: str, seq: int, message: bool) -> bool:
        """Whether it is recent, and a call was under way then: one that began later may fail for another reason."""
        position = self.begun.get(label, {"messages": 0, "collectives": 0})
        under_way = seq <= int(position["messages" if message else "collectives"])
        return under_way and time.monotonic() - self.time < SAME


class Watch:
    """One life of the runtime, from init to finalize."""

    def __init__(
        self, store: torch_dist.Store, rank: int, size: int, living: _Living, *, detail: bool, former: Former | None
    ) -> None:
        self.rank, self._size, self._living = rank, size, living
        self._holds_store = rank == 0 and holds(store)
        self._ages = _report.Ages()
        self._former = former
        number = 0 if former is None else former.alarm
        self._exchange = Exchange(store, rank, size, self._answer, self._heard, number, lambda: self.losses.texts)
        self.losses = Losses(self._exchange)
        self.inquiries = Inquiries(self._exchange, self.losses)
        self._well = True  # communication has ended as intended
        self.begun = False  # this life has begun on all ranks
        # Ranks are or were missing: steps at the end that would wait for them are skipped.
        self.broken = threading.Event()
        if former is not None:
            self.broken.set()
        self.detail = Detail(self._exchange, self.broken) if detail else None
        self._ending = threading.Event()
        self._inquiring = threading.Lock()
        self._known = _Known("", False, 0, "", -SAME, {})
        self._last_alarm = -_SPACING
        self._failed: str | None = None  # the last call that has failed
        self._tolerated: set[tuple[str, str]] = set()  # groups, by their labels, whose making may stay in a library
        looks = [self._look_at_threads, self._look_at_operations, self._look_at_losses]
        self._steps: list[Callable[[], None]] = [_C.watch_interrupts, *looks]
        if self.detail is not None:
            self._steps.append(self.detail.compare)
        self._sampler = threading.Thread(target=self._sample, name="mcr_dl watch", daemon=True)

    def start(self) -> None:
        """Begin, on its own threads."""
        if self._former is not None:
            self._exchange.take_over()
            for rank, text in self._former.lost.items():
                self.losses.lose(rank, text)
        self._exchange.start()
        self._exchange.leave(MEMBER, _report.identity(self.rank))
        self._sampler.start()

    def stop(self, reason: str, *, well: bool, by_code: bool = False) -> None:
        """End, and leave a note why this process is no longer there, and whether it ends as intended."""
        if self.detail is not None:
            self.detail.tell()
        self._ending.set()
        self._well = well
        if self._failed is not None and self._failed not in reason:
            reason = f"{reason}, after a failure of {self._failed}"
        # Without its note, a rank that ends as intended would be taken for lost.
        last = _report.last(self.rank, self._size, self._ages, reason, well=well, by_code=by_code)
        self._exchange.leave(ENDED, last, limit=PARTING if well else INQUIRY, anyhow=well)
        self.losses.stop(well=well)
        self._exchange.stop()
        if self._sampler.is_alive():
            self._sampler.join(ANSWERS + 1.0)

    def leave_together(self, well: bool, limit: float | None) -> bool:
        """At the end of the process: whether the libraries can be ended, which needs all ranks."""
        well = well and not self.broken.is_set() and not self.losses.any
        return self._exchange.leave_together(well, limit, begun=self.begun)

    def close(self) -> None:
        """The process ends: tell the other ranks if the store ends with it."""
        if self._holds_store:
            self._exchange.close(f"rank {self.rank}, which holds it, has ended", well=self._well)

    # ---- the sampler

    def _sample(self) -> None:
        failed: set[str] = set()
        while not self._ending.wait(_PERIOD):
            for step in self._steps:
                try:
                    step()
                except Exception:
                    if step.__name__ not in failed:  # the next look may succeed, and nothing else ends stuck calls
                        _log.exception("rank %d: the watch has failed in a step", self.rank)
                    failed.add(step.__name__)

    def _look_at_losses(self) -> None:
        if self.losses.any:
            self.broken.set()
        if self.losses.overdue:
            self.losses.fail_operations(self._living())

    def _look_at_threads(self) -> None:
        interrupt = _C.latest_interrupt()
        for activity in self._ages.sample():
            tolerated = (activity["label"], activity["backend"]) in self._tolerated and activity["op"] == "connect"
            if activity["waits"] or tolerated:
                continue
            age = activity["age"]
            main = activity["thread"] == os.getpid()
            if main and interrupt is not None and interrupt[0] > _PROMPT and interrupt[1] == activity["turn"]:
                text = f"{name_of(activity)}: interrupted after {age:.1f} s in a call that cannot be left otherwise"
                self._end_process(f"KeyboardInterrupt: {text}", EXIT_INTERRUPTED)
            lost = _C.lost(activity["label"]) if self.losses.overdue else None
            if lost is not None:
                self._end_activity(activity, f"PeerLostError: {name_of(activity)}: {lost}")
            elif 0 < activity["limit"] < age - _GRACE:
                self._end_activity(activity, f"CollectiveTimeoutError: {self._timed_out(name_of(activity), activity)}")

    def _end_activity(self, activity: dict[str, Any], text: str) -> None:
        if not self._still(activity):
            return
        for group in self._living():
            if group._label == activity["label"]:
                _C.give_up(group)  # some libraries then release their callers, and these raise by themselves
        for _ in range(_LOOKS):
            if self._ending.wait(_LOOK) or not self._still(activity):
                return
        self._end_process(text, EXIT_TIMEOUT)

    def _timed_out(self, what: str, call: dict[str, Any], told: str = "") -> str:
        """The text of the error; ``told``: the diagnosis, if it is there."""
        limit = f"{call['limit'] * 1000:.0f} ms"
        text = f"{what}: {number_of(call)} timed out: still running after the timeout of {limit}"
        if call.get("behind"):
            text += f"; it is issued after {call['behind']}"
        patience = min(max(INQUIRY + 2 * self._exchange.more, call["limit"] / 2), _LONGEST_INQUIRY)
        unnumbered = call["message"] or call["op"] == "connect"
        told = told or self._explanation(text, call["label"], call["seq"], unnumbered, "timeout", patience)
        return complete(text, call["label"], with_loss(told, call["label"]), timeout=True)

    def _still(self, activity: dict[str, Any]) -> bool:
        key = activity["thread"], activity["turn"]
        return any((each["thread"], each["turn"]) == key for each in _C.activities())

    def _look_at_operations(self) -> None:
        """Fail operations past their timeout that no thread waits for, so that futures and callbacks get the error."""
        begin = time.monotonic()
        for work, known in sorted(_C.overdue(_GRACE), key=lambda each: each[1]["seq"]):
            shared = time.monotonic() - begin > _ROUND and self._known.label != known["label"]
            told = self._of_another_call(known["label"], known["seq"], known["message"], 0.0) if shared else ""
            _C.expire(work, self._timed_out(known["what"], known, told))

    def _end_process(self, text: str, code: int) -> None:
        """End the process: nothing else ends a thread inside a library, and not even a signal handler gets to run."""
        with contextlib.suppress(RuntimeError):  # at the end of the interpreter no thread can start
            threading.Thread(target=_exit_later, args=(code,), name="mcr_dl end", daemon=True).start()
        try:
            place = _report.place()
            reason = f"it has ended itself: {text.partition('.')[0]}"
            self._well = False
            last = _report.last(self.rank, self._size, self._ages, reason, well=False)
            self._exchange.leave(ENDED, last, anyhow=True)
            self._exchange.fail()
            say(f"mcr_dl: {text}" + (f"\n  at {place}" if place else ""))
            self.close()
        finally:
            os._exit(code)

    # ---- alarms

    def explain(self, text: str, label: str, seq: int, message: bool, timeout: bool) -> str:
        """Complete the error text of a call that other ranks take part in."""
        known = self._recent(label, message, seq, seq)
        spaced = time.monotonic() >= self._last_alarm + _SPACING
        lost = None if timeout else self._lost(label, news=spaced and known is None)
        if lost is not None:
            return complete(text, label, sentence(lost), timeout=False)
        told = self._found(text, label, seq, message) if known is None else known
        return complete(text, label, told, timeout=timeout)

    def _found(self, text: str, label: str, seq: int, message: bool) -> str:
        """The diagnosis of another call that waited at the same time, or a new one, once another alarm may follow.

        Empty if that leaves no time for an inquiry.
        """
        deadline = time.monotonic() + _ERROR_INQUIRY + 2 * self._exchange.more
        while (next_alarm := self._last_alarm + _SPACING) > time.monotonic():
            told = self._of_another_call(label, seq, message, deadline - time.monotonic())
            late = max(next_alarm, time.monotonic()) > deadline - _LEAST_INQUIRY
            if told or late or _position(label) is None:
                return told
            if self._ending.wait(max(next_alarm - time.monotonic(), 0.0)):
                return ""
        return with_loss(self._explanation(text, label, seq, message, "error", deadline - time.monotonic()), label)

    def _of_another_call(self, label: str, seq: int, message: bool, patience: float) -> str:
        """The diagnosis that another thread has just made, or makes now: both calls probably wait for the same rank."""
        if self._inquiring.acquire(timeout=patience):
            self._inquiring.release()
        known = self._known
        useful = known.told and ARRIVED not in known.told and known.holds_for(label, seq, message)
        return f"Found for a call of {known.label}: {known.told}" if useful else ""

    def _lost(self, label: str, *, news: bool) -> str | None:
        """Why the group of a failed call has lost a rank: the library may notice it before the end of the process.

        ``news``: wait for those of other hosts too.
        """
        position = _position(label)
        if position is not None:
            self.losses.await_end(position["ranks"], news=news)
        return _C.lost(label)

    def _explanation(self, text: str, label: str, seq: int, message: bool, kind: str, patience: float) -> str:
        if self._ending.is_set():
            return ""
        position = _position(label)
        if position is None:
            return ""
        deadline = time.monotonic() + patience
        acquired = self._inquiring.acquire(timeout=patience / 2)  # another thread may inquire
        try:
            known = self._recent(label, message, 0, seq) if kind == "timeout" else None
            if known is not None and ARRIVED not in known:
                return known  # what an earlier call of the group waits for, a later one waits for, too
            if not acquired:
                return ""
            self._failed = text.partition("\n")[0]
            self._last_alarm = time.monotonic()
            alarm = Alarm(self.rank, kind, position["group"], text, seq, message)
            told = self._inquire(alarm, position["ranks"], deadline - self._last_alarm)
            begun = {each["label"]: each for each in _C.positions(most=0)}
            self._known = _Known(label, message, seq, told, time.monotonic(), begun)
        finally:
            if acquired:
                self._inquiring.release()
        return told

    def _recent(self, label: str, message: bool, first: int, last: int) -> str | None:
        """The diagnosis for a call of the group with one of these numbers, if it is recent."""
        known = self._known
        if (known.label, known.message) != (label, message) or not first <= known.seq <= last:
            return None
        return known.told if known.holds_for(label, last, message) else None

    def _inquire(self, alarm: Alarm, ranks: list[int], patience: float) -> str:
        try:
            found = self.inquiries.find_out(alarm, ranks, patience)
        except stores.STORE_ERRORS as error:
            self.broken.set()
            reason = str(error).partition("\n")[0]
            return f"Which ranks have not arrived is not known, as the store cannot be reached ({reason})."
        except Exception as error:  # a report of another kind than this process makes
            _log.exception("rank %d: the reports of the other ranks cannot be read", self.rank)
            return f"Which ranks have not arrived is not known: {type(error).__name__}: {error}."
        if found.silent:
            self.broken.set()
        return found.text

    def _answer(self, alarm: Alarm) -> _report.Report:
        report = _report.make(self.rank, self._size, self._ages, alarm.group)
        if self.detail is not None and alarm.message:
            report["unmatched"] = self.detail.comparison.unmatched(alarm.group)
        self.inquiries.note(self._exchange.number, alarm, report)
        return report

    def _heard(self, number: int, alarm: Alarm) -> None:
        if alarm.kind == "desync":
            self.broken.set()
            _C.stop_desync(alarm.text)
        elif alarm.kind == "lost":
            self.losses.learn(alarm.lost, alarm.text, alarm.process)
        if variables.path(dump.VARIABLE) is not None:
            report = _report.make(self.rank, self._size, self._ages, alarm.group, whole=True)
            dump.write(number, report, vars(alarm))


def _exit_later(code: int) -> None:
    """End the process also if what it still has to say takes too long, as on a pipe that no process reads."""
    time.sleep(_SAYING)
    os._exit(code)


def _position(label: str) -> dict[str, Any] | None:
    """The group's position in its calls; None if it does not exist any more."""
    return next((each for each in _C.positions(most=0) if each["label"] == label), None)


# ---- the process's watch

_current: Watch | None = None
_last: Watch | None = None


def explain(text: str, label: str, seq: int, message: int, timeout: int) -> str:
    """Complete the text of an error; the core calls this for the errors that it raises."""
    return text if _current is None else _current.explain(text, label, seq, bool(message), bool(timeout))


def locate(text: str, ranks: list[int]) -> str:
    """Where ranks are that have not come to a step of the start; empty if that is not known."""
    return "" if _current is None else _current.inquiries.locate(text, ranks)


def compare() -> None:
    """Leave this process's new calls for the comparison, in detail mode, before a group ends."""
    if _current is not None and _current.detail is not None:
        _current.detail.compare()


def compare_last() -> str:
    """At the end of the runtime, in detail mode: compare the remaining calls, with all ranks.

    Returns the text of a difference that no call has raised, else an empty one.
    """
    if _current is not None and _current.detail is not None:
        _current.detail.compare_last()
    return _C.take_desync()


def start(
    store: torch_dist.Store,
    rank: int,
    size: int,
    living: _Living,
    *,
    detail: bool,
    former: Former | None = None,
    awaited: bool = False,
) -> None:
    """Begin to watch, if there are other ranks. ``former``: this process takes the place of a lost rank.

    ``awaited``: ranks of an earlier life may wait there for the end of this process.
    """
    global _current
    _C.clear_stop()
    _C.set_detail(detail)
    _fork.prepare(rank, living)
    if size > 1:
        if awaited and _last is not None:
            _last._exchange.move_on()
        _current = Watch(store, rank, size, living, detail=detail, former=former)
        _current.start()


def watch_processes(nodes: list[int]) -> None:
    """Notice the end of the other ranks' processes. All ranks have begun to watch before.

    ``nodes``: each rank's host, by a number.
    """
    if _current is not None:
        _current.begun = True
        _current.losses.begin(nodes)


def lost() -> dict[int, str]:
    """The global ranks whose processes have been lost so far, as this process knows, and what happened to each."""
    return {} if _current is None else _current.losses.texts


def replace(rank: int, member: dict[str, Any], text: str, node: int) -> None:
    """Another process has taken the place of a lost rank: groups made from now on can have it.

    ``member``: the identity of the process; ``text``: what happened to the one before, if that is not known here;
    ``node``: the number of its host.
    """
    if _current is not None:
        _current.broken.set()
        _current.losses.replace(rank, member, text, node)


def tolerate(label: str, backend: str) -> None:
    """The process does not end if threads that connect the group of this label stay in the backend's library."""
    if _current is not None:
        _current._tolerated.add((label, backend))


def give_up(rank: int, text: str) -> None:
    """The process that was to take the place of a lost rank does not: the rank is lost again."""
    if _current is not None:
        _current.losses.lose(rank, text)


def former() -> Former:
    """The facts that a process in the place of a lost rank must know."""
    return Former(0, {}) if _current is None else Former(_current._exchange.number, _current.losses.texts)


def has_lost() -> bool:
    """Whether a rank is lost, or was before another process took its place."""
    return _current is not None and (_current.broken.is_set() or _current.losses.any)


def stop(reason: str = "it has ended communication", *, well: bool = True, by_code: bool = False) -> None:
    """End the watch. ``well``: this process ends communication as intended, so it is not lost.

    ``by_code``: unless its exit code, which follows, is another one than 0.
    """
    global _current, _last
    ended, _current = _current, None
    if ended is not None:
        ended.stop(reason, well=well, by_code=by_code)
        if _last is not None:
            _last._exchange.end()
        _last = ended


def leave_together(well: bool, *, patient: bool = False) -> bool:
    """Whether all ranks are at the end of their processes, and have got there without an error.

    ``patient``: the others may come at any time later, as this process's end would be theirs. True then only says that
    no rank is known to have failed: the libraries wait for those that this process cannot wait for.
    """
    return well if _last is None else _last.leave_together(well, None if patient else FAREWELL)


def close() -> None:
    """The process ends: notify the other ranks if the job's store ends with it, as it usually does with rank 0."""
    if _last is not None:
        _last.close()


_C.set_explainer(explain)
agreement.set_locator(locate)
