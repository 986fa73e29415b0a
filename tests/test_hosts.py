# SPDX-License-Identifier: Apache-2.0
"""Ranks of other hosts that are lost: real jobs whose processes have the names of several hosts, on one machine.

Networks that are cut need real ones: tests/lab.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

import grids
import jobs
from mcr_dl.measure.ranks import environments
from mcr_dl.testing.nursery import Child, Nursery
from waiting import await_true, state_of

pytestmark = pytest.mark.usefixtures("nothing_left")


def start(nursery: Nursery, hosts: str, program: str, *arguments: str, **variables: str) -> list[Child]:
    """A job with these hosts of its ranks, whose store is held by a separate process."""
    return jobs.start(nursery, "hosts", [hosts, program, *arguments], len(hosts.split(",")), **variables)


def end_without(nursery: Nursery, ranks: list[Child], lost: set[int]) -> list[Child]:
    """The ranks that are not lost, once they have ended."""
    survivors = [child for rank, child in enumerate(ranks) if rank not in lost]
    jobs.end(nursery, survivors)
    return survivors


@pytest.mark.parametrize(
    ("hosts", "losses", "left"),
    [
        ("0,0,1", "2", 2),  # alone on its host
        ("0,1,1", "0", 2),  # alone on the first host
        ("0,1,2", "1", 2),
        ("0,1,2", "0/1", 1),
        ("0,0,1,1", "2,3", 2),  # all of a host
        ("0,0,1,1", "0,1", 2),  # all of the first host
        ("0,0,1,1", "0/3", 2),
        ("0,1,1,0", "0,2", 2),
    ],
)
def test_the_others_notice(nursery: Nursery, hosts: str, losses: str, left: int) -> None:
    """Their calls raise PeerLostError long before the time limit, and they go on."""
    ranks = start(nursery, hosts, "shrinking", "gloo", losses)
    lost = {int(rank) for rank in losses.replace("/", ",").split(",")}
    survivors = end_without(nursery, ranks, lost)
    jobs.expect(survivors, 0, f"group of {left} of {len(ranks)}: rank")


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
@pytest.mark.parametrize("how", ["kill", "fork"])
def test_a_rank_is_killed(nursery: Nursery, backend: str, how: str) -> None:
    """Its children do not keep its connections. The error names the process and its host."""
    ranks = start(nursery, "0,1,2", "connected", backend, how, "1", MCR_DL_MPI_INTERRUPTIBLE="1")
    survivors = end_without(nursery, ranks, {1})
    jobs.expect(survivors, jobs.REPORTED, "PeerLostError", f"ost rank 1: process {ranks[1].pid} on host1 has ended")
    for child in re.findall(r"child (\d+)\.", ranks[1].text):
        os.kill(int(child), signal.SIGKILL)  # ProcessLookupError if it had ended
    assert ("child" in ranks[1].text) == (how == "fork")


def test_rank_0_is_killed_with_the_store(nursery: Nursery) -> None:
    """No rank of its host is left, and the store is gone: each rank notices it by itself."""
    command = ["0,1,2", "connected", "gloo", "kill", "0"]
    ranks = [nursery.start(jobs.PROGRAMS / "hosts.py", command, each) for each in environments(3, {}).values()]
    survivors = end_without(nursery, ranks, {0})
    jobs.expect(survivors, jobs.REPORTED, "PeerLostError", "ost rank 0: process")


@pytest.mark.parametrize("rank", [0, 2])
def test_a_stopped_rank_is_not_lost(nursery: Nursery, rank: int) -> None:
    """Also if it is stopped for longer than hosts may be silent: the kernel answers for it."""
    ranks = start(nursery, "0,0,1", "connected", "gloo", "stop", str(rank), MCR_DL_HOST_TIMEOUT="3")
    await_true(lambda: state_of(ranks[rank].pid) == "T", lambda: ranks[rank].text, jobs.LIMIT)
    time.sleep(6)
    os.kill(ranks[rank].pid, signal.SIGCONT)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "group of 3 of 3: rank")


@pytest.mark.parametrize(("before", "after"), [("0,0,1", "0,0,2"), ("0,0,0", "0,0,1"), ("0,1,1", "2,1,1")])
def test_a_process_of_another_host_comes(nursery: Nursery, before: str, after: str) -> None:
    """It is watched too: those that are killed while they wait, and at once afterwards, are replaced by another."""
    holder, environment = jobs.agent_store(nursery, 3)
    del holder
    rank = next(place for place in range(3) if before.split(",")[place] != after.split(",")[place])
    arguments = ["growing", "gloo", str(rank), "grow"]
    program = jobs.PROGRAMS / "hosts.py"
    ranks = [nursery.start(program, [before, *arguments], each) for each in environment]
    survivors = [child for place, child in enumerate(ranks) if place != rank]
    jobs.await_text(survivors, "lost: ")
    for how in ("waiting", "again", "yes"):
        new = nursery.start(program, [after, *arguments], {**environment[rank], "GROWING_REJOIN": how})
        if how != "yes":
            jobs.killed(nursery, [new])
    jobs.end(nursery, [*survivors, new])
    jobs.expect([*survivors, new], 0, "group of 3 of 3: rank")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("bench --ops all_reduce -b 4 -e 4 --budget 0.02", "gloo"),
        ("bench --ops barrier --backends auto,all,gloo --budget 0.02", "gloo"),
        (
            "tuning --ops all_reduce -b 4 -e 4 --dtypes float32 --no-async --budget 0.02 -o t.json",
            "the fastest by size",
        ),
    ],
)
def test_commands_on_several_hosts(nursery: Nursery, tmp_path: Path, arguments: str, text: str) -> None:
    """They measure the backends that all ranks can use, without those that connect one host; MCR_DL_TOPOLOGY may be of
    another job.
    """
    command, *others = arguments.replace("t.json", str(tmp_path / "t.json")).split()
    variables = {"MCR_DL_TOPOLOGY": grids.write(tmp_path / "topology.json", 4), "MCR_DL_TUNING_TABLE": "none"}
    ranks = start(nursery, "0,1", "command", f"mcr_dl.{command}", *others, **variables)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0)
    jobs.expect(ranks[:1], 0, text, "MCR_DL_TOPOLOGY is not used: expected 2 ranks, got a topology of 4")
