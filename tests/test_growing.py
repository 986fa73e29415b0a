# SPDX-License-Identifier: Apache-2.0
"""Groups that take new processes for their lost ranks, in real jobs whose ranks are killed."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as torch_dist

import jobs
import mcr_dl
from harness import launchers
from mcr_dl import _C
from mcr_dl.base import launcher
from mcr_dl.groups import applicants
from mcr_dl.runtime import lives
from mcr_dl.testing.nursery import Child, Nursery
from mcr_dl.watch._losses import Losses, process_of
from waiting import await_true

pytestmark = pytest.mark.usefixtures("nothing_left")


class Job:
    """A job of four ranks, of which some are lost, and the processes that take their places."""

    def __init__(
        self, nursery: Nursery, backends: str, lost: str, mode: str = "shrink", hosts: str = "", **variables: str
    ) -> None:
        """``hosts``: as for the program ``hosts``, if the ranks have emulated ones."""
        self._nursery, self._hosts, self._variables = nursery, hosts, variables
        self._arguments = [backends, lost, mode]
        _, self._places = jobs.agent_store(nursery, 4)
        ranks = [self._start(place, {}) for place in range(4)]
        self.lost = [int(rank) for rank in lost.split(",")]
        jobs.end(nursery, [ranks[rank] for rank in self.lost])
        for rank in self.lost:
            assert ranks[rank].code == (1 if "GROWING_RAISE" in variables else -signal.SIGKILL), ranks[rank].text
        self.survivors = [ranks[rank] for rank in range(4) if rank not in self.lost]

    @property
    def port(self) -> str:
        """That of the job's store, on this host."""
        return self._places[0]["MASTER_PORT"]

    def _start(self, rank: int, others: dict[str, str]) -> Child:
        environment = {**self._places[rank], **self._variables, **others}
        if not self._hosts:
            return self._nursery.start(jobs.PROGRAMS / "growing.py", self._arguments, environment)
        arguments = [self._hosts, "growing", *self._arguments]
        return self._nursery.start(jobs.PROGRAMS / "hosts.py", arguments, environment)

    def rejoin(self, rank: int, how: str = "yes", hosts: str = "", **others: str) -> Child:
        """Start a process that takes the place of a lost rank, on another host if ``hosts`` says so."""
        self._hosts = hosts or self._hosts
        return self._start(rank, {"GROWING_REJOIN": how, **others})

    def end(self, *others: Child) -> None:
        """Wait for the survivors and these processes, which end well after calls in a group of all ranks."""
        jobs.end(self._nursery, [*self.survivors, *others])
        jobs.expect([*self.survivors, *others], 0, "group of 4 of 4: rank")


@pytest.mark.parametrize("backends", ["gloo", "shm", "shm,gloo"])
@pytest.mark.parametrize(("lost", "mode"), [("1", "shrink"), ("0", "shrink"), ("2,3", "shrink"), ("1", "grow")])
def test_processes_take_the_places_of_lost_ranks(nursery: Nursery, backends: str, lost: str, mode: str) -> None:
    """Every kind of call works in the new group and in groups that are made later; the default group stays lost."""
    job = Job(nursery, backends, lost, mode)
    new = [job.rejoin(rank) for rank in job.lost]
    job.end(*new)
    for rank, child in zip(job.lost, new, strict=True):
        assert f"group of 4 of 4: rank {rank}, {backends}" in child.text, child.text
    identities = {name for child in [*job.survivors, *new] for name in re.findall(r"job (\w*)\n", child.text)}
    assert len(identities) == 1, identities
    assert "" not in identities


@pytest.mark.parametrize("mode", ["shrink", "grow"])
def test_nccl(nursery: Nursery, mode: str) -> None:
    """With the stand-in library, whose calls work on host memory."""
    job = Job(nursery, "nccl", "1", mode, MCR_DL_NCCL_LIB=str(launchers.STAND_IN))
    job.end(job.rejoin(1))


@pytest.mark.parametrize("variable", ["TORCH_DISTRIBUTED_DEBUG=DETAIL", "TORCH_DIST_INIT_BARRIER=1"])
def test_steps_of_torch_for_debugging(nursery: Nursery, variable: str) -> None:
    """The other ranks make the new group with torch's step, and are not there when torch makes the default group."""
    name, value = variable.split("=")
    job = Job(nursery, "gloo", "1", **{name: value})
    job.end(job.rejoin(1))


