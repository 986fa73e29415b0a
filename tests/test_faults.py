# SPDX-License-Identifier: Apache-2.0
"""The guarantees of docs/reliability.md for each fault and backend, on processes that really die, stop and differ."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

import grids
import jobs
from harness import launchers
from mcr_dl.testing.nursery import Child, Nursery
from mcr_dl.trace.cli import main as mcr_trace
from seed import ranks_of

INTERRUPTED = 130
RAISED = "(CollectiveTimeoutError|BackendError|PeerLostError)"

backends = pytest.mark.parametrize("backend", ["mpi", "gloo", "shm"])

pytestmark = pytest.mark.usefixtures("nothing_left")


# ---- a rank dies, stops, raises or leaves

# Jobs at the same time; storms one by one, as several would take both cores from everything else.
TOGETHER = [("idle", [*jobs.LOST]), ("collective", [*jobs.LOST]), *(("storm", [fault]) for fault in jobs.LOST)]


def _survivors(nursery: Nursery, ranks: list[Child], error: str, fault: str) -> list[Child]:
    """The ranks other than rank 1, which have ended with the error and say what happened to rank 1."""
    survivors = [ranks[0], *ranks[2:]]
    jobs.end(nursery, survivors)
    for rank in survivors:
        library = re.search(r"mcr_dl: \w+: mpi\.", rank.text)  # only a blocking call of MPI cannot raise
        assert rank.code == (jobs.ENDED if library else jobs.REPORTED), rank.text
        assert re.search(error, rank.text), rank.text
        assert re.search(jobs.LOST[fault], rank.text), rank.text
    return survivors


@backends
@pytest.mark.parametrize(("phase", "faults"), TOGETHER)
def test_a_rank_is_lost(nursery: Nursery, backend: str, phase: str, faults: list[str]) -> None:
    """The other ranks raise, or end inside the library, and name the rank and what happened to it."""
    started = {fault: jobs.start(nursery, "faulty", [backend, phase, fault], 3) for fault in faults}
    for fault, ranks in started.items():
        for rank in _survivors(nursery, ranks, rf"{RAISED}: {backend}\.\w+ \(group '", fault):
            if phase == "collective" and "Timeout" in rank.text:
                assert re.search("1000 ?ms", rank.text), rank.text


@pytest.mark.parametrize(("phase", "faults"), [*TOGETHER[:2], ("future", ["kill"]), ("storm", ["kill"])])
def test_a_rank_is_lost_on_the_stand_in(nursery: Nursery, phase: str, faults: list[str]) -> None:
    """The same on the tests' NCCL, whose calls fail when a process of the communicator has ended, as NCCL's do."""
    variables = {"MCR_DL_NCCL_LIB": str(launchers.STAND_IN)}
    started = {fault: jobs.start(nursery, "faulty", ["nccl", phase, fault], 3, **variables) for fault in faults}
    for fault, ranks in started.items():
        for rank in _survivors(nursery, ranks, rf"{RAISED}: nccl\.\w+ \(group '", fault):
            assert rank.code == jobs.REPORTED, rank.text


@pytest.mark.parametrize(("algorithm", "across"), [("hier", "mpi"), ("hier", "gloo"), ("themis", "gloo")])
@pytest.mark.parametrize(("phase", "faults"), [("collective", [*jobs.LOST]), ("storm", ["kill"])])
def test_a_rank_is_lost_in_a_hierarchy(
    nursery: Nursery, algorithm: str, across: str, phase: str, faults: list[str], tmp_path: Path
) -> None:
    """Ranks that do not share a line with the lost rank name it too."""
    path = grids.write(tmp_path / "grid.json", 2, 2)
    names = f"{across};{algorithm}(shm,{across})"
    for fault in faults:
        ranks = jobs.start(nursery, "faulty", [names, phase, fault], 4, MCR_DL_TOPOLOGY=path)
        _survivors(nursery, ranks, rf"{RAISED}: {algorithm}\(shm,{across}\)\.\w+ \(group '", fault)
        assert not nursery.left()
        nursery.clear()


@backends
@pytest.mark.parametrize("phases", [["idle", "collective", "future"], ["storm"]])
def test_a_lost_rank_is_known_at_once(nursery: Nursery, backend: str, phases: list[str]) -> None:
    """Long before the time limit, here 30 minutes; an operation that no thread waits for fails too."""
    started = [
        (fault, jobs.start(nursery, "faulty", [backend, phase, fault], 3, FAULTY_LIMIT="1800"))
        for phase in phases
        for fault in (["kill", "raise"] if phase == "collective" else ["kill"])
    ]
    for fault, ranks in started:
        _survivors(nursery, ranks, rf"PeerLostError: {backend}\.all_reduce \(group '", fault)


@pytest.mark.parametrize(("phase", "call"), [("backward", "all_reduce"), ("sparse", "all_gather")])
@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_a_rank_is_lost_in_a_backward_pass(nursery: Nursery, backend: str, phase: str, call: str) -> None:
    """DistributedDataParallel, which issues and awaits the calls in C++, raises the same exceptions."""
    ranks = jobs.start(nursery, "faulty", [backend, phase, "kill"], 3)
    _survivors(nursery, ranks, rf"REPORTED PeerLostError: {backend}\.{call} \(group '", "kill")


@pytest.mark.parametrize(
    ("backend", "size", "fault", "order"),
    [
        ("mpi", 2, "kill", "static"),
        ("mpi", 2, "stop", "static"),
        ("mpi", 2, "raise", "static"),
        ("mpi", 2, "kill", "leader"),
        ("gloo", 3, "kill", "static"),
        ("gloo", 3, "stop", "leader"),
        ("gloo", 3, "raise", "static"),
        ("shm", 3, "kill", "leader"),
        ("shm", 3, "stop", "static"),
        ("shm", 3, "raise", "leader"),
    ],
)
def test_a_rank_is_lost_in_a_plan(nursery: Nursery, backend: str, size: int, fault: str, order: str) -> None:
    """ByteScheduler's other ranks raise in the next step, with the text of any other call."""
    (first, _, *others) = jobs.start(nursery, "scheduled", [backend, fault, order], size)
    jobs.end(nursery, [first, *others])
    for rank in (first, *others):
        assert rank.code in (1, jobs.ENDED), rank.text
        # MPI's variants are candidates, too.
        assert re.search(rf"{RAISED}: ({backend}(:p2p)?|auto)\.\w+ \(group '", rank.text), rank.text
        assert re.search(jobs.LOST[fault], rank.text), rank.text


