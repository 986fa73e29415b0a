# SPDX-License-Identifier: Apache-2.0
"""Ranks whose processes have ended without having ended communication: which, why, and what follows for the calls."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from functools import partial
from typing import Any

from mcr_dl import _C
from mcr_dl.watch._alarm import Alarm, Exchange, StoreError
from mcr_dl.watch._peers import Peers, ending_text
from mcr_dl.watch._report import pid_namespace

_NOTE = 0.3  # seconds to read the last report of an ended process
_GRACE = 0.3  # after the loss: calls that the library ends itself have its own text
_TRIES = 20  # to raise an alarm while others are raised
_PAUSE = 0.02


def process_of(member: dict[str, Any]) -> str:
    """Names a process among all that have had a rank."""
    return f"{member['host']}/{member['processes']}/{member['pid']}"


def _is_near(member: dict[str, Any]) -> bool:
    """Whether the process runs on this host, and its number has a meaning here."""
    return bool(member["host"] == socket.gethostname() and member["processes"] == pid_namespace())


class Losses:
    """The lost ranks, as one process knows them.

    Ranks of this host are noticed by their processes. The lowest rank that still runs on a host tells the other hosts.
    """

    def __init__(self, exchange: Exchange, rank: int) -> None:
        self._exchange, self._rank = exchange, rank
        self._texts: dict[int, str] = {}  # of lost ranks
        self._untold: dict[int, tuple[str, str]] = {}  # text and process of those that the other hosts do not know
        self._replaced: dict[int, str] = {}  # by rank: the process that has taken the place of a lost one
        self._since = 0.0
        self._lock = threading.Lock()
        self._peers: Peers | None = None
        self._others = False  # there are ranks on other hosts

    def begin(self, here: list[int], *, others: bool) -> None:
        """Watch the ranks of this host. Every rank has left its identity at the store before."""
        self._others = others
        try:
            members = self._exchange.ask(lambda: {rank: self._exchange.left("member", rank) for rank in here})
        except StoreError:
            return  # the job cannot start without its store, and says so
        near = {rank: each for rank, each in members.items() if each and _is_near(each)}
        self._peers = Peers(near, self._ended)

    def stop(self) -> None:
        """End the thread that watches."""
        if self._peers is not None:
            self._peers.stop()

    @property
    def any(self) -> bool:
        """Whether a rank has been lost."""
        return bool(self._texts)

    @property
    def texts(self) -> dict[int, str]:
        """The lost ranks, and what happened to each."""
        with self._lock:
            return dict(self._texts)

    @property
    def overdue(self) -> bool:
        """Whether a rank has been lost for so long that no call of its groups can still end by itself.

        That stays true when another process takes the rank's place.
        """
        return 0 < self._since < time.monotonic() - _GRACE

    def await_end(self, ranks: list[int]) -> None:
        """Give a process of these ranks, whose connections have ended, a moment to end itself."""
        if self._peers is not None and not any(rank in self._texts for rank in ranks):
            self._peers.await_end(set(ranks) - {self._rank})

    def heard(self, alarm: Alarm) -> None:
        """A rank of another host has been lost."""
        if alarm.lost != self._rank:
            self._lose(alarm.lost, alarm.text, alarm.process)

    def note(self, texts: dict[int, str]) -> None:
        """Ranks have been lost before this process came."""
        for rank, text in texts.items():
            self._lose(rank, text)

    def replace(self, rank: int, member: dict[str, Any], text: str) -> None:
        """Another process has taken the place of a lost rank, of which this process may not know yet."""
        self._lose(rank, text)
        with self._lock:
            self._replaced[rank] = process_of(member)
            self._untold.pop(rank, None)
            del self._texts[rank]
            _C.regain(rank)
        near = _is_near(member)
        self._others = self._others or not near
        if self._peers is not None and near:
            self._peers.add(rank, member)

    def give_up(self, rank: int, text: str) -> None:
        """The process that was to take the place of a lost rank does not."""
        self._lose(rank, text)

    def fail_operations(self, groups: list[_C.Group]) -> None:
        """Fail the operations that no thread waits for, so that futures and callbacks get the error.

        Those that a device runs for one of the groups are aborted, as its later work comes after them.
        """
        for work, known in _C.pending():
            text = _C.lost(known["label"])
            if text is not None:
                _C.expire(work, f"{known['what']}: {text}", lost=True)
        for group in groups:
            if _C.lost(group._label) is not None:
                _C.give_up_streams(group)

    # ---- the end of a process of this host

    def _ended(self, rank: int, member: dict[str, Any], status: int | None) -> None:
        process = process_of(member)
        report, readable = None, True
        try:
            report = self._exchange.ask(lambda: self._exchange.left("ended", rank), _NOTE)
        except StoreError:
            readable = False
        if report is not None and report["well"]:
            return
        if not readable and self._exchange.closed_well and not status:
            return  # the job ends; a failure would have had a status
        end = f"process {member['pid']} on {member['host']} {ending_text(status)}"
        text = f"lost rank {rank}: " + (end if report is None else f"{report['ended']} ({end})")
        if self._lose(rank, text, process):
            self._tell(rank, text, process)

    def _lose(self, rank: int, text: str, process: str = "") -> bool:
        """Note the loss; False if the rank is lost already, or if another process than this one has the rank now."""
        with self._lock:
            present = self._replaced.get(rank)
            if rank in self._texts or (process and present and process != present):
                return False
            self._texts[rank] = text
            self._since = time.monotonic()
            _C.lose(rank, text)
            return True

    def _tell(self, rank: int, text: str, process: str) -> None:
        assert self._peers is not None
        self._untold[rank] = text, process
        running = self._peers.running() - self._untold.keys()
        if not self._others or any(other < self._rank for other in running):
            return
        for lost, (why, gone) in list(self._untold.items()):
            alarm = Alarm(self._rank, "lost", "", why, lost=lost, process=gone)
            with contextlib.suppress(*StoreError):
                self._exchange.ask(partial(self._raise_alarm, alarm), _TRIES * _PAUSE)

    def _raise_alarm(self, alarm: Alarm) -> None:
        for _ in range(_TRIES):
            if self._exchange.raise_alarm(alarm)[1]:
                return
            time.sleep(_PAUSE)
