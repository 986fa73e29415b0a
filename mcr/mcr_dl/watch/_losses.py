# SPDX-License-Identifier: Apache-2.0
"""Ranks whose processes have ended without having ended communication: which, why, and what follows for the calls."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import Any

from mcr_dl import _C
from mcr_dl.base import launcher
from mcr_dl.base.stores import STORE_ERRORS
from mcr_dl.watch import _connections
from mcr_dl.watch._alarm import ENDED, MEMBER, Alarm, Exchange
from mcr_dl.watch._connections import Broken, Connections
from mcr_dl.watch._peers import Peers, ending_text
from mcr_dl.watch._report import identity, pid_namespace

_log = logging.getLogger("mcr_dl")
_START = 10.0  # seconds for the identities of other ranks, which all ranks of a job read at once
_NOTE = 0.3  # seconds to read the last report of an ended process
_READS = 6  # of it, at a store that is only slow
_LATER = 10.0  # seconds in which a loss that could not be told is told again
_GRACE = 0.3  # after the loss: calls that the library ends itself have its own text
_NEWS = 1.5  # seconds for the loss of a rank of another host to be told
_TELLING = 0.8  # seconds to raise an alarm while others are raised


def process_of(member: dict[str, Any]) -> str:
    """Names a process among all that have had a rank."""
    return f"{member['machine']}/{member['processes']}/{member['pid']}"


def _is_near(member: dict[str, Any]) -> bool:
    """Whether the process runs on this host, and its number has a meaning here."""
    return bool(member["machine"] == launcher.machine() and member["processes"] == pid_namespace())


class Losses:
    """The lost ranks, as one process knows them.

    This rank notices the ranks of its host by their processes, and those of other hosts by its connections, and tells
    the other ranks. If a process of this host ends, the lowest rank that still runs here tells them.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self._rank = exchange, exchange.rank
        self._silence = _connections.limit()
        self._texts: dict[int, str] = {}  # of lost ranks
        # Text and process of those of this host that this rank has not told to other hosts.
        self._untold: dict[int, tuple[str, str]] = {}
        self._replaced: dict[int, str] = {}  # by rank: the process that has taken the place of a lost one
        self._since = 0.0
        self._stopping = False
        self._lock = threading.Condition()
        self._nodes: list[int] = []  # each rank's host
        self._peers: Peers | None = None
        self._connections: Connections | None = None

    def begin(self, nodes: list[int]) -> None:
        """Watch the other ranks. ``nodes``: each rank's host, by a number.

        Every rank has left its identity at the store before.
        """
        self._nodes = list(nodes)
        here = [rank for rank in self._of(nodes[self._rank]) if rank != self._rank]
        try:
            members = self._exchange.ask(lambda: self._exchange.all_left(MEMBER, here), _START)
        except STORE_ERRORS as error:
            text = (
                "rank %d cannot read the identities of the other ranks of its host (%s): it notices the end of their "
                "processes only by time limits"
            )
            _log.warning(text, self._rank, error)
        else:
            self._peers = Peers(self._ended)
            self._peers.add({rank: each for rank, each in members.items() if _is_near(each)})
        self._connect(wait=True)

    def _of(self, node: int) -> list[int]:
        """The ranks of a host that are not lost."""
        return [rank for rank, other in enumerate(self._nodes) if other == node and rank not in self._texts]

    def _connect(self, *, wait: bool) -> None:
        """Connect to other hosts, once there are some."""
        if self._silence and self._connections is None and len(set(self._nodes)) > 1:
            try:
                self._connections = Connections(self._exchange, identity(self._rank), self._silence, self)
            except OSError as error:
                self.failed(str(error))
                return
            self._connections.start(self._nodes, set(self._texts), wait=wait)

    def stop(self, *, well: bool) -> None:
        """End the threads that watch. ``well``: this process is not lost."""
        self._stopping = True
        if self._connections is not None:
            self._connections.stop(well=well)
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

    def await_end(self, ranks: list[int], *, news: bool) -> None:
        """Give a process of these ranks, whose connections have ended, a moment to end itself.

        ``news``: also give other hosts a moment to tell.
        """
        others = set(ranks) - {self._rank}
        if self._peers is not None and not self._has_lost(others):
            self._peers.await_end(others)
        far = any(self._nodes[rank] != self._nodes[self._rank] for rank in others if self._connections is not None)
        if news and far:
            with self._lock:
                self._lock.wait_for(lambda: self._has_lost(others), _NEWS)

    def await_news(self, ranks: list[int], limit: float) -> None:
        """Wait up to ``limit`` seconds until the end of these processes, which do not answer, is known.

        Of those on other hosts; this host's processes can be inspected.
        """
        far = {rank for rank in ranks if self._nodes and self._nodes[rank] != self._nodes[self._rank]}
        if self._connections is not None:
            with self._lock:
                self._lock.wait_for(lambda: far <= self._texts.keys(), limit)

    def _has_lost(self, ranks: set[int]) -> bool:
        return any(rank in self._texts for rank in ranks)

    def learn(self, rank: int, text: str, process: str) -> None:
        """Another rank has told that one is lost."""
        if rank == self._rank and process != process_of(identity(rank)):
            return  # a process that had this rank before
        if rank == self._rank:
            text = f"the other ranks have found this process lost, and go on without it: {text}"
        self.lose(rank, text, process)

    def replace(self, rank: int, member: dict[str, Any], text: str, node: int) -> None:
        """Another process has taken the place of a lost rank, of which this process may not know yet."""
        self.lose(rank, text)
        with self._lock:
            self._replaced[rank] = process_of(member)
            self._untold.pop(rank, None)
            del self._texts[rank]
            _C.regain(rank)
            self._nodes[rank] = node
            if self._connections is not None:
                self._connections.update(self._nodes, set(self._texts), {**member, "rank": rank})
        if self._peers is not None and _is_near(member):
            self._peers.add({rank: member})
        self._connect(wait=False)  # the process may not be ready to be connected to

    def fail_operations(self, groups: list[_C.Group]) -> None:
        """Fail the operations that no thread waits for, so that futures and callbacks get the error.

        Those that a device runs for one of the groups are aborted, as its later work comes after them.
        """
        for work, known in _C.pending(lost=True):
            text = _C.lost(known["label"])
            if text is not None:
                _C.expire(work, f"{known['what']}: {text}", lost=True)
        for group in groups:
            if _C.lost(group._label) is not None:
                _C.give_up_streams(group)

    # ---- the end of a process of this host

    def _ended(self, rank: int, member: dict[str, Any], status: int | None) -> None:
        end = f"process {member['pid']} on {member['host']} {ending_text(status)}"
        failed = status is not None and os.WIFEXITED(status) and bool(os.WEXITSTATUS(status))
        process = process_of(member)
        text = self._why(rank, process, end, failed=bool(status), code=failed)
        if text is None or not self._is_new(rank, process):
            self._tell_hosts(rank)  # this rank may have been the one that tells the others
            return
        # First the others: a call that raises may end this process, and the store with it.
        self._tell_connected(rank, text, process)
        with self._lock:
            self._untold[rank] = text, process
        self._tell_hosts(rank)
        self.lose(rank, text, process)

    def _tell_hosts(self, ended: int) -> None:
        """Tell other hosts of the lost ranks, if no lower rank of this host can. ``ended``: this process is no more."""
        with self._lock:  # another thread may replace a rank
            untold, gone = dict(self._untold), {*self._texts, ended}
        if not untold or len(set(self._nodes)) < 2:
            return
        assert self._peers is not None
        lower = [other for other in self._peers.running() - gone if other < self._rank]
        with contextlib.suppress(*STORE_ERRORS):
            # Ranks that have ended communication watch no other any more.
            if lower and len(self._exchange.ask(lambda: self._exchange.all_left(ENDED, lower), _NOTE)) == len(lower):
                lower = []
        for lost, (text, process) in () if lower else untold.items():
            self._untold.pop(lost, None)
            self._tell(lost, text, process)

    def _why(self, rank: int, process: str, end: str, *, failed: bool, code: bool = False) -> str | None:
        """The text for a rank whose process has ended or cannot be reached; None if it has ended communication.

        A note of an earlier process of the rank, which could not be removed at the store, says nothing of this one.

        ``code``: it has an exit code other than 0.
        """
        report, readable = None, False
        for _ in range(1 if failed else _READS):
            try:
                report, readable = self._exchange.ask(lambda: self._exchange.left(ENDED, rank), _NOTE), True
            except STORE_ERRORS:
                if not self._exchange.slow or self._stopping:
                    break
                time.sleep(_NOTE)
            else:
                break
        if report is not None and process and process_of(report) != process:
            report = None
        well = report is not None and report["well"] and not (code and report["by_code"])
        if well or (not readable and self._stopping):
            return None
        if not readable and self._exchange.closed_well and not failed:
            return None  # the job ends; a failure would have had a status
        return f"lost rank {rank}: " + (end if report is None else f"{report['ended']} ({end})")

    # ---- the news of the connections: see _connections.Listener

    def broken(self, broken: Broken) -> None:
        """The process has ended, or no rank of its host can be reached."""
        member = broken.member
        ranks = self._of(self._nodes[broken.rank]) if broken.silent else [broken.rank]
        end = f"process {member['pid']} on {member['host']} {ending_text(None)}"
        if broken.silent:
            end = f"its host {member['host']} has not answered for {self._silence:g} s"
        for rank in ranks:
            process = process_of(member) if rank == broken.rank else self._process(rank)
            text = self._why(rank, process, end, failed=broken.silent)
            if text is not None and self._is_new(rank, process):
                self._tell_connected(rank, text, process)
                self._tell(rank, text, process)
                self.lose(rank, text, process)

    def _process(self, rank: int) -> str:
        """The process of a rank, as far as the store says."""
        member = None
        with contextlib.suppress(*STORE_ERRORS):
            member = self._exchange.ask(lambda: self._exchange.left(MEMBER, rank), _NOTE)
        return process_of(member) if member else ""

    def heard(self, row: dict[str, Any]) -> None:
        """A connected rank has told that one is lost."""
        self.learn(int(row["lost"]), str(row["text"]), str(row["process"]))

    def failed(self, reason: str) -> None:
        """There is no connection: the time limits remain."""
        _log.warning(
            "rank %d cannot keep a connection to another host (%s): it notices the end of the processes there, and of "
            "the host, only by its time limits; %s=0 turns these connections off",
            self._rank,
            reason,
            _connections.VARIABLE,
        )

    # ---- all losses

    def _is_new(self, rank: int, process: str) -> bool:
        """False if the rank is lost already, or if another process than this one has the rank now."""
        present = self._replaced.get(rank)
        return rank not in self._texts and not (process and present and process != present)

    def lose(self, rank: int, text: str, process: str = "") -> None:
        """Note the loss, if it is new."""
        with self._lock:
            if not self._is_new(rank, process):
                return
            self._texts[rank] = text
            self._since = time.monotonic()
            _C.lose(rank, text)
            self._lock.notify_all()
            if self._connections is not None:
                self._connections.update(self._nodes, set(self._texts))

    def _tell_connected(self, rank: int, text: str, process: str) -> None:
        """Tell the connected ranks of other hosts, also if the store has ended with the rank."""
        if self._connections is not None:
            self._connections.tell({"lost": rank, "text": text, "process": process})

    def _tell(self, rank: int, text: str, process: str) -> None:
        """Tell all ranks, through the store."""
        alarm = Alarm(self._rank, "lost", "", text, lost=rank, process=process)
        if not self._told(alarm):
            with contextlib.suppress(RuntimeError):  # at the end of the interpreter no thread can start
                threading.Thread(target=self._tell_later, args=(alarm,), name="mcr_dl news", daemon=True).start()

    def _tell_later(self, alarm: Alarm) -> None:
        """The store was slow, or other alarms came first: ranks that no connection reaches must learn it, too."""
        deadline = time.monotonic() + _LATER
        while self._exchange.slow and time.monotonic() < deadline:
            time.sleep(_NOTE)
            # Another process may have the rank by now, of which some ranks know nothing else.
            if self._texts.get(alarm.lost) != alarm.text or self._told(alarm):
                return

    def _told(self, alarm: Alarm) -> bool:
        # It is needless if it was this process that the network had cut off.
        return self._exchange.tell(alarm, _TELLING, lambda: self._rank in self._texts)
