# SPDX-License-Identifier: Apache-2.0
"""Connections between the hosts of a job, which break when a process ends or a host cannot be reached any more.

Each rank keeps a connection to a rank of the first host that has running ranks; the ranks of that host only accept.
The kernels of both ends check it every second, and answer for stopped processes too, so a slow or stopped process does
not break its connections.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import math
import os
import queue
import secrets
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from mcr_dl.base import addresses, documents
from mcr_dl.base.stores import STORE_ERRORS
from mcr_dl.watch._alarm import ADDRESS, MEMBER, Exchange, decode
from mcr_dl.watch._sockets import BACKLOG, check_often, listening, period

VARIABLE = "MCR_DL_HOST_TIMEOUT"
_DEFAULT = 5.0  # seconds
_CLOSING = 0.4  # seconds for the ranks of its host, and for the process itself, to tell why a process has ended
_PAUSE = 0.1  # seconds between two looks for a descriptor
_RETRY, _LONGEST_RETRY = 0.02, 0.1  # seconds between two attempts to connect: at first, and later
_DEPARTED = 1.0  # seconds before another rank replaces one that has ended as intended: all may be about to
_SENT = 0.2  # seconds for the thread to send something
_LAST = 2.0  # seconds for the thread to end
_LONGEST_LINE = 1 << 16
_UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


def limit() -> float:
    """Seconds after which a host that does not answer is lost; 0: never."""
    return float(os.environ.get(VARIABLE) or _DEFAULT)


class Broken(NamedTuple):
    """A connection that has broken: the rank and the identity of the process at its other end."""

    rank: int
    member: dict[str, Any]
    silent: bool  # its host does not answer; else the process has closed the connection without a word


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    rank: int = -1  # of the other end; -1 until that has introduced itself
    member: dict[str, Any] = field(default_factory=dict)
    token: str = ""  # with which this process introduces itself
    opened: bool = True  # False until it is connected
    deadline: float = 0.0  # for both ends to know each other; 0: they do
    received: bytes = b""


class Listener(Protocol):
    """The receiver of news, on the thread of the connections."""

    def broken(self, broken: Broken) -> None:
        """A connection broke a moment ago, and has not come back."""

    def heard(self, row: dict[str, Any]) -> None:
        """Another rank has told something (`Connections.tell`)."""

    def failed(self, reason: str) -> None:
        """There is no connection to other hosts, or not to all to which there should be one. Called once."""


_living: weakref.WeakSet[Connections] = weakref.WeakSet()


def _in_child() -> None:
    """In a forked child: its copies would keep the connections open after the end of this process."""
    for each in list(_living):
        each.close_copies()


os.register_at_fork(after_in_child=_in_child)


class Connections:
    """The connections of one process, on a thread of its own, which makes all calls of the functions that it gets."""

    def __init__(self, exchange: Exchange, member: dict[str, Any], silence: float, listener: Listener) -> None:
        """``member``: this process's identity; ``silence``: the seconds of `limit`. Raises OSError without a port."""
        self._exchange, self._member, self._rank = exchange, member, int(member["rank"])
        self._silence, self._listener = silence, listener
        self._token = secrets.token_hex(16)
        self._nodes: list[int] = []
        self._gone: set[int] = set()  # lost ranks
        self._departed: set[int] = set()  # those that have ended as intended, or cannot be reached
        self._up: _Connection | None = None  # to the first host
        self._wanted = -1  # the rank to which this one connects, or -1
        self._changed = True  # the ranks have: another one may be wanted
        self._known: dict[int, _Connection] = {}  # the accepted ones that have introduced themselves, by rank
        self._due: set[_Connection] = set()  # those with a finite deadline
        self._since = self._next = 0.0  # since when, and when the next attempt is due
        self._retry = _RETRY
        self._reached = False  # there has been a connection to another host
        self._warned = False
        self._returned: dict[int, dict[str, Any]] = {}  # by rank: the process that has taken the place of a lost one
        self._pending: dict[int, tuple[float, Broken]] = {}  # by rank, with the time to report it
        self._ready = threading.Event()  # there is a connection, or there is to be none
        self._requests: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ending = self._well = self._given_up = False
        self._selector = selectors.DefaultSelector()
        self._server = listening()
        self._wake, self._woken = socket.socketpair()
        for each in (self._server, self._wake, self._woken):
            each.setblocking(False)
        for each in (self._server, self._woken):
            self._selector.register(each, selectors.EVENT_READ, None)
        _living.add(self)
        self._thread = threading.Thread(target=self._run, name="mcr_dl hosts", daemon=True)

    def start(self, nodes: list[int], gone: set[int], *, wait: bool) -> None:
        """Leave this process's address, and connect. ``nodes``: each rank's host, by a number; ``gone``: lost ranks.

        ``wait``: return when the other end knows this process, so that its end is noticed from now on.
        """
        self._nodes, self._gone = list(nodes), set(gone)
        address = {
            "member": self._member,
            "host": addresses.on_way_to(addresses.store_host(self._exchange.store)),
            "port": self._server.getsockname()[1],
            "token": self._token,
        }
        if not self._exchange.leave(ADDRESS, address):
            self._warn("this rank could not leave its address at the store")
        self._thread.start()
        if wait:
            self._ready.wait(self._silence + _CLOSING)

    def update(self, nodes: list[int], gone: set[int], returned: dict[str, Any] | None = None) -> None:
        """Ranks have been lost, or the process ``returned`` has taken the place of a lost one."""
        nodes, gone = list(nodes), set(gone)

        def change() -> None:
            self._nodes, self._gone, self._changed = nodes, gone, True
            if returned is not None:
                rank = int(returned["rank"])
                self._given_up = False
                self._returned[rank] = returned
                self._departed.discard(rank)
                self._pending.pop(rank, None)

        self._request(change)

    def tell(self, row: dict[str, Any]) -> None:
        """Send a row of JSON's types to the ranks to which there are connections, before this returns."""
        sent = threading.Event()

        def send() -> None:
            for each in self._introduced():
                self._send(each, row)
            sent.set()

        if threading.current_thread() is self._thread:
            send()
        elif self._thread.is_alive():
            self._request(send)
            sent.wait(_SENT)

    def stop(self, *, well: bool) -> None:
        """Close all. ``well``: the other ends do not take this process for lost."""
        self._well, self._ending = well, True
        self._request(lambda: None)
        if self._thread.is_alive():
            self._thread.join(_LAST)

    def _request(self, action: Callable[[], None]) -> None:
        self._requests.put(action)
        with contextlib.suppress(OSError):
            self._wake.send(b"w")

    def close_copies(self) -> None:
        """In a forked child: close its copies of the sockets."""
        for each in self._sockets():
            each.close()

    # ---- the thread

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            self._warn(f"{type(error).__name__}: {error}")
            self._well = True  # no rank is to take this process for lost because of that
        if self._well:
            for each in self._introduced():
                self._send(each, {"ends": True})
        for opened in self._sockets():
            opened.close()
        self._wake.close()
        self._selector.close()
        self._ready.set()

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            self._listener.failed(reason)

    def _serve(self) -> None:
        while not self._ending:
            self._keep_connected()
            for key, _ in self._selector.select(self._pause()):
                if key.fileobj is self._server:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                else:
                    self._proceed(key.data)
            while not self._requests.empty():
                self._requests.get()()
            self._conclude()

    def _sockets(self) -> list[socket.socket]:
        keys = list((self._selector.get_map() or {}).values())
        return [key.fileobj for key in keys if isinstance(key.fileobj, socket.socket)]

    def _introduced(self) -> list[_Connection]:
        up = [] if self._up is None or self._up.deadline else [self._up]
        return [*self._known.values(), *up]

    def _pause(self) -> float | None:
        due = [*(at for at, _ in self._pending.values()), *(each.deadline for each in self._due)]
        if self._wanted >= 0 and self._up is None:
            due.append(self._next)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _conclude(self) -> None:
        """Report what broke a moment ago, and end what is overdue."""
        now = time.monotonic()
        for rank, (at, broken) in list(self._pending.items()):
            if at <= now:
                del self._pending[rank]
                self._report(broken)
        for each in [each for each in self._due if each.deadline <= now]:
            self._broke(each, TimeoutError(errno.ETIMEDOUT, "no answer"))

    def _report(self, broken: Broken) -> None:
        if self._is_former(broken.rank, broken.member):
            return
        known = broken.rank in self._gone or broken.rank in self._departed
        self._depart(broken.rank)
        if not known:
            self._listener.broken(broken)

    def _depart(self, rank: int) -> None:
        self._departed.add(rank)
        self._changed = True

    def _is_former(self, rank: int, member: dict[str, Any]) -> bool:
        """Whether another process has the rank by now."""
        return rank in self._returned and self._returned[rank] != member

    # ---- the connection to the first host

    def _target(self) -> int:
        """The rank to which this one connects; -1 on the first host, or if that was not possible."""
        if self._given_up:
            return -1
        absent, mine = self._gone | self._departed, self._nodes[self._rank]
        running = (rank for rank in range(len(self._nodes)) if rank not in absent)
        first = self._nodes[next(running, self._rank)]
        if first == mine:
            return -1
        targets = [rank for rank, node in enumerate(self._nodes) if node == first and rank not in absent]
        return targets[sum(node == mine for node in self._nodes[: self._rank]) % len(targets)]

    def _keep_connected(self) -> None:
        target, now = self._target() if self._changed else self._wanted, time.monotonic()
        self._changed = False
        if target != self._wanted:
            self._wanted, self._since, self._retry = target, max(now, self._next), _RETRY
            if self._up is not None:
                self._send(self._up, {"moves": True})
                self._close(self._up)
        if target < 0:
            self._ready.set()
        elif self._up is None and now >= self._next:
            self._next = now + self._retry
            self._retry = min(2 * self._retry, _LONGEST_RETRY)
            self._connect(target)

    def _address(self, target: int) -> dict[str, Any] | None:
        """The entry of the process that has the rank now, if it has left one."""
        address, member = self._exchange.left(ADDRESS, target), self._exchange.left(MEMBER, target)
        found: dict[str, Any] | None = address if address and address["member"] == member else None
        return found

    def _connect(self, target: int) -> None:
        address: dict[str, Any] | None = None
        try:
            with contextlib.suppress(*STORE_ERRORS):
                address = self._exchange.ask(lambda: self._address(target))
            if address is None:
                raise OSError(errno.ENOENT, f"rank {target} has left no address at the store")
            host = address["host"] or addresses.store_host(self._exchange.store) or address["member"]["host"]
            kind, protocol, number, _, place = socket.getaddrinfo(host, address["port"], type=socket.SOCK_STREAM)[0]
            opened = socket.socket(kind, protocol, number)
        except (OSError, UnicodeError) as error:
            self._failed(target, {}, error)
            return
        opened.setblocking(False)
        deadline = time.monotonic() + self._silence
        self._up = _Connection(opened, target, address["member"], address["token"], False, deadline)
        self._due.add(self._up)
        self._selector.register(opened, selectors.EVENT_WRITE, self._up)
        code = opened.connect_ex(place)
        if code not in (0, errno.EINPROGRESS):
            self._broke(self._up, OSError(code, os.strerror(code)))

    def _connected(self, each: _Connection) -> None:
        code = each.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._broke(each, OSError(code, os.strerror(code)))
            return
        each.opened = True
        check_often(each.socket, self._silence)
        if self._reached:
            each.deadline = math.inf  # the process may be stopped, but its host answers
            self._due.discard(each)
        self._selector.modify(each.socket, selectors.EVENT_READ, each)
        self._send(each, {"token": each.token, "member": self._member})

    def _failed(self, target: int, member: dict[str, Any], error: Exception) -> None:
        """An attempt to connect has failed. An earlier connection that has just broken is reported anyway."""
        code = getattr(error, "errno", 0)
        refused, silent = code == errno.ECONNREFUSED, code in _UNREACHABLE
        patience = _CLOSING if self._reached and refused else self._silence
        if target in self._pending or time.monotonic() - self._since < patience:
            return
        if not self._reached:  # it may be a firewall
            self._given_up = self._changed = True
            self._ready.set()
            self._warn(f"rank {target}: {error}")
        elif refused or silent:
            self._report(Broken(target, member, silent))
        else:
            self._depart(target)  # another one may do
            self._warn(f"rank {target}: {error}")

    # ---- all connections

    def _begin(self, each: _Connection) -> None:
        """Both ends know each other."""
        each.deadline = 0.0
        self._due.discard(each)
        self._reached = True
        self._pending.pop(each.rank, None)

    def _accept(self) -> None:
        """All that wait: at the start of a large job, these are many."""
        for _ in range(BACKLOG):
            try:
                accepted, _ = self._server.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no descriptor is left
                self._warn(str(error))
                time.sleep(_PAUSE)
                return
            accepted.setblocking(False)
            check_often(accepted, self._silence)
            one = _Connection(accepted, deadline=time.monotonic() + self._silence)
            self._due.add(one)
            self._selector.register(accepted, selectors.EVENT_READ, one)

    def _proceed(self, each: _Connection) -> None:
        """The connection has been made, or there is something to read."""
        if each.socket.fileno() < 0:
            return  # closed by what came just before
        if each.opened:
            self._receive(each)
        else:
            self._connected(each)

    def _receive(self, each: _Connection) -> None:
        try:
            received = each.socket.recv(_LONGEST_LINE)
            if not received:
                raise ConnectionResetError(errno.ECONNRESET, "closed")
            *lines, each.received = (each.received + received).split(b"\n")
            if len(each.received) > _LONGEST_LINE:
                raise ValueError("expected a line")
            for line in lines:
                self._take(each, decode(line))
        except BlockingIOError:
            pass
        except OSError as error:
            self._broke(each, error)
        except (ValueError, KeyError, TypeError):  # not from a rank of this job
            self._close(each)

    def _take(self, each: _Connection, row: dict[str, Any]) -> None:
        if each.rank < 0:
            rank = int(row["member"]["rank"])
            if not hmac.compare_digest(str(row["token"]), self._token) or not 0 <= rank < len(self._nodes):
                raise ValueError("expected the token of this process")
            for former in (self._known.get(rank), self._up):
                if former is not None and former.rank == rank and not former.deadline:
                    self._close(former)  # the other end has given it up
            each.rank, each.member, self._known[rank] = rank, row["member"], each
            self._changed |= rank in self._departed
            self._departed.discard(rank)
            self._begin(each)
            self._send(each, {"known": True})
        elif "known" in row:
            self._begin(each)
            self._ready.set()
        elif "ends" in row:
            self._depart(each.rank)
            self._next = time.monotonic() + _DEPARTED
            self._close(each)
        elif "moves" in row:
            self._close(each)
        else:
            self._listener.heard(row)

    @staticmethod
    def _send(each: _Connection, row: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a broken connection is noticed on reading
            each.socket.sendall(documents.dumps(row).encode() + b"\n")

    def _broke(self, each: _Connection, error: OSError) -> None:
        self._close(each)
        if each.rank < 0 or self._is_former(each.rank, each.member):
            return
        if each.deadline:
            self._failed(each.rank, each.member, error)
            return
        silent = error.errno in _UNREACHABLE
        # Until then it may connect again: only the connection may have been lost.
        due = time.monotonic() + _CLOSING + (period(self._silence) if silent else 0)
        self._pending[each.rank] = due, Broken(each.rank, each.member, silent)
        self._since = self._next = time.monotonic()

    def _close(self, each: _Connection) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(each.socket)
        each.socket.close()
        self._due.discard(each)
        if self._known.get(each.rank) is each:
            del self._known[each.rank]
        if each is self._up:
            self._up = None
