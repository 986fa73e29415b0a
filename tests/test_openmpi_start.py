# SPDX-License-Identifier: Apache-2.0
"""Open MPI without an MPI launcher: a PMIx server on each host, which answers from torch's store."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as torch_dist

import jobs
from harness import launchers
from mcr_dl.libraries import pmix, pmix_server
from mcr_dl.testing.nursery import Nursery
from waiting import await_true

PROGRAM = jobs.PROGRAMS / "starts_openmpi.py"
LIMIT = 120.0

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a job on Open MPI, which must leave no file behind. Its folder has a long path."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    yield {"MCR_DL_MPI_LIB": str(launchers.openmpi_library()), "TMPDIR": str(folder), "MCR_DL_TUNING_TABLE": "none"}

    def left() -> list[object]:
        return [*folder.glob("mcr_dl-pmix-*"), *_servers(folder)]

    await_true(lambda: not left(), left, 5)


def _servers(folder: Path) -> list[str]:
    """The servers whose TMPDIR is the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = f"TMPDIR={folder}\0".encode() in (process / "environ").read_bytes()
            if ours and b"pmix_server" in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:  # another user's, or it has ended
            continue
    return found


@pytest.mark.parametrize(("how", "size"), [("torchrun", 2), ("torchrun-destroy", 3), ("torchrun", 4)])
def test_under_torchrun(how: str, size: int, tmp_path: Path, variables: dict[str, str]) -> None:
    """With and without destroy_process_group. The ranks share memory, as there is no other way between them here."""
    command = [*launchers.TORCHRUN, str(size), str(PROGRAM), *how.split("-")[1:]]
    only = {**variables, "OMPI_MCA_btl": "self,sm"}
    code, text = launchers.finish(command, tmp_path, launchers.environment(**only), LIMIT)
    assert code == 0, text
    assert len(re.findall(r"DONE ok: Open MPI \S+ \[\]", text)) == size, text


@pytest.mark.parametrize("size", [2, 3, 4])
def test_as_plain_processes(nursery: Nursery, size: int, variables: dict[str, str]) -> None:
    """Ranks that the environment alone describes, which end without destroy_process_group."""
    ranks = jobs.start(nursery, "starts_openmpi", [], size, **variables)
    jobs.end(nursery, ranks)
    for rank in ranks:
        assert rank.code == 0, rank.text
        assert re.search(r"DONE ok: Open MPI \S+ \[\]", rank.text), rank.text


@pytest.mark.parametrize("fault", ["kill", "raise", "exit"])
def test_a_rank_is_lost(nursery: Nursery, fault: str, variables: dict[str, str]) -> None:
    """The others raise or end, and name the rank. Their server stays, and ends after the last of them."""
    limit = {} if fault == "exit" else {"FAULTY_LIMIT": "1800"}  # a rank that exits is missed at the timeout
    ranks = jobs.start(nursery, "faulty", ["mpi", "collective", fault], 3, **limit, **variables)
    survivors = [ranks[0], ranks[2]]
    jobs.end(nursery, survivors)
    for rank in survivors:
        assert rank.code in (jobs.REPORTED, jobs.ENDED), rank.text
        assert re.search(jobs.LOST[fault], rank.text), rank.text


def test_the_first_rank_is_killed(nursery: Nursery, variables: dict[str, str]) -> None:
    """The rank that has started the server: the server stays for the others."""
    ranks = jobs.start(nursery, "troubles", ["late", "mpi"], 3, **variables)
    jobs.await_text(ranks, "READY")
    os.kill(ranks[0].pid, signal.SIGKILL)
    jobs.end(nursery, [ranks[2]])
    assert ranks[2].code in (jobs.REPORTED, jobs.ENDED), ranks[2].text
    assert re.search(rf"ost rank 0: process {ranks[0].pid} on \S+ has ended", ranks[2].text), ranks[2].text
    os.kill(ranks[1].pid, signal.SIGKILL)  # it sleeps; the server waits for its end