def test_all_other_ranks_come_back(nursery: Nursery) -> None:
    """One rank is left, and takes the others."""
    job = Job(nursery, "shm,gloo", "0,1,3")
    job.end(*(job.rejoin(rank) for rank in job.lost))


@pytest.mark.parametrize("backends", ["gloo", "shm"])
@pytest.mark.parametrize("how", ["waiting", "inside", "connecting", "again"])
def test_a_process_is_lost_too(nursery: Nursery, backends: str, how: str) -> None:
    """The others go on without it, and take another."""
    job = Job(nursery, backends, "1")
    jobs.killed(nursery, [job.rejoin(1, how)])
    job.end(job.rejoin(1))


def unreachable(*_: object) -> None:
    """A store that has ended."""
    raise OSError("no store")


def test_a_waiting_process_that_was_taken_for_ended() -> None:
    """It was too slow to answer, or its group was not made: it applies again, under another word."""
    store = torch_dist.HashStore()
    desk = torch_dist.PrefixStore("rejoin", store)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(applicants.apply, store, 1, timedelta(seconds=30))
        first = json.loads(desk.get("waiting/1"))[0]
        desk.set(f"taken/{first}", applicants._DISMISSED)
        await_true(lambda: json.loads(desk.get("waiting/1"))[0] != first)
        second = json.loads(desk.get("waiting/1"))[0]
        desk.set(f"taken/{second}", "an attempt")
        desk.wait([f"here/{second}"])
        fields = dict.fromkeys(applicants.Answer.__dataclass_fields__, 0)
        desk.set(f"answer/{second}", json.dumps(fields))
        assert waiting.result(20) == applicants.Answer(**fields)


def test_late_news_of_the_process_before() -> None:
    """They do not concern the process that has taken its place: ranks of other hosts may hear them late."""
    losses = Losses(SimpleNamespace(rank=0, ask=unreachable))
    losses.begin([0] * 10)
    before, after = ({"machine": "node1", "processes": "pid:[1]", "pid": pid} for pid in (10, 11))
    losses.replace(9, after, "lost rank 9", 0)
    losses.learn(9, "lost rank 9", process_of(before))
    assert not losses.any
    losses.learn(9, "lost rank 9 again", process_of(after))
    assert losses.texts == {9: "lost rank 9 again"}
    _C.regain(9)


def test_no_group_takes_the_process(nursery: Nursery) -> None:
    """The process that has the rank is not lost."""
    job = Job(nursery, "gloo", "1")
    other = job.rejoin(2, GROWING_LIMIT="1")
    jobs.end(nursery, [other])
    jobs.expect([other], jobs.REPORTED, "CollectiveTimeoutError: rejoin: no group has taken this process for rank 2")
    job.end(job.rejoin(1))


@pytest.mark.parametrize("when", ["before", "while it waits"])
def test_the_store_ends(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """With the process that serves it: the error is one of mcr_dl."""
    server = [torch_dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)]
    store = torch_dist.TCPStore("localhost", server[0].port)
    if when == "before":
        server.clear()
    else:
        lives.separate(server[0], launcher.stated(0, 1), timedelta(seconds=10))

    def poll(condition: Callable[[], bool], *_: object, **__: object) -> bool:
        server.clear()
        return condition()

    monkeypatch.setattr(applicants, "poll", poll)
    with pytest.raises(mcr_dl.BackendError, match="rejoin: the job's store cannot be reached"):
        mcr_dl.rejoin(store=store, rank=1, world_size=2)


def test_a_library_of_the_whole_job_is_left_out(nursery: Nursery) -> None:
    """A new process cannot enter the MPI of a job."""
    job = Job(nursery, "mpi,gloo", "1", "grow", MCR_DL_MPI_INTERRUPTIBLE="1")
    new = job.rejoin(1)
    job.end(new)
    jobs.expect(job.survivors[:1], 0, "grow: group 'default' goes on without mpi")
    assert "rank 1, gloo" in new.text, new.text


def test_a_refused_process_leaves_the_job_its_libraries(nursery: Nursery) -> None:
    """The library of the whole job, which a new process cannot enter, stays until one is in a group."""
    job = Job(nursery, "mpi,gloo", "1", "grow", MCR_DL_MPI_INTERRUPTIBLE="1")
    other = job.rejoin(1, MCR_DL_PASSES="log")
    jobs.end(nursery, [other])
    jobs.expect([other], jobs.REPORTED, "BackendUnavailableError: grow: rank 1: passes: expected []")
    job.end(job.rejoin(1))
    jobs.expect(job.survivors, 0, "; the job has mpi,gloo")


