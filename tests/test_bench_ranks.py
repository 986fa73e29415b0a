# SPDX-License-Identifier: Apache-2.0
"""The ranks that mcr-bench and mcr-tune start on one machine: torchrun's environment, and an end for each of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import waiting
from harness import launchers
from mcr_dl import InvalidArgumentError
from mcr_dl.measure.ranks import run_local


def test_ranks_have_torchruns_environment(tmp_path: Path) -> None:
    """They also have the caller's additions; their output goes to the caller's folder."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS", "MINE")
    code = f"import os; print(*(os.environ[name] for name in {names}))"
    with run_local(exec, (code,), 2, environment={"MINE": "x"}, log=tmp_path) as running:
        assert running.wait(60)
        assert running.exit_codes() == {0: 0, 1: 0}
        assert running.first_failure is None
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    for rank in range(2):
        assert (tmp_path / f"{rank}.out").read_text() == f"{rank} 2 {rank} 2 127.0.0.1 {threads} x\n"


def test_a_failed_rank_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They could wait for it forever; the first failure is known."""
    monkeypatch.setattr("mcr_dl.measure.ranks._GRACE_SECONDS", 0.1)
    code = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(600)"
    with run_local(exec, (code,), 3) as running:
        assert running.wait(60)
        assert running.exit_codes() == {0: -signal.SIGKILL, 1: 7, 2: -signal.SIGKILL}
        assert running.first_failure == (1, 7)


def test_a_rank_that_hangs_is_killed() -> None:
    """wait() returns at its timeout, and kill() ends all ranks at once."""
    with run_local(time.sleep, (600,), 2) as running:
        pids = list(running.pids.values())
        assert not running.wait(0.1)
        assert running.exit_codes() == {0: None, 1: None}
        running.kill()
        assert running.exit_codes() == {0: -signal.SIGKILL, 1: -signal.SIGKILL}
    assert not any(map(waiting.running, pids))


def test_an_error_at_the_start_ends_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that have started before."""
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def once(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        if started:
            raise BlockingIOError("no process")
        started.append(start(*arguments, **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", once)
    with pytest.raises(BlockingIOError, match="no process"):
        run_local(time.sleep, (600,), 2)
    assert started[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("ranks", [2, len(os.sched_getaffinity(0)) + 1])
def test_ranks_keep_to_cores_of_their_own(tmp_path: Path, ranks: int, told: bool) -> None:
    """If there are enough, also if the launcher tells no local rank; otherwise they stay where the system puts them."""
    code = (
        "import os, mcr_dl; from mcr_dl.measure.ranks import bind\n"
        f"for name in () if {told} else ('LOCAL_RANK', 'LOCAL_WORLD_SIZE'): del os.environ[name]\n"
        "mcr_dl.init_process_group('gloo', tuning_table='none')\n"
        "print(bind(), *sorted(os.sched_getaffinity(0)))\n"
        "mcr_dl.destroy_process_group()"
    )
    with run_local(exec, (code,), ranks, log=tmp_path) as running:
        assert running.wait(60.0)
    said = [(tmp_path / f"{rank}.out").read_text().split() for rank in range(ranks)]
    cores = len(os.sched_getaffinity(0))
    if ranks <= cores:
        assert all(each[0] == "True" and len(each) == 2 for each in said)
        assert len({each[1] for each in said}) == ranks
    else:
        assert all(each[0] == str(cores == 1) and len(each) == 1 + cores for each in said)


def test_ranks_die_with_their_parent() -> None:
    """Even if it has no time to end them."""
    program = (
        "import time; from mcr_dl.measure.ranks import run_local\n"
        "running = run_local(time.sleep, (600,), 2)\nprint(*running.pids.values(), flush=True)\nrunning.wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], env=launchers.environment(), stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    assert len(pids) == 2
    waiting.await_true(lambda: not any(map(waiting.running, pids)), "the ranks have ended with their parent", 60)


def _of_main() -> None: ...


def test_entry_must_be_importable() -> None:
    """Another process cannot find a function of the program itself."""
    _of_main.__module__ = "__main__"
    with pytest.raises(InvalidArgumentError, match="importable"):
        run_local(_of_main)
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        run_local(time.sleep, (0,), 0)