@pytest.mark.parametrize(
    ("fault", "phases"), [("stop", ["idle", "collective", "storm"]), ("exit", ["collective"]), ("kill", ["collective"])]
)
def test_a_rank_is_lost_under_open_mpi(fault: str, phases: list[str], tmp_path: Path) -> None:
    """The launcher ends the job if a rank dies or fails; otherwise the other ranks name the rank."""
    started = [jobs.start_under_open_mpi("faulty", ["mpi", phase, fault], 3, tmp_path / phase) for phase in phases]
    for job in started:
        assert job.end() not in (0, None), job.text
        if fault != "kill":
            assert re.search(rf"{RAISED}: mpi\.\w+ \(group '", job.text), job.text
            assert re.search(jobs.LOST[fault], job.text), job.text


@pytest.mark.parametrize(
    ("arguments", "debug", "told", "times"),
    [
        (["late", "mpi"], "", r"Not arrived: rank 1 has made 1 collective .* in late", 2),
        (["differ", "mpi"], "", r"The ranks have made different calls: collective 1 .*, but broadcast", 3),
        (["desync", "mpi", "op"], "detail", r"RAISED DesyncError the ranks have made different calls: collective 6", 3),
    ],
)
def test_told_under_open_mpi(arguments: list[str], debug: str, told: str, times: int, tmp_path: Path) -> None:
    """A late rank and different calls, with and without detail mode, as with MPICH."""
    job = jobs.start_under_open_mpi("troubles", arguments, 3, tmp_path / "log", MCR_DL_DEBUG=debug)
    code = job.end()
    assert code == (1 if debug else jobs.REPORTED), job.text  # 1: ranks that have raised end without the end of MPI
    assert len(re.findall(told, job.text)) >= times, job.text


