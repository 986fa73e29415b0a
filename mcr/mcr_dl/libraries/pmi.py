# SPDX-License-Identifier: Apache-2.0
"""Starts MPI without an MPI launcher: answers an MPI library's process-management requests from torch's store.

Libraries of the MPICH family ask their launcher for the other ranks, and exchange addresses through it, in PMI-1: lines
of ``cmd=name key=value ...`` over a socket whose number is in the environment. Here the other end of the socket is a
thread of the same process, so MPI_Init and MPI_Finalize must run without the GIL, and before Python ends.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import Enum, auto

from torch.distributed import PrefixStore, Store

from mcr_dl.base import blocks, launcher
from mcr_dl.base.stores import own_connection

TIMEOUT = timedelta(minutes=5)  # for other ranks in MPI_Init and MPI_Finalize
_MAPPING = "PMI_process_mapping"
_KEY_LENGTH = 64
_VALUE_LENGTH = 1024
_LINE_LENGTH = 1 << 16
_NONE = "no value"  # which a line cannot have, as it is two words
_PATIENCE = 2.0  # seconds
_PAUSE = 0.02  # between two looks at the store
_FAREWELL = "cmd=finalize_ack rc=0"


class _State(Enum):
    UNUSED = auto()  # MPI has sent no request yet, so this object still owns MPI's end of the socket
    SERVING = auto()
    LEFT = auto()  # MPI has finalized
    CLOSED = auto()


def process_mapping(hosts: Sequence[str]) -> str:
    """Write PMI's mapping of ranks to hosts: blocks of (first host, number of hosts, ranks on each)."""
    packed = blocks.pack(blocks.numbered(hosts))
    return "(vector," + ",".join(f"({first},{nodes},{each})" for first, nodes, each in packed) + ")"


class Responder(ABC):
    """Plays the MPI launcher for this process; the store replaces the launcher's own network.

    Construct it on every rank before MPI_Init; it sets the variables that MPI reads in the environment, as a launcher
    does, and `hide()` removes them once MPI has read them.
    """

    def __init__(self, store: Store, name: str, rank: int, size: int, timeout: timedelta) -> None:
        """``name``: of its part of the store; ``timeout``: how long one rank waits for the others."""
        self._rank, self._size, self._timeout = rank, size, timeout
        self._given = store  # kept alive: it may be the store that serves all ranks
        self._store = PrefixStore(f"mcr_dl/{name}", own_connection(store))
        self._leaving, self._gone = threading.Event(), threading.Event()
        self._process = os.getpid()
        self._environment: dict[str, str] = {}

    def hide(self) -> None:
        """Remove the variables that still have these values, so that child programs do not see them."""
        for name, value in self._environment.items():
            if os.environ.get(name) == value:
                del os.environ[name]

    def leave(self) -> None:
        """Treat MPI's requests from now on as part of its finalization."""
        self._leaving.set()

    @abstractmethod
    def close(self) -> None:
        """Stop answering. Call it at exit, or once MPI_Finalize has returned."""

    def _wait(self, keys: list[str]) -> None:
        """Wait for keys. After ``leave()``, the other ranks may be gone, and the thread must not be inside the store
        when Python ends: then this raises RuntimeError as soon as ``_gone`` is set.
        """
        if not self._leaving.is_set():
            self._store.wait(keys, self._timeout)
            return
        while not self._store.check(keys):
            if self._gone.wait(_PAUSE):
                raise RuntimeError("the process ends")


