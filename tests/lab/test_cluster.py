# SPDX-License-Identifier: Apache-2.0
"""The lab itself: it keeps to its namespaces, ends what fails, and leaves nothing behind. `make lab` runs this."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import Job, Lab, LabError, cleaning, cli, plan, stages, suite
from waiting import PATIENCE, await_true

BENCH = Path(__file__).resolve().parents[2] / "bench"

COMMAND = [sys.executable, str(BENCH / "lab")]
PYTHON = sys.executable

# Host 1 listens, host 0 connects; each then writes a line for every line that the other sends, and stops at `bye`.
TALK = """
import os, socket, sys, time
rank, limit = int(os.environ["RANK"]), float(sys.argv[1])
if rank == 1:
    with socket.create_server(("10.77.0.2", 4000)) as listening:
        peer, _ = listening.accept()
else:
    for _ in range(200):
        try:
            peer = socket.create_connection(("10.77.0.2", 4000), timeout=5)
            break
        except OSError:
            time.sleep(0.05)
peer.settimeout(limit)
print("connected", flush=True)
try:
    while True:
        if rank == 0:
            peer.sendall(b"x")
        got = peer.recv(1)
        if not got:
            print("closed", flush=True)
            break
        if rank == 1:
            peer.sendall(b"y")
        else:
            print("heard", flush=True)
            time.sleep(0.1)
except TimeoutError:
    print("silence", flush=True)
except OSError as error:
    print("error", error, flush=True)
"""


@pytest.fixture(autouse=True)
def before() -> Iterator[set[str]]:
    """The labs that existed before. Afterwards no other lab has a namespace, a process, a file or a device."""
    labs = {each.lab for each in cleaning.find()}
    interfaces = set(os.listdir("/sys/class/net"))
    yield labs
    assert {each.lab for each in cleaning.find()} <= labs
    assert set(os.listdir("/sys/class/net")) == interfaces


def quiet(rank: int, line: str) -> None:
    """Print nothing."""


def shell(lab: Lab, script: str) -> Job:
    """A shell script as every rank."""
    return lab.start(["sh", "-c", script], sink=quiet)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The lab's own command."""
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_hosts_are_apart() -> None:
    """Each host has its own names, NICs and shared memory; ranks of one host share them; there is no way outside."""
    script = """
    touch /dev/shm/of-rank-$RANK
    while [ "$(ls /dev/shm | wc -l)" -lt $LOCAL_WORLD_SIZE ]; do sleep 0.05; done
    echo "$RANK $WORLD_SIZE $LOCAL_RANK $(cat /proc/sys/kernel/hostname)" /dev/shm/* $(ls /sys/class/net)
    ip route
    """
    with Lab(hosts=2, ranks_per_host=2) as lab:
        job = shell(lab, script)
        result = job.wait(20)
        assert result.ok, result.text()
        for rank in range(4):
            host = rank // 2
            first, *routes = job.output(rank).splitlines()
            files = f"/dev/shm/of-rank-{2 * host} /dev/shm/of-rank-{2 * host + 1}"
            assert first.split() == f"{rank} 4 {rank % 2} host{host} {files} eth0 eth1 lo".split()
            assert [route.split()[0] for route in routes] == ["10.77.0.0/24", "10.77.1.0/24"]


def test_rates_are_set_where_packets_leave() -> None:
    """The kernel has tbf with each NIC's rate at both ends of each cable."""
    with Lab(hosts=2, nics=(300, 50)) as lab:
        assert _rates(lab) == _expected((300, 50), (300, 50))
        lab.set_rate(1, 0, 120)
        assert _rates(lab) == _expected((300, 50), (120, 50))


def _rates(lab: Lab) -> list[tuple[str, str, str]]:
    """(namespace, device, rate) of all ends of cables."""
    found = []
    for space in next(each for each in cleaning.find() if each.lab == lab.id).spaces:
        listed = subprocess.run(["tc", "-n", space, "qdisc"], capture_output=True, text=True, timeout=10, check=True)
        found += [(space[-2:], *pair) for pair in re.findall(r"tbf .*?dev (\S+) .*?rate (\S+)", listed.stdout)]
    return sorted(found)


