# SPDX-License-Identifier: Apache-2.0
"""Jobs that start again after a loss, or try again after a timeout, with nothing left of their earlier lives."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as torch_dist

import jobs
from harness import launchers
from mcr_dl.base import launcher
from mcr_dl.base.errors import CollectiveTimeoutError
from mcr_dl.measure.ranks import free_port
from mcr_dl.runtime import lives
from mcr_dl.testing.nursery import Nursery

PROGRAM = Path(__file__).resolve().parent / "programs" / "restarted.py"
_LIMIT = 150.0  # seconds; a job takes a tenth of it on a quiet machine
_WAIT = timedelta(seconds=20)


@pytest.mark.timed
@pytest.mark.parametrize(
    ("backends", "losses", "rendezvous"),
    [
        ("mpi,gloo,shm", "1:kill,0:raise", "--master-port=0"),
        ("gloo", "0:kill,2:exit", "--standalone"),
        ("torch", "2:raise,1:kill", "--standalone"),
    ],
)
def test_a_job_goes_on_after_restarts(tmp_path: Path, backends: str, losses: str, rendezvous: str) -> None:
    """It loses a rank in each of two lives, goes on from its checkpoint in the next, and leaves no shared memory."""
    if rendezvous == "--master-port=0":
        rendezvous = f"--master-port={torch_dist.TCPStore('localhost', 0, is_master=True).port}"
    before = set(os.listdir("/dev/shm"))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3", "--max-restarts=2", rendezvous]
    command += [str(PROGRAM), backends, losses, str(tmp_path)]
    environment = {**os.environ, "MCR_DL_TUNING_TABLE": "none", "OMP_NUM_THREADS": "1"}
    code, text = launchers.finish(command, tmp_path, environment, _LIMIT)
    assert code == 0, text
    for rank in range(3):
        assert f"life 2: rank {rank} of 3 has ended well, from step 10" in text, text
    assert len(re.findall("has ended well", text)) == 3, text
    assert {name for name in set(os.listdir("/dev/shm")) - before if "mcr" in name or "mpich" in name} == set()


@pytest.mark.timed
def test_a_job_on_several_hosts(tmp_path: Path) -> None:
    """Two agents, each with the ranks of an emulated host: a rank is killed, and all four start again.

    An agent whose ranks are all well when it learns of the loss counts no restart, so that the counts may differ.
    """
    port = free_port()
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--max-restarts=1"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=restarts"]
    command += [str(PROGRAM.with_name("hosts.py")), "0,0,1,1", "restarted", "mpi,gloo", "1:kill", str(tmp_path)]
    environment = launchers.environment(MCR_DL_TUNING_TABLE="none")
    with ThreadPoolExecutor() as threads:
        agents = [threads.submit(launchers.finish, command, tmp_path, environment, _LIMIT) for _ in range(2)]
    results = [agent.result() for agent in agents]
    text = "\n".join(text for _, text in results)
    assert [code for code, _ in results] == [0, 0], text
    assert sorted(re.findall(r"rank (\d) of 4 has ended well, from step 5", text)) == list("0123"), text


def _live(store: torch_dist.Store, ranks: list[int], size: int, late: int | None = None) -> list[str]:
    """The contents of one key of each rank's part of the store, after each of these ranks has added its number."""
    parts: dict[int, torch_dist.Store] = {}

    def begin(rank: int) -> None:
        time.sleep(0.2 if rank == late else 0)
        parts[rank] = lives.separate(store, launcher.Launch("torchrun", rank, size), _WAIT)
        parts[rank].append("ranks", str(rank))

    threads = [threading.Thread(target=begin, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_WAIT.total_seconds())
    return ["".join(sorted(parts[rank].get("ranks").decode())) for rank in ranks]


@pytest.fixture
def agent() -> torch_dist.Store:
    """A store that outlives the ranks."""
    store = torch_dist.HashStore()
    store.set_timeout(_WAIT)
    return store


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("size", [1, 4])
def test_each_life_has_a_part_of_its_own(agent: torch_dist.Store, size: int, late: int) -> None:
    """Also if rank 0 finds the words of the life before, as the other ranks come later than it."""
    for _ in range(3):
        assert _live(agent, list(range(size)), size, late) == ["0123"[:size]] * size


def test_a_life_that_ended_while_it_began(agent: torch_dist.Store) -> None:
    """Ranks that were lost before all had come do not disturb the next life."""
    for rank in (1, 2):
        torch_dist.PrefixStore("lives", agent).set(f"join/{rank}", f"word of the lost rank {rank}")
    assert _live(agent, [0, 1, 2, 3], 4, late=2) == ["0123"] * 4


def test_missing_ranks_are_named(agent: torch_dist.Store) -> None:
    """By every rank that has come."""
    limit = timedelta(seconds=0.1)
    agent.set_timeout(limit)
    for rank, missing in ((1, "ranks 0, 2 have"), (0, "rank 2 has"), (2, "rank 0 has")):
        with pytest.raises(CollectiveTimeoutError, match=rf"timed out: {missing} not come within 0.1 s"):
            lives.separate(agent, launcher.Launch("torchrun", rank, 3), limit)


@pytest.mark.parametrize("kind", ["env", "file", "agent"])
@pytest.mark.parametrize("late", [0, 1])
def test_a_start_is_tried_again(nursery: Nursery, tmp_path: Path, kind: str, late: int) -> None:
    """The ranks that have given up meet one that comes late, whether the store has ended with rank 0's attempt or not.

    Until they meet, their errors name the timeout.
    """
    arguments = ["again", str(late), kind, str(tmp_path)]
    if kind == "agent":
        ranks = jobs.start(nursery, "starts", arguments, 3)
    else:
        ranks = nursery.ranks(jobs.PROGRAMS / "starts.py", arguments, 3)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "STARTED gloo")
    for number, rank in enumerate(ranks):
        raised = re.findall(r"RAISED (\w+): (init_process_group: timed out: )?", rank.text)
        assert set(raised) <= {("CollectiveTimeoutError", "init_process_group: timed out: ")}, rank.text
        assert raised or number == late, rank.text


@pytest.mark.parametrize(
    ("lives", "text"),
    [
        ("012 012 01", ""),
        ("012 21", "as rank 2 of 3: expected the same rank"),
        ("0 1 01", "that of rank 0, where it runs since an earlier start, without that of rank 1"),
        ("01 02", "that of rank 0, where it runs since an earlier start, without that of rank 1"),
    ],
)
def test_jobs_whose_processes_run_mpi_already(nursery: Nursery, lives: str, text: str) -> None:
    """Where their ranks do not fit the MPI that runs in them, all ranks raise at once, and another backend starts."""
    processes = jobs.start(nursery, "worlds", lives.split(), 3, MCR_DL_TUNING_TABLE="none")
    jobs.end(nursery, processes)
    jobs.expect(processes, 0)
    *_, newest = lives.split()
    for rank, number in enumerate(newest):
        told = processes[int(number)].text
        assert f"STARTED {'gloo' if text else 'mpi'} as rank {rank} of {len(newest)}" in told, told
        assert ("RAISED" in told) == bool(text), told
        assert text in told
