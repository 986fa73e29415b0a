# SPDX-License-Identifier: Apache-2.0
"""The connections between hosts in cases that whole jobs rarely meet: real sockets in one process, without a store."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mcr_dl import _C
from mcr_dl.watch._alarm import Alarm
from mcr_dl.watch._connections import Connections
from mcr_dl.watch._losses import Losses
from waiting import PATIENCE, await_true

pytestmark = pytest.mark.timed

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() resets the connection


class Job:
    """Ranks on hosts, each with its own view of the losses, and the values that they have left."""

    def __init__(self, nodes: list[int]) -> None:
        self.nodes = nodes
        self.left: dict[str, Any] = {}
        self.ranks: list[Losses] = []
        for rank in range(len(nodes)):
            self.left[f"member/{rank}"] = self.member(rank)
        for rank in range(len(nodes)):
            self.ranks.append(self.start(rank))

    def member(self, rank: int, pid: int = 0) -> dict[str, Any]:
        """The identity of a rank's process, which no rank can watch."""
        host = f"host{self.nodes[rank]}"
        return {"rank": rank, "pid": pid or 1000 + rank, "host": host, "machine": host, "processes": "elsewhere"}

    def exchange(self, rank: int) -> Any:
        """A stand-in for the store."""

        def tell(alarm: Alarm, *_: Any) -> bool:
            for other, losses in enumerate(self.ranks):
                if other != rank:
                    losses.learn(alarm.lost, alarm.text, alarm.process)
            return True

        return SimpleNamespace(
            rank=rank,
            ask=lambda action, *_: action(),
            left=lambda key, other: self.left.get(f"{key}/{other}"),
            leave=lambda key, value: self.left.update({f"{key}/{rank}": value}) is None,
            tell=tell,
            closed_well=False,
            store=SimpleNamespace(host="127.0.0.1"),
        )

    def start(self, rank: int, pid: int = 0) -> Losses:
        """A process for the rank."""
        losses = Losses(self.exchange(rank))
        losses._nodes = list(self.nodes)
        losses._connections = Connections(losses._exchange, self.member(rank, pid), 3.0, losses)
        losses._connections.start(self.nodes, set(), wait=True)
        return losses

    def connections(self, rank: int) -> Connections:
        """The entries of a rank."""
        found = self.ranks[rank]._connections
        assert found is not None
        return found

    def peers(self, rank: int) -> list[int]:
        """The ranks with which it has connections."""
        return sorted(each.rank for each in self.connections(rank)._introduced())

    def end(self, rank: int, *, well: bool) -> None:
        """The rank ends as intended, or its process is killed."""
        if well:
            self.left[f"ended/{rank}"] = {**self.member(rank), "well": True, "ended": "it has ended"}
        self.ranks[rank].stop(well=well)


@pytest.fixture
def make() -> Iterator[Callable[[list[int]], Job]]:
    """A function that starts a job, which ends with the test."""
    made: list[Job] = []

    def start(nodes: list[int]) -> Job:
        made.append(Job(nodes))
        return made[-1]

    yield start
    for job in made:
        for losses in job.ranks:
            losses.stop(well=True)
        for rank in range(len(job.nodes)):
            _C.regain(rank)


Make = Callable[[list[int]], Job]


def test_two_hosts_are_lost_at_once(make: Make) -> None:
    """The second was to take over from the first. The others notice both, and connect to each other."""
    job = make([0, 1, 2, 3])
    job.end(1, well=False)
    job.end(0, well=False)
    await_true(lambda: all(set(job.ranks[rank].texts) == {0, 1} for rank in (2, 3)))
    await_true(lambda: job.peers(2) == [3])
    job.end(3, well=False)
    await_true(lambda: set(job.ranks[2].texts) == {0, 1, 3})


