# SPDX-License-Identifier: Apache-2.0
"""The statements of docs/security.md: which libraries are loaded, and how data from others is read."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as torch_dist

import mcr_dl
from mcr_dl import BackendUnavailableError, InvalidArgumentError
from mcr_dl.base import agreement, documents, stores
from mcr_dl.libraries import mpi, nccl
from mcr_dl.libraries.pmi import PmiResponder
from mcr_dl.runtime import rounds
from mcr_dl.watch._connections import Broken, Connections

PACKAGE = Path(mcr_dl.__file__).parent


def test_readers() -> None:
    """Only the shared reader parses JSON, and nothing is unpickled or evaluated except what the table names."""
    allowed = {
        r"json\.loads?\(": {"base/documents.py", "tuning/_journal.py"},  # the journal: its own dumps
        r"pickle\.loads?\(": {"groups/objects.py", "measure/_rank.py"},
        r"multiprocessing\.connection": {
            "libraries/pmix.py",
            "libraries/pmix_server.py",
            "testing/pool.py",
            "testing/worker.py",
        },
        r"\byaml\b|torch\.load\(|marshal|\b(np|numpy)\.load\(|(?<![\w.])eval\(|(?<![\w.])exec\(|shelve": set(),
    }
    files = {str(file.relative_to(PACKAGE)): file.read_text() for file in PACKAGE.rglob("*.py")}
    for pattern, places in allowed.items():
        found = {name for name, text in files.items() if re.search(pattern, text)}
        assert found == places, pattern


# ---- libraries


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with libraries and programs that must not be used."""
    for name in ("libmpi.so.12", "libmpi.so.40", "libnccl.so.2", "lib/libmpi.so.12"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\x7fELF\x02 nothing that can be loaded")
    (tmp_path / "bin").mkdir()
    for name in ("bin/mpiexec", "bin/mpicc", "mpiexec", "gcc", "ld", "ldconfig"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", [".", "", "bin", "bin:.:"])
def test_path_of_the_current_directory(here: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Relative and empty entries of PATH and of LD_LIBRARY_PATH are not searched, and nothing there is run."""
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("LD_LIBRARY_PATH", path)
    monkeypatch.syspath_prepend("site-packages")
    places, libraries = list(mpi._places()), list(mpi._candidates())
    assert places
    assert libraries
    assert all(place.is_absolute() and here not in place.parents for place, _ in places)
    assert all(str(here) not in library.path and os.path.isabs(library.path) for library in libraries)
    assert not (here / "was-run").exists()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["./libmpi.so.12", "lib/libmpi.so.12", "../libmpi.so.12"])
def test_relative_names(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The named variables take an absolute path, or a name for the loader."""
    monkeypatch.setenv("MCR_DL_MPI_LIB", name)
    with pytest.raises(BackendUnavailableError, match="expected an absolute path"):
        mpi.find()
    monkeypatch.setenv("MCR_DL_NCCL_LIB", name)
    with pytest.raises(BackendUnavailableError, match="expected an absolute path"):
        nccl.find()


@pytest.mark.usefixtures("here")
def test_names_for_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name without a folder does not mean a file here."""
    monkeypatch.setenv("MCR_DL_MPI_LIB", "libmpi.so.12")
    try:
        found = mpi.find().path
    except BackendUnavailableError as error:
        assert "no such file" in str(error)  # noqa: PT017
    else:
        assert os.path.isabs(found)


# ---- values of other ranks


@pytest.mark.parametrize("value", ["{", "[" * 5000, "nan", b"\xff\xfe", '{"a": 1, "a": 2}', "9" * 5000])
def test_agreement(value: str | bytes) -> None:
    """An invalid value of another rank in the store: all ranks get one error, and no rank waits."""
    store = torch_dist.HashStore()
    store.set("key/1", value)
    with pytest.raises(InvalidArgumentError, match="the value of rank 1 for 'key'"):
        agreement.agree(store, 0, 2, "key", 1, lambda values: values)
    with pytest.raises(InvalidArgumentError, match="the value of rank 1 for 'key'"):
        agreement.agree(store, 1, 2, "key", 1, lambda values: values)


@pytest.mark.parametrize("piece", [100, 4096])
def test_large_values(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """Whether they would be sent as a whole or in pieces."""
    monkeypatch.setattr(stores, "_LARGEST", 1000)
    monkeypatch.setattr(stores, "_PIECE", piece)
    with pytest.raises(InvalidArgumentError, match="expected at most 1000 bytes, got 1002"):
        agreement.agree(torch_dist.HashStore(), 0, 1, "key", "x" * 1000, lambda values: values)
    with pytest.raises(InvalidArgumentError, match="the answer of rank 0 for 'key': expected at most 1000 bytes"):
        agreement.agree(torch_dist.HashStore(), 0, 1, "key", 0, lambda _: "x" * 1000)
    assert documents.parse("1", "it", limit=1) == 1


@pytest.mark.parametrize("length", ["", "1.5", "1e999", "-1", "[1]", str(1 << 40)])
def test_lengths_of_large_values(length: str) -> None:
    """A wrong length is an error on every rank, before its pieces are waited for."""
    store = torch_dist.HashStore()
    store.set("key/1", f"bytes {length}")
    for rank in (0, 1):
        with pytest.raises(InvalidArgumentError, match="the value of rank 1 for 'key'"):
            agreement.agree(store, rank, 2, "key", 1, lambda values: values)


def test_large_values_at_torchs_store() -> None:
    """torch's store closes the connection of a rank that sends more than 8 MiB at once."""
    patience = timedelta(seconds=60)
    first = torch_dist.TCPStore("127.0.0.1", 0, 2, True, patience, wait_for_workers=False)
    connections = [first, torch_dist.TCPStore("127.0.0.1", first.port, 2, False, patience)]
    values = ["é" * (5 << 20), "y" * (21 << 20)]  # 10 MiB and 21 MiB
    with ThreadPoolExecutor() as threads:
        agreed = threads.map(
            lambda rank: agreement.agree(connections[rank], rank, 2, "key", values[rank], list), (0, 1)
        )
        assert list(agreed) == [values, values]
        parts = [rounds.Round(connections[rank], "5", rank, 2) for rank in (0, 1)]
        assert list(threads.map(lambda rank: parts[rank].arrive(values[rank]), (0, 1))).count(True) == 1
        assert parts[1].values() == values
        parts[1].answer(values[1])
        assert parts[0].result() == values[1]
    connections[1].set("later", "1")
    assert connections[0].get("later") == b"1"


@pytest.mark.parametrize("value", [b"two words", b"a\nline", b"\xff", b"x" * 2000, "é".encode()])
def test_process_management(value: bytes) -> None:
    """A value that could add words to an answer of PMI does not reach the MPI library, and the thread continues."""
    store = torch_dist.HashStore()
    responder = PmiResponder(store, 0, 1, timeout=timedelta(seconds=5))
    try:
        torch_dist.PrefixStore("mcr_dl/pmi", store).set("kvs/key", value)
        answer = responder._answer("cmd=get kvsname=x key=key")
        assert answer.startswith("cmd=get_result rc=-1")
        assert answer.count(" ") <= 3
        assert "\n" not in answer
        assert responder._answer("cmd=put kvsname=x key=good value=1").startswith("cmd=put_result rc=0")
        assert responder._answer("cmd=get kvsname=x key=good").endswith("value=1")
    finally:
        responder.close()


# ---- other hosts


class _Told:
    """A listener that records the news."""

    def __init__(self) -> None:
        self.news: list[object] = []

    def broken(self, broken: Broken) -> None:
        self.news.append(broken)

    def heard(self, row: dict[str, object]) -> None:
        self.news.append(row)

    def failed(self, rank: int, reason: str) -> None:
        self.news.append((rank, reason))


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"lost": 1, "text": "lost rank 1", "process": ""}\n',
        b'{"token": "0123456789abcdef", "member": {"rank": 1}}\n',
        b'{"token": 5, "member": {"rank": 1e400}}\n',
        b"[[[[1]]]]\n",
        b"x" * 200_000,
    ],
)
def test_strangers_on_the_port_of_lost_ranks(sent: bytes) -> None:
    """They are disconnected, and no rank is taken for lost."""
    left: dict[str, dict[str, object]] = {}
    exchange = SimpleNamespace(leave=lambda key, value: not left.update({key: value}), store=torch_dist.HashStore())
    told = _Told()
    connections = Connections(exchange, {"rank": 0, "host": "a", "processes": "", "pid": 1}, 5.0, told)
    connections.start([0, 1], set(), wait=True)
    with socket.create_connection(("127.0.0.1", left["address"]["port"]), timeout=20) as stranger:
        stranger.sendall(sent)
        with contextlib.suppress(ConnectionResetError):  # with data unread
            assert stranger.recv(1) == b""
    connections.stop(well=True)
    assert told.news == []
