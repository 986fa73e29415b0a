# SPDX-License-Identifier: Apache-2.0
"""Notices within milliseconds that the process of another rank of this host has ended.

The kernel reports the end of a process through its descriptor (pidfd), whatever ended it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import select
import signal
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

_log = logging.getLogger("mcr_dl")
_REAPED = 0.05  # seconds for the parent to collect the exit status, which the kernel reports only then
_PAUSE = 0.005
_STOP, _ADDED = b"s", b"a"  # what the thread is woken for
_LAST = 2.0  # seconds for the report on a process that has just ended
_CLOSING = 0.5  # seconds from the end of a process's connections until its end has been reported

# linux/pidfd.h, since Linux 6.15: ioctl PIDFD_GET_INFO with PIDFD_INFO_EXIT
_INFO_SIZE = 64
_GET_INFO = (3 << 30) | (_INFO_SIZE << 16) | (0xFF << 8) | 11
_EXIT = 1 << 3


def _status(descriptor: int) -> int | None:
    """The wait status of an ended process that is not a child; None if the kernel does not say."""
    buffer = bytearray(_INFO_SIZE)
    deadline = time.monotonic() + _REAPED
    while True:
        struct.pack_into("Q", buffer, 0, _EXIT)
        try:
            fcntl.ioctl(descriptor, _GET_INFO, buffer)
        except OSError:
            return None
        if struct.unpack_from("Q", buffer)[0] & _EXIT:
            return int(struct.unpack_from("i", buffer, _INFO_SIZE - 4)[0])
        if time.monotonic() > deadline:
            return None
        time.sleep(_PAUSE)


def _open(process: int) -> int | None:
    """A descriptor of a process; None if the system has none. Raises ProcessLookupError if it has ended."""
    try:
        return os.pidfd_open(process)
    except ProcessLookupError:
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):  # an old kernel, or one that a container restricts
            _log.warning("the end of process %d will be noticed only by time limits: %s", process, error)
        return None


def ending_text(status: int | None) -> str:
    """``has ended with exit code 1``, ``has ended: SIGKILL``, ``has ended``."""
    if status is None:
        return "has ended"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(ValueError):
            return f"has ended: {signal.Signals(number).name}"
        return f"has ended: signal {number}"
    return f"has ended with exit code {os.WEXITSTATUS(status)}"


class Peers:
    """Watches processes of this host. ``ended`` gets the rank, its member and its wait status.

    On a thread of its own, and in `add` for processes that have ended before. The status is None if the
    kernel does not say.
    """

    def __init__(self, ended: Callable[[int, dict[str, Any], int | None], None]) -> None:
        self._ended = ended
        self._running: dict[int, tuple[int, dict[str, Any]]] = {}  # rank and member by descriptor
        self._process = os.getpid()  # a forked child has the pipe, but not the thread
        self._changed = threading.Condition()
        self._wake = os.pipe()
        self._open = True  # the pipe
        self._thread = threading.Thread(target=self._watch, name="mcr_dl peers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread: at the end of the interpreter it must not be inside the core."""
        self._notify(_STOP)
        if self._thread.is_alive():
            self._thread.join(_LAST)

    def add(self, members: Mapping[int, dict[str, Any]]) -> None:
        """Watch more processes, some of which may have ended already.

        ``members``: what the ranks have left at the store (`_report.identity`), by rank.
        """
        gone = {}
        for rank, member in members.items():
            try:
                descriptor = _open(member["pid"])
            except ProcessLookupError:
                gone[rank] = member
                continue
            if descriptor is not None:
                with self._changed:
                    self._running[descriptor] = rank, member
        self._notify(_ADDED)
        for rank, member in gone.items():  # now `running` has the others, of which one tells other hosts
            self._ended(rank, member, None)

    def _notify(self, reason: bytes) -> None:
        if os.getpid() != self._process:
            return
        with self._changed:
            if self._open:  # else the numbers of the pipe may be those of other files
                os.write(self._wake[1], reason)

    def running(self) -> set[int]:
        """The ranks whose processes have not ended."""
        with self._changed:
            return self._ranks()

    def _ranks(self) -> set[int]:
        return {rank for rank, _ in self._running.values()}

    def await_end(self, ranks: set[int]) -> None:
        """Wait a moment if one of the processes is about to end: a process closes its connections before it ends."""
        with self._changed:
            expected = ranks & self._ranks()
            self._changed.wait_for(lambda: not expected <= self._ranks(), _CLOSING)

    def _watch(self) -> None:
        while True:
            poll = select.poll()
            with self._changed:
                descriptors = (self._wake[0], *self._running)
            for descriptor in descriptors:
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll():
                if descriptor != self._wake[0]:
                    self._report(descriptor)
                elif os.read(descriptor, 1) == _STOP:
                    self._close()
                    return

    def _report(self, descriptor: int) -> None:
        rank, member = self._running[descriptor]
        try:
            self._ended(rank, member, _status(descriptor))
        except Exception:  # the other processes are still watched
            _log.exception("the report on the end of process %d, which was rank %d, has failed", member["pid"], rank)
        with self._changed:
            del self._running[descriptor]
            self._changed.notify_all()
        os.close(descriptor)

    def _close(self) -> None:
        with self._changed:
            for descriptor in (*self._wake, *self._running):
                os.close(descriptor)
            self._open = False
            self._running.clear()