class PmiResponder(Responder):
    """The responder for libraries of the MPICH family, with ``PMI_FD``, ``PMI_RANK`` and ``PMI_SIZE``."""

    def __init__(self, store: Store, rank: int, size: int, *, timeout: timedelta = TIMEOUT) -> None:
        """Start answering. `timeout` is how long one rank waits for the others in MPI_Init and MPI_Finalize."""
        super().__init__(store, "pmi", rank, size, timeout)
        self._barriers = 0
        self._state = _State.UNUSED
        maxes = f"kvsname_max={_KEY_LENGTH} keylen_max={_KEY_LENGTH} vallen_max={_VALUE_LENGTH}"
        self._commands: dict[str, Callable[[dict[str, str]], str]] = {
            "init": lambda _: "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1",
            "get_maxes": lambda _: f"cmd=maxes rc=0 {maxes}",
            "get_appnum": lambda _: "cmd=appnum rc=0 appnum=0",
            "get_universe_size": lambda _: f"cmd=universe_size rc=0 size={size}",
            "get_my_kvsname": self._get_my_kvsname,
            "put": self._put,
            "get": self._get,
            "barrier_in": self._barrier,
            "finalize": self._finalize,
        }
        self._socket, theirs = socket.socketpair()
        self._stop, self._stopped = socket.socketpair()
        # MPI closes its end itself. Child programs do not inherit it.
        self._client_fd = theirs.detach()
        self._environment = {
            "PMI_FD": str(self._client_fd),
            "PMI_RANK": str(rank),
            "PMI_SIZE": str(size),
            "MPIR_CVAR_PMI_VERSION": "1",  # MPICH would not choose if another library's launcher speaks PMIx
        }
        os.environ.update(self._environment)
        if rank == 0:
            self._store.set("job", f"mcr_dl-{uuid.uuid4().hex}")
        give(self._store, "host", rank, size, launcher.host_identity(), process_mapping)
        self._thread = threading.Thread(target=self._serve, name="mcr_dl-pmi", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering, except MPI's final request. Call it at exit, or once MPI_Finalize has returned."""
        if self._state == _State.CLOSED or os.getpid() != self._process:  # a forked child must not answer
            return
        self.hide()
        self._leaving.set()
        self._gone.set()
        self._stop.shutdown(socket.SHUT_RDWR)  # closing would not end it: forked children have copies
        self._stop.close()
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():  # it waits for ranks that do not come; the process's end releases what it holds
            return
        if self._state == _State.UNUSED:
            os.close(self._client_fd)
        elif self._state == _State.SERVING:
            # MPICH finalizes when the process ends, after Python has: the answer is written in advance, into a socket
            # that stays open.
            with contextlib.suppress(OSError):
                self._send(_FAREWELL)
            self._socket.detach()
        self._socket.close()
        self._state = _State.CLOSED

    def _serve(self) -> None:
        pending = b""
        with self._stopped, selectors.DefaultSelector() as ready:
            ready.register(self._socket, selectors.EVENT_READ)
            ready.register(self._stopped, selectors.EVENT_READ)
            while self._state != _State.LEFT:
                if any(key.fileobj is self._stopped for key, _ in ready.select()):
                    return
                received = self._socket.recv(65536)
                if not received:
                    return
                self._state = _State.SERVING
                *lines, pending = (pending + received).split(b"\n")
                if len(pending) > _LINE_LENGTH:
                    return
                for line in lines:
                    reply = self._answer(line.decode("ascii", errors="replace"))
                    if reply:
                        self._send(reply)

    def _send(self, reply: str) -> None:
        self._socket.sendall(f"{reply}\n".encode())

    def _answer(self, line: str) -> str:
        """Answer a line; an empty result means no answer."""
        words = dict(word.partition("=")[::2] for word in line.split())
        command = words.get("cmd", "")
        if command == "abort":  # the library ends the process; a launcher such as torchrun ends the others
            return ""
        if "mcmd" in words or not command:  # a command of several lines is answered at its last one, `endcmd`
            return "cmd=spawn_result rc=-1 msg=unsupported" if "endcmd" in words else ""
        answer = self._commands.get(command)
        if answer is None:
            return f"cmd={command}_result rc=-1 msg=unsupported"
        return answer(words)

    def _get_my_kvsname(self, _: dict[str, str]) -> str:
        # The library names its shared memory after this, so it must be unique among the jobs on a host.
        try:
            self._store.wait(["job"], self._timeout)
            return f"cmd=my_kvsname rc=0 kvsname={self._store.get('job').decode()}"
        except RuntimeError as error:
            return f"cmd=my_kvsname rc=-1 msg={_one_word(error)}"

    def _put(self, words: dict[str, str]) -> str:
        try:
            self._store.set(f"kvs/{words['key']}", words["value"])
        except (KeyError, RuntimeError) as error:
            return f"cmd=put_result rc=-1 msg={_one_word(error)}"
        return "cmd=put_result rc=0 msg=success"

    def _get(self, words: dict[str, str]) -> str:
        try:
            value = self._lookup(words["key"])
        except (KeyError, RuntimeError, UnicodeDecodeError) as error:
            return f"cmd=get_result rc=-1 msg={_one_word(error)} value=unknown"
        if value is None or len(value) >= _VALUE_LENGTH or not _is_word(value):
            return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
        return f"cmd=get_result rc=0 msg=success value={value}"

    def _lookup(self, key: str) -> str | None:
        if key == _MAPPING:
            return result(self._store, "host", self._timeout)
        # One request: a key that is not there seems to have the value that is expected, and stays away.
        found = self._store.compare_set(f"kvs/{key}", _NONE, _NONE).decode()
        return None if found == _NONE else found

    def _barrier(self, _: dict[str, str]) -> str:
        key = f"barrier/{self._barriers}"
        self._barriers += 1
        try:
            self._count(f"{key}/entered")
            self._wait([f"{key}/entered/all"])
            # The store ends with its process, usually rank 0's, and this may be the last request to it: rank 0 leaves
            # after the others.
            self._count(f"{key}/left")
            if self._rank == 0:
                self._wait([f"{key}/left/all"])
        except RuntimeError as error:
            return f"cmd=barrier_out rc=-1 msg={_one_word(error)}"
        return "cmd=barrier_out rc=0 msg=success"

    def _count(self, key: str) -> None:
        if self._store.add(key, 1) == self._size:
            self._store.set(f"{key}/all", "")

    def _finalize(self, _: dict[str, str]) -> str:
        self._state = _State.LEFT
        return _FAREWELL


def give(store: Store, key: str, rank: int, size: int, value: str, decide: Callable[[list[str]], str]) -> None:
    """Leave this rank's value. The last rank to come leaves what ``decide`` makes of all of them, for ``result``."""
    store.set(f"{key}/{rank}", value)
    if store.add(f"{key}/come", 1) == size:
        values = store.multi_get([f"{key}/{each}" for each in range(size)])
        store.set(f"{key}/all", decide([each.decode() for each in values]))


def result(store: Store, key: str, timeout: timedelta) -> str:
    """Return the value once all ranks have come. Raises RuntimeError after the timeout."""
    store.wait([f"{key}/all"], timeout)
    text: str = store.get(f"{key}/all").decode()
    return text


def _is_word(value: str) -> bool:
    """Whether a value can stand in a line: another rank's value must not add words or lines to an answer."""
    return value.isascii() and value.isprintable() and " " not in value


def _one_word(error: Exception) -> str:
    return "_".join(str(error).split())[:200] or type(error).__name__