def test_another_life(tmp_path: Path, variables: dict[str, str]) -> None:
    """torchrun starts all ranks again after a loss."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, torch, mcr_dl as dist\n"
        "dist.init_process_group(['mpi']); x = torch.ones(2); dist.all_reduce(x)\n"
        "life = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "if life == 0 and dist.get_rank() == 1: os.kill(os.getpid(), 9)\n"
        "for _ in range(3 if life else 1 << 40): dist.all_reduce(x)\n"
        "print(f'DONE in life {life}\\n', end='', flush=True)\n"
    )
    command = [*launchers.TORCHRUN, "2", "--max-restarts", "1", str(program)]
    code, text = launchers.finish(command, tmp_path, launchers.environment(**variables), LIMIT)
    assert code == 0, text
    assert text.count("DONE in life 1") == 2, text


# ---- what cannot start


def test_no_server(tmp_path: Path) -> None:
    """An Open MPI without a libpmix that can serve: under torchrun the error names the commands that work."""
    library = tmp_path / "lib" / "libmpi.so.40"
    library.parent.mkdir()
    shutil.copy(launchers.openmpi_library(), library)
    (library.parent / "libpmix.so.2").write_bytes(b"\x7fELF without\0PMIx_Init\0alone")
    command = [*launchers.TORCHRUN, "2", str(PROGRAM)]
    code, text = launchers.finish(command, tmp_path, launchers.environment(MCR_DL_MPI_LIB=str(library)), LIMIT)
    assert code != 0
    flat = " ".join(text.split())
    for word in ("BackendUnavailableError", "Open MPI", "mpiexec -n", "pip install mpich", "MCR_DL_MPI_LIB=mpich"):
        assert word in flat, f"{word!r} is not in\n{text}"
    assert "DONE" not in text


def test_all_ranks_learn_why(tmp_path: Path) -> None:
    """The first rank of a host has no library: no rank waits in MPI_Init."""
    store = torch_dist.HashStore()

    def start(rank: int) -> str:
        with pytest.raises(pmix.PmixError) as raised:
            pmix.PmixResponder(store, rank, 2, str(tmp_path / "libmpi.so.40"), timeout=timedelta(seconds=20))
        return str(raised.value)

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(start, range(2))
    assert one == other
    assert "rank 0: Open MPI's PMIx server cannot be started: there is no libpmix.so" in one
    assert "rank 1: the first rank of this host could not start" in one


def test_a_library_that_cannot_serve(tmp_path: Path) -> None:
    """The text of the server's own error arrives."""
    library = tmp_path / "libpmix.so.2"
    library.write_bytes(b"\x7fELF\0PMIx_server_init\0")
    with pytest.raises(pmix.PmixError, match=r"rank 0: Open MPI's PMIx server: .*libpmix\.so\.2"):
        pmix.PmixResponder(torch_dist.HashStore(), 0, 1, str(tmp_path / "libmpi.so.40"))


def test_another_users_folder(tmp_path: Path) -> None:
    """The path of the server's folder comes from the store: nothing is unpickled from there if it is not ours."""
    if os.geteuid() != 0:
        pytest.skip("giving a folder away needs root")
    os.chown(tmp_path, 12345, 12345)
    responder = object.__new__(pmix.PmixResponder)
    with pytest.raises(pmix.PmixError, match="expected a folder of this user"):
        responder._connect(str(tmp_path))


def test_names_of_nodes() -> None:
    """PMIx knows nodes by their names: hosts of one name get several."""
    hosts = [("a", "node"), ("b", "node"), ("a", "node"), ("c", "other")]
    assert pmix.node_names(hosts) == (("node", "node-1", "other"), (0, 1, 0, 2))


def test_structures() -> None:
    """The sizes of PMIx's structures in its version 5, on 64-bit systems."""
    sizes = [ctypes.sizeof(kind) for kind in (pmix_server.Info, pmix_server.Value, pmix_server.Proc, pmix_server.Array)]
    assert sizes == [552, 32, 260, 24]
    assert pmix_server.Info.value.offset == 520
