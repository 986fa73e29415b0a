# SPDX-License-Identifier: Apache-2.0
"""The basis of the tests: time limits of second attempts, the ends of jobs that fail, and processes that are left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import jobs
from harness import launchers
from mcr_dl.testing.nursery import Nursery
from mcr_dl.testing.pool import Pool, start_all
from waiting import await_true, running

_LIMIT = 100.0  # seconds; each of these takes a few

_HANGING = "test_hanging.py"
# A failed test of such a file runs once more.
_TIMED = "import pytest\npytestmark = pytest.mark.timed\n"
_HANGS = {
    "second attempt": """
        import threading
        attempts = []
        def test():
            attempts.append(None)
            assert len(attempts) > 1, "the first attempt"
            threading.Event().wait()
    """,
    "end": """
        import threading
        @pytest.fixture
        def hangs():
            yield
            threading.Event().wait()
        def test(hangs):
            raise AssertionError("the first attempt")
    """,
}


@pytest.mark.parametrize("method", ["signal", "thread"])
@pytest.mark.parametrize("place", _HANGS)
def test_what_follows_a_failure_has_a_time_limit(tmp_path: Path, place: str, method: str) -> None:
    """The second attempt of a test, and the end of its fixtures."""
    lines = _HANGS[place].splitlines()
    (tmp_path / _HANGING).write_text(_TIMED + "\n".join(line[8:] for line in lines))
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "--timeout=2", f"--timeout-method={method}"]
    code, text = launchers.finish([*command, _HANGING], tmp_path, launchers.environment(), _LIMIT)
    assert code == 1, text
    assert "Timeout" in text, text
    assert "threading.Event().wait()" in text, text


def test_a_command_that_hangs_is_ended_with_its_sessions(tmp_path: Path) -> None:
    """The processes of torchrun and mpiexec have sessions of their own, and may keep the output open."""
    mine = {"HARNESS": str(uuid.uuid4())}
    with pytest.raises(AssertionError, match="still running after 2 s\nbegun"):
        launchers.finish(["bash", "-c", "echo begun; setsid sleep 600 & wait"], tmp_path, {**os.environ, **mine}, 2.0)
    assert launchers.processes(mine) == []


@pytest.mark.parametrize("ended", [True, False])
def test_a_launched_job_that_fails_is_ended(tmp_path: Path, ended: bool) -> None:
    """Whether its launcher has ended or not."""
    job, log = launchers.mark(), tmp_path / "log"
    program = "setsid sleep 600 & echo started $!;" + ("" if ended else "wait")
    with log.open("w") as output:
        launcher = subprocess.Popen(["bash", "-c", program], env={**os.environ, **job}, stdout=output)
    await_true(lambda: "started" in log.read_text() and (not ended or launcher.poll() is not None), limit=_LIMIT)
    with pytest.raises(AssertionError, match="still there" if ended else "has not ended"):
        jobs.LaunchedJob(launcher, log, job).end(0.1)
    assert launchers.processes(job) == []


def test_the_jobs_of_a_failed_test_are_ended(tmp_path: Path) -> None:
    """Also those that it has not waited for."""
    file = tmp_path / "test_fails.py"
    file.write_text(
        "import os, subprocess\nfrom harness import launchers\n"
        "def test():\n"
        "    job = {**os.environ, **launchers.mark()}\n"
        "    process = subprocess.Popen(['sleep', '600'], env=job, start_new_session=True)\n"
        "    raise AssertionError(f'process {process.pid}.')\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "conftest", file.name]
    code, text = launchers.finish(command, tmp_path, launchers.environment(), _LIMIT)
    assert code == 1, text
    pid = int(text.partition("AssertionError: process ")[2].partition(".")[0])
    assert not running(pid)


_RANK = """
import os, sys, time
from multiprocessing.connection import Client
rank, socket, key = int(sys.argv[1]), os.environ["MCR_TEST_FOLDER"] + "/socket", os.environ["MCR_TEST_KEY"].encode()
with Client(socket, "AF_UNIX", authkey=key) as connection:
    connection.send((rank, os.getpid()))
    if rank != 0:
        time.sleep(600)
"""


def test_a_pool_signals_no_process_that_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By then, another program may have the number of a rank that has ended."""
    ranks: list[subprocess.Popen[bytes]] = []

    def start(size: int, _: object, log: Path, variables: dict[str, str]) -> list[subprocess.Popen[bytes]]:
        environment = {**os.environ, **variables}
        ranks.extend(start_all([([sys.executable, "-c", _RANK, str(rank)], environment) for rank in range(size)], log))
        return ranks

    pool = Pool(2, start)
    ranks[0].wait()
    signalled: set[int] = set()
    send = os.kill

    def kill(pid: int, number: int) -> None:
        signalled.add(pid)
        send(pid, number)

    monkeypatch.setattr(os, "kill", kill)
    pool.kill()
    assert signalled == {ranks[1].pid}
    assert [rank.returncode for rank in ranks] == [0, -signal.SIGKILL]


_LEAVES = """
import os, signal, sys, time
if os.fork() == 0:
    if "another group" in sys.argv:
        os.setpgid(0, 0)
    time.sleep(600)
if "killed" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", [[], ["killed"], ["another group"]])
def test_a_process_that_a_rank_has_left_is_found(nursery: Nursery, tmp_path: Path, how: list[str]) -> None:
    """By the fixture `nothing_left`; the end of the nursery's jobs ends it too."""
    program = tmp_path / "leaves.py"
    program.write_text(_LEAVES)
    child = nursery.start(program, how, {})
    jobs.end(nursery, [child])
    assert child.code == (-signal.SIGKILL if "killed" in how else 0), child.text
    (left,) = nursery.left(patience=0)
    assert running(left)
    nursery.clear()
    assert not running(left)
    assert nursery.left(patience=0) == {}


def test_a_fixture_tells_what_is_left(tmp_path: Path) -> None:
    """A test fails in its end if a rank has left a process."""
    (tmp_path / "leaves.py").write_text(_LEAVES)
    (tmp_path / "test_leaves.py").write_text(
        "import functools, jobs, pathlib, pytest\n"
        "from mcr_dl.testing.nursery import Nursery\n"
        "Nursery.left = functools.partialmethod(Nursery.left, 0.1)\n"
        "@pytest.mark.usefixtures('nothing_left')\n"
        "def test(nursery):\n"
        "    jobs.end(nursery, [nursery.start(pathlib.Path('leaves.py').resolve(), [], {})])\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "test_leaves.py"]
    code, text = launchers.finish(command, tmp_path, launchers.environment(), _LIMIT)
    assert code == 1, text
    assert "expected no process of a rank that has ended, got {" in text, text
    assert "1 passed, 1 error" in text, text