def _expected(*hosts: tuple[int, ...]) -> list[tuple[str, str, str]]:
    """For the rates of each host's NICs."""
    nics = [(host, nic, f"{rate}Mbit") for host, rates in enumerate(hosts) for nic, rate in enumerate(rates)]
    ends = [(f"h{host}", f"eth{nic}", rate) for host, nic, rate in nics]
    return sorted(ends + [(f"s{nic}", f"h{host}", rate) for host, nic, rate in nics])


def test_a_rank_that_fails_ends_the_others() -> None:
    """The error names it, with its code and host; the others are ended after the grace time."""
    found = command("run", "--grace", "0.5", "--", "sh", "-c", "echo from $RANK; [ $RANK = 1 ] && exit 7; sleep 300")
    assert found.returncode == cli.FAILED
    assert "rank 1 (host 1) failed with exit code 7; ended after it: rank 0 (host 0)" in found.stderr
    assert sorted(found.stdout.splitlines()) == ["host0/0| from 0", "host1/1| from 1"]


def test_the_time_limit() -> None:
    """Remaining ranks are ended, even if they ignore SIGTERM."""
    found = command("run", "--limit", "1", "--", "sh", "-c", "trap '' TERM; [ $RANK = 0 ] || sleep 300; sleep 0.1")
    assert found.returncode == cli.FAILED
    assert re.search(r"not ready after \d+ s; ended: rank 1 \(host 1\)", found.stderr)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, cli.INTERRUPTED), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_removes_everything(number: signal.Signals, code: int) -> None:
    """Ctrl-C and SIGTERM in the middle of a run."""
    with started() as process:
        process.send_signal(number)
        assert process.wait(PATIENCE) == code


