# SPDX-License-Identifier: Apache-2.0
"""The guarantees of docs/reliability.md for pulled cables and vanished hosts. `make lab` runs this, as root."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from lab import Job, Lab

TESTS = Path(__file__).resolve().parents[1]

PROGRAM = TESTS / "programs" / "network.py"
REPORTED, ENDED = 3, 70
START_SECONDS = 60.0
BOUND_SECONDS = 20.0  # the timeout of 2 s, 2 s more, and the time to start and end on a loaded machine
NICS = {"gloo": 0, "mpi": 1}  # the NIC of each library in the lab


def quiet(rank: int, line: str) -> None:
    """Print nothing."""


def await_text(job: Job, ranks: int, text: str = "ready") -> None:
    """Wait until all ranks have printed it."""
    deadline = time.monotonic() + START_SECONDS
    while not all(text in job.output(rank) for rank in range(ranks)):
        assert time.monotonic() < deadline, [job.output(rank) for rank in range(ranks)]
        time.sleep(0.05)


def start_phases(lab: Lab, backend: str, **variables: str) -> list[Job]:
    """Three jobs at once, whose ranks are idle, in a blocking collective, in a storm of asynchronous ones."""
    command = [sys.executable, str(PROGRAM), backend]
    started = [lab.start([*command, phase], variables, sink=quiet) for phase in ("idle", "collective", "storm")]
    for job in started:
        await_text(job, 3)
    return started


def ends(job: Job, left: set[int], deadline: float) -> dict[int, str]:
    """The output of the ranks of hosts that are left, once they have ended with an error."""
    while left & set(job.running()) and time.monotonic() < deadline:
        time.sleep(0.05)
    outputs = {rank: job.output(rank) for rank in sorted(left)}
    assert not left & set(job.running()), outputs
    result = job.wait(5, grace=0)
    for rank, text in outputs.items():
        assert result.codes[rank] in (REPORTED, ENDED), (result.codes, text)
    return outputs


@pytest.mark.parametrize("fault", ["cut", "host"])
@pytest.mark.parametrize("backend", NICS)
def test_the_network_fails(backend: str, fault: str) -> None:
    """The remaining ranks raise, or end inside the library, within the bound, and name the call: while they are idle,
    in a blocking collective and in a storm of asynchronous ones, three jobs at once.
    """
    with Lab(hosts=3, nics=(400, 200)) as lab:
        started = start_phases(lab, backend)
        if fault == "cut":
            lab.cut(1, NICS[backend])
        else:
            lab.remove_host(1)
        deadline = time.monotonic() + BOUND_SECONDS
        for job in started:
            for text in ends(job, {0, 2} if fault == "host" else {0, 1, 2}, deadline).values():
                kinds = "CollectiveTimeoutError|PeerLostError|BackendError"
                assert re.search(rf"({kinds}): {backend}\.all_reduce \(group 'default'", text), text
                assert re.search("Not arrived: |have arrived|cannot be reached|different calls", text), text


@pytest.mark.parametrize("fault", ["cut", "host"])
@pytest.mark.parametrize("backend", NICS)
def test_a_host_is_lost(backend: str, fault: str) -> None:
    """Long before the time limit: the kernels of the hosts do not answer each other on the store's network."""
    with Lab(hosts=3, nics=(400, 200)) as lab:
        started = start_phases(lab, backend, NETWORK_LIMIT="600")
        if fault == "cut":
            lab.cut(1, NICS["gloo"])
        else:
            lab.remove_host(1)
        deadline = time.monotonic() + BOUND_SECONDS
        for job in started:
            outputs = ends(job, {0, 2} if fault == "host" else {0, 1, 2}, deadline)
            for rank, text in outputs.items():
                assert "PeerLostError" in text, text
                lost, name = (0, "host0") if rank == 1 else (1, "host1")
                assert re.search(rf"ost rank {lost}: its host {name} has not answered for 5 s", text), text


def test_a_host_comes_back_too_late() -> None:
    """The others have gone on without it; its rank has lost the others, and learns that it is left out."""
    with Lab(hosts=3, nics=(400, 200)) as lab:
        program = str(TESTS / "programs" / "connected.py")
        job = lab.start([sys.executable, program, "gloo", "cut", "1"], sink=quiet)
        await_text(job, 3, "group of 3 of 3")
        lab.cut(1, NICS["gloo"])
        await_text(job, 3, "lost: ")
        lab.restore(1, NICS["gloo"])
        result = job.wait(START_SECONDS, grace=None)
        texts = [job.output(rank) for rank in range(3)]
        assert [result.codes[rank] for rank in range(3)] == [0, REPORTED, 0], texts
        assert all("group of 2 of 3: rank" in texts[rank] for rank in (0, 2)), texts
        assert "have found this process lost, and go on without it" in texts[1], texts[1]