def test_a_process_of_another_host(nursery: Nursery) -> None:
    """Shared memory, which `auto` has started, cannot connect it: the new group has the libraries between hosts."""
    job = Job(nursery, "auto", "1", "grow", hosts="0,0,0,0", MCR_DL_MPI_INTERRUPTIBLE="1")
    new = job.rejoin(1, hosts="0,1,0,0")
    job.end(new)
    assert "group of 4 of 4: rank 1, gloo\n" in new.text, new.text


def test_processes_of_new_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host gets a number of its own, which the processes share that run there."""
    store = torch_dist.HashStore()
    desk = torch_dist.PrefixStore("rejoin", store)
    machines = {1: "new a", 2: "new b", 3: "new a", 4: "old 0"}
    for rank, machine in machines.items():
        desk.set(f"waiting/{rank}", json.dumps([f"word {rank}", {"machine": machine}]))
        desk.set(f"here/word {rank}", "")
    lost = dict.fromkeys(machines, "lost")
    known = SimpleNamespace(lost=lambda: lost, member=lambda _, rank: {"machine": f"old {rank // 2}"})
    monkeypatch.setattr(applicants, "watch", known)
    current = SimpleNamespace(store=store, knowledge=SimpleNamespace(nodes=[0, 0, 1, 1, 2]))
    found = applicants.applicants(current, "an attempt")  # type: ignore[arg-type]
    assert [(each.rank, each.node) for each in found] == [(1, 3), (2, 4), (3, 3), (4, 0)]


def test_passes(nursery: Nursery) -> None:
    """The new group has them. A process with others raises, and so do the other ranks; then another one can come."""
    job = Job(nursery, "shm", "1", MCR_DL_PASSES="log,fuse")
    other = job.rejoin(1, MCR_DL_PASSES="log")
    jobs.end(nursery, [other])
    jobs.expect([other], jobs.REPORTED, "BackendUnavailableError: grow: rank 1: passes: expected [['log'")
    job.end(job.rejoin(1))
    jobs.expect(job.survivors, 0, "refused: grow: rank 1: passes: expected [['log'")


def test_a_rule_for_a_candidate_made_of_others(nursery: Nursery) -> None:
    """The new process takes the rules of the job, whatever they name."""
    job = Job(nursery, "gloo,shm,gloo+shm", "1", MCR_DL_TUNE="all_reduce:1m-inf:stripe(gloo,shm)")
    job.end(job.rejoin(1))


def test_calls_are_compared_in_detail(nursery: Nursery) -> None:
    """Detail mode serves the new process too, whatever its own environment says."""
    job = Job(nursery, "gloo", "1", MCR_DL_DEBUG="detail")
    new = job.rejoin(1, MCR_DL_DEBUG="off")
    job.end(new)
    jobs.expect([*job.survivors, new], 0, "in detail: True")


def test_a_url_that_gives_the_rank(nursery: Nursery) -> None:
    """As for init_process_group, it counts in place of the environment; a wrong variable is named before that."""
    job = Job(nursery, "gloo", "1")
    wrong = job.rejoin(1, MCR_DL_DEBUG="detial")
    jobs.end(nursery, [wrong])
    jobs.expect([wrong], jobs.REPORTED, "InvalidArgumentError: MCR_DL_DEBUG: expected", "'detial'")
    url = f"tcp://127.0.0.1:{job.port}?rank=1&world_size=4"
    new = job.rejoin(1, GROWING_URL=url, RANK="3", WORLD_SIZE="8")
    job.end(new)
    jobs.expect([new], 0, "group of 4 of 4: rank 1, gloo")


def test_a_process_without_the_backend(nursery: Nursery) -> None:
    """All ranks raise one error, which names the rank; then another process can come."""
    job = Job(nursery, "shm", "1")
    other = job.rejoin(1, "without")
    jobs.end(nursery, [other])
    jobs.expect([other], jobs.REPORTED, "BackendUnavailableError: grow: rank 1: no shm here")
    job.end(job.rejoin(1))
    jobs.expect(job.survivors, 0, "refused: grow: rank 1: no shm here")


def test_a_rank_that_has_raised(nursery: Nursery) -> None:
    """Its process has left notes at the store, which do not concern the one that takes its place."""
    job = Job(nursery, "gloo", "1", GROWING_RAISE="1")
    new = job.rejoin(1)
    job.end(new)
    jobs.expect(job.survivors, 0, "ValueError: bad batch")