@contextlib.contextmanager
def started() -> Iterator[subprocess.Popen[str]]:
    """A lab at work: each rank has started a detached process that does not end."""
    script = "setsid sleep 300 & echo at work; exec sleep 300"
    # A parent that started the tests in the background may have made them, and this process, ignore Ctrl-C.
    command = ["env", "--default-signal=INT", *COMMAND, "run", "--", "sh", "-c", script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        assert sorted(lines) == ["host0/0| at work\n", "host1/1| at work\n"]
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_what_a_killed_lab_leaves_is_removed(before: set[str]) -> None:
    """SIGKILL in the middle of a run: its ranks die with it, `lab clean` removes the rest and no running lab."""
    with Lab(hosts=2) as running, started() as process:
        (each,) = [each for each in cleaning.find() if each.lab not in before | {running.id}]
        assert each.owner == process.pid
        assert len(each.spaces) == 4
        inodes = [cleaning.inode(space) for space in each.spaces]
        assert None not in inodes
        process.kill()
        process.wait()
        await_true(lambda: len(cleaning.processes(filter(None, inodes), each.lab)) <= 2, "the ranks' end")
        (left,) = [left for left in cleaning.find() if left.lab == each.lab]
        assert left.owner is None
        assert len(left.pids) == 2, "what the ranks had started lives on, and keeps the namespaces"
        assert each.lab in command("status").stdout
        found = command("clean")
        assert found.returncode == 0, found.stderr
        assert f"{each.lab}: removed 2 processes and 4 namespaces" in found.stdout
        assert f"{running.id}: process {os.getpid()} is at work in it" in found.stdout
        assert cleaning.processes(filter(None, inodes), each.lab) == []
        assert each.lab not in {left.lab for left in cleaning.find()}
        assert not cleaning.record_path(each.lab).exists()
        assert not list(Path("/run/netns").glob(f"*{each.lab}*"))
        assert shell(running, "true").wait(20).ok
    assert command("clean", each.lab).returncode == cli.WRONG


def test_an_exception_removes_everything() -> None:
    """In the block, and while the lab is made."""
    with pytest.raises(OSError, match="nothing-here"), Lab(hosts=2) as lab:
        assert shell(lab, "sleep 300").pids.keys() == {0, 1, *os.listdir("/nothing-here")}
    lab = Lab(hosts=2)
    subprocess.run(["ip", "netns", "add", plan.host_space(lab.id, 1)], timeout=10, check=True)
    with pytest.raises(LabError, match="File exists"), lab:
        pass


def test_a_cut_cable_is_silence() -> None:
    """No end, no error: the peer waits. After the cable is back, the connection continues."""
    with Lab(hosts=2) as lab:
        job = lab.start([PYTHON, "-c", TALK, "60"], sink=quiet)
        await_true(lambda: "heard" in job.output(0), "the first answer")
        lab.cut(0, 0)
        time.sleep(1.0)  # lets packets on their way arrive
        before = job.output(0)
        time.sleep(1.0)
        assert job.output(0) == before
        assert job.running() == [0, 1]
        lab.restore(0, 0)
        await_true(lambda: len(job.output(0)) > len(before), "an answer after the cable was put back")
        assert not re.search("closed|error|silence", job.output(0) + job.output(1))
        with pytest.raises(LabError, match="nic: expected 0 to 1, got 2"):
            lab.cut(0, 2)


def test_a_removed_host_is_silence() -> None:
    """Its ranks are gone at once, and no reset tells the peer; a job can be started on the remaining hosts."""
    with Lab(hosts=2) as lab:
        job = lab.start([PYTHON, "-c", TALK, "2"], sink=quiet)
        await_true(lambda: "heard" in job.output(0), "the first answer")
        lab.remove_host(0)
        result = job.wait(20, grace=None)
        assert result.codes == {0: -signal.SIGKILL, 1: 0}
        assert job.output(1).splitlines() == ["connected", "silence"]
        again = shell(lab, "echo $RANK")
        assert again.wait(20).codes == {1: 0}
        with pytest.raises(LabError, match=r"host: expected one of \[1\], got 0"):
            lab.remove_host(0)


def test_a_failed_stage_does_not_stop_the_others(tmp_path: Path) -> None:
    """`make lab` records each failure with its stage and each of its reasons, and runs the rest."""
    shape = plan.Shape(2)

    def stage(name: str, script: str, limit: float = 20, problems: tuple[str, ...] = ()) -> stages.Stage:
        out = str(tmp_path / f"{name}.json")
        program = ["sh", "-c", script.format(out=out)]
        return stages.Stage(name, shape, program, out, limit, check=lambda *_: list(problems))

    write = '[ $RANK != 0 ] || echo "{{}}" > {out}'
    chosen = [
        stage("dies", "[ $RANK = 0 ] || exit 3"),
        stage("hangs", "sleep 300", limit=0.5),
        stage("silent", "true"),
        stage("wrong", write, problems=("expected 1, got 2",)),
        stage("right", write),
    ]
    suite.run(tmp_path, chosen, 1, tests=False)
    document = json.loads((tmp_path / "lab.json").read_text())
    found = {record["stage"]: " ".join(record["problems"]) for record in document["stages"]}
    assert list(found) == [f"2x1-{name}" for name in ("dies", "hangs", "silent", "wrong", "right")]
    assert found["2x1-dies"].startswith("rank 1 (host 1) failed with exit code 3")
    assert found["2x1-hangs"].startswith("not ready after")
    assert found["2x1-silent"] == "it has written no silent.json"
    assert found["2x1-wrong"] == "expected 1, got 2"
    assert found["2x1-right"] == ""
    assert not document["full"]
    (tmp_path / "right.json").unlink()
    suite.run(tmp_path, [stage("wrong", write), chosen[-1]], 1, tests=False, resume=True)
    document = json.loads((tmp_path / "lab.json").read_text())
    assert [(record["stage"], record["problems"]) for record in document["stages"]] == [
        ("2x1-wrong", []),
        ("2x1-right", []),
    ]
    assert not (tmp_path / "right.json").exists(), "it had passed, and is not run again"
    (tmp_path / "right.json").write_text("{}")  # of an earlier run
    suite.run(tmp_path, chosen[-1:], 0, tests=False)
    assert not (tmp_path / "right.json").exists()
    (late,) = json.loads((tmp_path / "lab.json").read_text())["stages"]
    assert late["problems"] == ["not run: the time for all stages is over"]