def test_ranks_that_end_well_one_after_the_other(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """They are not lost, and the others go on watching each other."""
    job = make([0, 1, 2, 3])
    job.end(0, well=True)
    job.end(1, well=True)
    await_true(lambda: job.peers(2) == [3])
    assert not job.ranks[2].any
    assert not job.ranks[3].any
    assert not caplog.records
    job.end(3, well=False)
    await_true(lambda: set(job.ranks[2].texts) == {3})


def test_a_connection_that_one_end_has_lost(make: Make) -> None:
    """The other end learns it later, when there is a new one: no rank is lost."""
    job = make([0, 1])
    up = job.connections(1)._up
    assert up is not None
    copy = up.socket.dup()  # keeps the old connection open for rank 0
    up.socket.shutdown(socket.SHUT_RD)  # rank 1 reads its end
    await_true(lambda: job.connections(1)._up not in (None, up) and job.peers(1) == [0])
    await_true(lambda: job.peers(0) == [1])
    copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    copy.close()
    time.sleep(1.0)
    assert not job.ranks[0].any
    assert not job.ranks[1].any


def test_another_process_has_the_port(make: Make) -> None:
    """It accepts, and closes: the rank is lost all the same, without a storm of attempts."""
    job = make([0, 1])
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0.1)
        job.left["address/0"] = {**job.left["address/0"], "host": "127.0.0.1", "port": other.getsockname()[1]}
        job.end(0, well=False)
        attempts = 0
        deadline = time.monotonic() + PATIENCE
        while not job.ranks[1].any:
            assert time.monotonic() < deadline
            with contextlib.suppress(TimeoutError):
                other.accept()[0].close()
                attempts += 1
    assert attempts < 10
    assert set(job.ranks[1].texts) == {0}


def test_a_connection_that_cannot_be_made(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """One warning says so, and no rank is lost."""
    job = make([0, 1])
    job.end(1, well=True)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    job.left["address/0"] = {**job.left["address/0"], "host": "127.0.0.1", "port": port}
    job.ranks[1] = job.start(1, 999)
    await_true(lambda: bool(caplog.records))
    (record,) = caplog.records
    assert "cannot keep a connection to another host" in record.getMessage()
    assert not job.ranks[1].any


def test_a_process_that_comes_back_is_late(make: Make) -> None:
    """Until it has left its own address, that of the process before it means nothing; then all connect to it."""
    job = make([0, 1, 2])
    job.end(0, well=False)
    await_true(lambda: all(set(job.ranks[rank].texts) == {0} for rank in (1, 2)))
    new = job.member(0, 999)
    job.left["member/0"] = new
    for rank in (1, 2):
        job.ranks[rank].replace(0, new, "lost rank 0", 0)
    time.sleep(1.0)
    assert not job.ranks[1].any
    assert not job.ranks[2].any
    job.ranks[0] = job.start(0, 999)
    await_true(lambda: job.peers(0) == [1, 2])


def test_all_of_a_large_host_are_lost(make: Make) -> None:
    """More ranks than requests fit into the pipe that wakes the thread."""
    job = make([0, 1])
    losses = job.ranks[0]
    losses._nodes = [0] + [1] * 400

    def lose() -> None:
        for rank in range(1, 401):
            losses.lose(rank, f"lost rank {rank}")

    job.connections(0)._request(lose)  # on its own thread
    await_true(lambda: len(job.connections(0)._gone) == 400)
    for rank in range(2, 401):
        _C.regain(rank)


def test_many_connect_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are accepted together; connections that come and go change nothing, so no other target is looked for."""
    job = make([0, 1])
    first, looks = job.connections(0), []
    monkeypatch.setattr(first, "_target", lambda: looks.append(0) or -1)
    address = "127.0.0.1", job.left["address/0"]["port"]
    with contextlib.ExitStack() as opened:
        for _ in range(200):
            opened.enter_context(socket.create_connection(address, timeout=PATIENCE))
        await_true(lambda: len(first._due) == 200)
    await_true(lambda: not first._due)
    assert job.peers(0) == [1]
    assert not looks