@backends
def test_the_first_rank_dies_with_the_store(nursery: Nursery, backend: str) -> None:
    """Rank 0 holds the store, so no rank can be asked. The others notice the end of its process, and name it."""
    ranks = nursery.ranks(jobs.PROGRAMS / "troubles.py", ["late", backend], 3)
    jobs.await_text(ranks, "READY")
    os.kill(ranks[0].pid, signal.SIGKILL)
    jobs.end(nursery, [ranks[2]])
    assert ranks[2].code == jobs.REPORTED
    assert re.search(rf"RAISED PeerLostError .*ost rank 0: process {ranks[0].pid} on \S+ has ended", ranks[2].text)


@backends
def test_a_late_rank(nursery: Nursery, backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the call, its number, size and timeout, and the line of the late rank; so does `mcr-trace
    diagnose` from the dumps.
    """
    ranks = jobs.start(nursery, "troubles", ["late", backend], 3, MCR_DL_DUMP_DIR=str(tmp_path))
    jobs.end(nursery, [ranks[0], ranks[2]])
    for number in (0, 2):
        text = ranks[number].text
        assert ranks[number].code == jobs.REPORTED
        assert (
            f"CollectiveTimeoutError {backend}.all_reduce (group 'default', rank {number} of 3): collective 2" in text
        )
        assert "1000ms" in text or "of 40 bytes timed out: still running after the timeout of 1000 ms" in text
        assert re.search(" (Timed out|closed|timeout) ", text), text  # PyTorch's own tests look for these words
        assert "timed out" in text
        assert re.search(r"Not arrived: rank 1 has made 1 collective .* at troubles\.py:\d+ in late", text)
    assert {path.name for path in tmp_path.iterdir()} >= {f"alarm0.rank{rank}.json" for rank in range(3)}
    assert mcr_trace(["diagnose", str(tmp_path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Alarm 0, " in told
    assert "Not arrived: rank 1 has made 1 collective" in told
    assert mcr_trace(["diagnose", str(tmp_path), "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert " ".join(report["text"].split()) == told.strip()
    assert report["alarms"][0]["number"] == 0
    assert report["alarms"][0]["ranks_with_dumps"] == [0, 1, 2]
    stacks = json.loads((tmp_path / "alarm0.rank1.json").read_text())["stacks"]
    assert any("in late" in line for line in stacks["MainThread"])


@backends
def test_a_late_rank_after_starting_again(nursery: Nursery, backend: str) -> None:
    """The calls of a destroyed group count for no group of the same name that is made later."""
    ranks = jobs.start(nursery, "troubles", ["late_again", backend], 3)
    jobs.end(nursery, [ranks[0], ranks[2]])
    for number in (0, 2):
        assert ranks[number].code == jobs.REPORTED
        assert "Not arrived: rank 1 has made 1 collective" in ranks[number].text, ranks[number].text


def test_a_rank_gives_up_first(nursery: Nursery) -> None:
    """A rank that ends after a failure leaves a note of that failure: its end is not the first cause."""
    ranks = jobs.start(nursery, "troubles", ["impatient", "mpi"], 3)
    jobs.end(nursery, [ranks[0]])
    assert "Not arrived: rank 1 has made 1 collective" in ranks[0].text
    assert re.search(
        r"gone: rank 2: it has ended, after a failure of mpi\.all_reduce \(group 'default', rank 2 of 3\): collective "
        r"2 of 40 bytes timed out: still running after the timeout of 1000 ms\.",
        ranks[0].text,
    ), ranks[0].text


@backends
def test_a_late_rank_of_fused_calls(nursery: Nursery, backend: str) -> None:
    """A held call that reaches its timeout ends alone: other held calls keep their timeouts, and later calls work."""
    ranks = jobs.start(nursery, "troubles", ["late_fused", backend], 2)
    jobs.end(nursery, ranks)
    assert ["DONE" in rank.text for rank in ranks] == [True] * 2, [rank.text for rank in ranks]
    assert re.search(r"RAISED CollectiveTimeoutError .* timed out: .* after the timeout of 1000 ms", ranks[0].text)
    assert "Not arrived: rank 1 has made no collectives" in ranks[0].text, ranks[0].text


@pytest.mark.parametrize(("backend", "uniform"), [("mpi", "0"), ("gloo", "0"), ("gloo", "1")])
def test_a_late_rank_through_torch(nursery: Nursery, backend: str, uniform: str) -> None:
    """The same timeouts and texts for a program that knows only torch.distributed."""
    ranks = jobs.start(nursery, "troubles", ["late_through_torch", backend], 3, MCR_DL_UNIFORM=uniform)
    jobs.end(nursery, [ranks[0], ranks[2]])
    for rank in (ranks[0], ranks[2]):
        assert rank.code == jobs.REPORTED, rank.text
        assert rank.text.count("RAISED") == 2, rank.text
        assert re.search(r"Not arrived: rank 1 has made 1 collective .* in late_through_torch", rank.text), rank.text


def test_a_late_rank_inside_of_mpi_through_torch(nursery: Nursery) -> None:
    """A blocking call of a uniform group is a blocking call of MPI: the timeout ends the process, with the reason."""
    ranks = jobs.start(nursery, "troubles", ["late_through_torch", "mpi"], 3)
    jobs.end(nursery, [ranks[0], ranks[2]])
    for rank in (ranks[0], ranks[2]):
        assert rank.code == jobs.ENDED, rank.text
        assert rank.text.count("RAISED") == 1, rank.text  # of the asynchronous call before it
        assert re.search(r"Not arrived: rank 1 has made 1 collective .* in late_through_torch", rank.text), rank.text


@backends
def test_no_thread_waits(nursery: Nursery, backend: str) -> None:
    """An operation without a waiting thread fails in time, and so does its future."""
    ranks = jobs.start(nursery, "troubles", ["no_thread_waits", backend], 2)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "DONE")
    assert re.findall(r"RAISED \w+", ranks[0].text) == ["RAISED CollectiveTimeoutError"] * 2
    assert ranks[0].text.count("Not arrived: rank 1 has made 1 collective") == 2


@backends
def test_many_operations_under_way(nursery: Nursery, backend: str) -> None:
    """The sampler gets only operations past their timeout, and makes Python objects of no others."""
    ranks = jobs.start(nursery, "troubles", ["many_pending", backend], 2)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "DONE")


# ---- ranks make different calls


@pytest.mark.parametrize("backend", ["mpi", "gloo", "shm", "mpi,gloo"])
def test_different_calls(nursery: Nursery, backend: str) -> None:
    """MCR_DL_DEBUG=detail: all ranks raise, in this call and in later ones, and name the first difference."""
    differences = (
        ["backend"] if "," in backend else ["op", "size", "dtype", "reduction", "strides", "priority", "async"]
    )
    started = [
        # The third rank makes the calls of the first one.
        jobs.start(nursery, "troubles", ["desync", backend, difference], ranks_of(index), MCR_DL_DEBUG="detail")
        for index, difference in enumerate(differences)
    ]
    for ranks in started:
        jobs.end(nursery, ranks)
        for rank in ranks:
            assert "DesyncError" in rank.text, rank.text
            assert re.search(r"collective 6 of group 'default' is .* on ranks? 0.*, but .* on rank 1", rank.text), (
                rank.text
            )
            assert len(re.findall(r"called at troubles\.py:\d+ in calls", rank.text)) >= 2
        # gloo ends the process if a message is too long: the text is the same, the exit code differs.
        assert {rank.code for rank in ranks} <= {0, -signal.SIGABRT}
        if backend == "shm":  # which notices some differences itself, in the first call
            kinds = r"RAISED (BackendError|DesyncError) [^\n]*\nRAISED DesyncError"
            assert all(re.search(kinds, rank.text) for rank in ranks), [rank.text for rank in ranks]
        elif backend != "gloo":
            assert [rank.text.count("RAISED DesyncError") for rank in ranks] == [2] * len(ranks)


def test_torch_starts_again_after_a_desync(nursery: Nursery) -> None:
    ranks = jobs.start(nursery, "troubles", ["torch_desync", "gloo"], 2, MCR_DL_DEBUG="detail", MCR_DL_BACKENDS="gloo")
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "RAISED", "DONE")


@backends
@pytest.mark.parametrize("program", ["same", "same_to_the_end"])
def test_equal_calls(nursery: Nursery, backend: str, program: str) -> None:
    """MCR_DL_DEBUG=detail does not disturb correct programs, which end quietly."""
    ranks = jobs.start(nursery, "troubles", [program, backend], 3, MCR_DL_DEBUG="detail")
    jobs.end(nursery, ranks)
    assert [(rank.code, rank.text) for rank in ranks] == [(0, "SAME\n")] * 3


@pytest.mark.parametrize("size", [2, 3])
def test_different_sizes_at_the_end(nursery: Nursery, size: int) -> None:
    """MCR_DL_DEBUG=detail: no program ends successfully after a wrong sum, however it ends; every rank says why."""
    ways = ["nothing", "destroy", "torch", "calls", "calls, destroy", "pair", "pair, forget", "pair, forget, destroy"]
    for how in ways:
        ranks = jobs.start(nursery, "troubles", ["ends", "mpi", how], size, MCR_DL_DEBUG="detail")
        jobs.end(nursery, ranks)
        for rank in ranks:
            assert re.search(r"DesyncError:? .*the ranks have made different calls: collective 1 of", rank.text), (
                rank.text
            )
            assert "4000 bytes, mpi) on rank 0" in rank.text, rank.text
            raises = "destroy" in how or how == "torch"
            assert rank.code in ([jobs.REPORTED] if raises else [jobs.REPORTED, jobs.ENDED]), (how, rank.text)


@backends
def test_a_call_that_one_rank_makes_alone_at_the_end(nursery: Nursery, backend: str) -> None:
    """MCR_DL_DEBUG=detail: the number of calls counts too."""
    ranks = jobs.start(nursery, "troubles", ["one_more", backend], 2, MCR_DL_DEBUG="detail")
    jobs.end(nursery, ranks)
    told = "'default' ends after 1 collective on rank 0, but after 2 on rank 1, then all_reduce(SUM, float32, 40 bytes"
    jobs.expect(ranks, jobs.ENDED, "DesyncError", told)


@backends
def test_a_rank_that_does_not_come_to_its_end(nursery: Nursery, backend: str) -> None:
    """MCR_DL_DEBUG=detail: the others do not wait for it, and report the missing information."""
    ranks = jobs.start(nursery, "troubles", ["one_raises", backend], 3, MCR_DL_DEBUG="detail")
    jobs.end(nursery, ranks)
    for rank in (ranks[0], ranks[2]):
        assert "the last calls have not been compared: rank 1 ended without it" in rank.text, rank.text


def test_different_sizes_without_detail(nursery: Nursery) -> None:
    """The error of the rank that notices begins with the difference; MPI's own words come last.

    On some machines MPICH takes a message that is too long for fatal and ends the process itself, whatever the error
    handler of the communicator (also without MCR-DL).
    """
    ranks = jobs.start(nursery, "troubles", ["sizes", "mpi"], 2)
    jobs.end(nursery, ranks)
    told = re.search(
        r"RAISED BackendError mpi\.all_reduce \(group 'default', rank 1 of 2\): failed\. The ranks have made different "
        r"calls: collective 1 .*4000 bytes, mpi\) on rank 0, but .*3600 bytes, mpi\) on rank 1.*\. The backend's own "
        r"text: MPI_Allreduce",
        ranks[1].text,
    )
    ended = "Fatal error in internal_Allreduce" in ranks[1].text and "Message truncated" in ranks[1].text
    assert told or ended, ranks[1].text
    assert "All ranks have arrived" not in ranks[0].text + ranks[1].text


def test_different_calls_without_detail(nursery: Nursery) -> None:
    """The timeout error shows the difference."""
    ranks = jobs.start(nursery, "troubles", ["differ", "mpi"], 2)
    jobs.end(nursery, ranks)
    first = "collective 1 of group 'default' is all_reduce("
    jobs.expect(ranks, jobs.REPORTED, "RAISED CollectiveTimeoutError", first, "but broadcast(")


def test_detail_on_one_rank_alone(nursery: Nursery) -> None:
    """All ranks must set it equally: it decides how calls are made."""
    _, environments = jobs.agent_store(nursery, 2)
    environments[0]["MCR_DL_DEBUG"] = "detail"
    ranks = [nursery.start(jobs.PROGRAMS / "troubles.py", ["same", "mpi"], each) for each in environments]
    jobs.end(nursery, ranks)
    for rank in ranks:
        assert "MCR_DL_DEBUG: expected the same on all ranks, got detail on rank 0 and off on rank 1" in rank.text


# ---- the store dies, the disk is full


@backends
def test_the_store_dies(nursery: Nursery, backend: str) -> None:
    """Communication continues without it, whatever the ranks are doing; operations that need it raise."""
    started = []
    for phase in ("idle", "collective", "storm"):
        holder, environments = jobs.agent_store(nursery, 2)
        arguments = ["store_dies", backend, phase]
        ranks = [nursery.start(jobs.PROGRAMS / "troubles.py", arguments, each) for each in environments]
        jobs.await_text(ranks, "READY")
        os.kill(holder.pid, signal.SIGKILL)
        started.append(ranks)
    for ranks in started:
        jobs.end(nursery, ranks)
        jobs.expect(ranks, 0, "RAISED", "DONE")


@backends
def test_a_full_disk(nursery: Nursery, backend: str, tmp_path: Path) -> None:
    """A trace or dump that cannot be written does not change what the program sees."""
    for rank in range(2):
        for name in (f"rank{rank}.json", f"alarm0.rank{rank}.json"):
            (tmp_path / name).symlink_to("/dev/full")
    places = {"MCR_DL_TRACE": str(tmp_path), "MCR_DL_DUMP_DIR": str(tmp_path)}
    ranks = jobs.start(nursery, "troubles", ["full_disk", backend], 2, **places)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "No space left on device", "DONE")
    jobs.expect(ranks[:1], 0, "RAISED CollectiveTimeoutError", "Not arrived: rank 1")


# ---- signals, exits, forks


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_interrupt_of_a_wait(nursery: Nursery, backend: str) -> None:
    """Ctrl-C raises KeyboardInterrupt in a blocking collective that the core waits for."""
    ranks = jobs.start(nursery, "troubles", ["interrupted", backend], 2)
    jobs.await_text([ranks[0]], "WAITING")
    os.kill(ranks[0].pid, signal.SIGINT)
    jobs.end(nursery, [ranks[0]], 10)
    assert ranks[0].code == -signal.SIGINT  # as Python ends a program that does not catch it
    assert "KeyboardInterrupt" in ranks[0].text
    assert "in interrupted" in ranks[0].text


def test_interrupt_of_a_backward_pass(nursery: Nursery) -> None:
    """The same where C++ code of torch makes the call, and hands the exception on."""
    ranks = jobs.start(nursery, "faulty", ["shm", "sparse", "sleep"], 2)
    jobs.await_text([ranks[0]], "WAITING")
    os.kill(ranks[0].pid, signal.SIGINT)
    jobs.end(nursery, [ranks[0]], 10)
    assert ranks[0].code == -signal.SIGINT, ranks[0].text
    assert re.search(r"loss\.backward\(\)(?s:.*)KeyboardInterrupt", ranks[0].text), ranks[0].text


def test_interrupt(nursery: Nursery) -> None:
    """Ctrl-C ends a program inside a blocking collective of a library."""
    ranks = jobs.start(nursery, "troubles", ["interrupted", "mpi"], 2)
    jobs.await_text([ranks[0]], "WAITING")
    os.kill(ranks[0].pid, signal.SIGINT)
    jobs.end(nursery, [ranks[0]], 10)
    assert ranks[0].code == INTERRUPTED
    assert re.search(r"KeyboardInterrupt: \w+\.all_reduce \(group 'default', rank 0 of 2\)", ranks[0].text)
    assert "in interrupted" in ranks[0].text


@backends
def test_ends_well(nursery: Nursery, backend: str) -> None:
    """abort() from another thread; DataLoader's workers, calls in a forked process; exits with pending operations."""
    scenarios = ["aborted", "aborted_in_calls", "forked", "without_finalize", "finalize_outstanding"]
    started = {scenario: jobs.start(nursery, "troubles", [scenario, backend], 2) for scenario in scenarios}
    for ranks in started.values():
        jobs.end(nursery, ranks)
        jobs.expect(ranks, 0, "DONE")
        for rank in ranks:
            assert not re.search("Traceback|terminate", rank.text), rank.text
    jobs.expect(started["forked"], 0, "CHILD 7")
    assert [rank.text.count("was forked from rank") for rank in started["forked"]] == [3, 3]
    jobs.expect(started["aborted"][:1], 0, "the group has been aborted", "NotInitializedError")
