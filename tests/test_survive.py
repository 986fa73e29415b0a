# SPDX-License-Identifier: Apache-2.0
"""The example that loses a rank and ends with the loss of an undisturbed run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import jobs
import mcr_dl
from mcr_dl.examples import survive

pytestmark = pytest.mark.timed

_LIMIT = 100.0  # seconds; a run takes a tenth of it on a quiet machine


def _run(*arguments: str, **variables: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "mcr_dl.examples.survive", *arguments]
    environment = {**os.environ, "MCR_DL_TUNING_TABLE": "none", **variables}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=_LIMIT)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("backend", ["shm", "gloo", "shm,gloo"])
@pytest.mark.parametrize(
    ("ranks", "lost", "step"), [(4, [1], 20), (4, [0, 2], 20), (3, [2], 1), (3, [0], 39), (2, [0], 20)]
)
def test_the_others_end_with_the_loss_of_an_undisturbed_run(
    backend: str, ranks: int, lost: list[int], step: int
) -> None:
    """Whichever ranks are lost, in the first step and in the last one too."""
    names = [str(rank) for rank in lost]
    code, text = _run("--nproc", str(ranks), "--lose", *names, "--at", str(step), "--steps", "40", "--backend", backend)
    assert code == 0, text
    assert f"Step {step}: rank{'s' * (len(lost) > 1)} {', '.join(names)} killed." in text
    assert re.search(rf"restoring step ({step - 1}|{step}) from the ranks' memory", text), text
    assert re.search(rf"{ranks}, (then \d+, )*then {ranks - len(lost)}\b", text), text
    assert "The losses agree" in text


@pytest.mark.parametrize(("ranks", "lost"), [(4, [1]), (4, [0, 2]), (2, [0])])
def test_new_processes_take_the_places_of_lost_ranks(ranks: int, lost: list[int]) -> None:
    """They end with the loss of an undisturbed run on all ranks."""
    names = [str(rank) for rank in lost]
    code, text = _run("--nproc", str(ranks), "--lose", *names, "--at", "20", "--steps", "40", "--rejoin")
    assert code == 0, text
    assert re.search(
        rf"Step \d+: all ranks are there.* {ranks}, (then \d+, )*then {ranks - len(lost)}, then", text, re.S
    ), text
    assert "The losses agree" in text


def test_new_processes_that_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks do not wait forever."""
    monkeypatch.setattr(survive, "_PATIENCE", 0.0)
    monkeypatch.setattr(mcr_dl, "grow", lambda group: group)
    monkeypatch.setattr(mcr_dl, "all_reduce", lambda *_, **__: None)
    options = survive.Options(nproc=4, steps=40, lose=(1,), at=20, backend="shm", rejoin=True)
    trainer: Any = SimpleNamespace(group=None, size=3, steps=30)
    with pytest.raises(survive.AbsentError, match="expected 4 ranks within 0 s, got 3"):
        survive._grow(options, None, trainer, survive._Story())


def test_a_rank_is_lost_that_was_not_to_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others train to the end; the time of the loss is unknown."""
    trainer: Any = SimpleNamespace(size=4, steps=0)

    def step() -> None:
        trainer.steps += 1
        if trainer.steps == 1:
            raise mcr_dl.PeerLostError("rank 2 is lost")

    trainer.step = step
    monkeypatch.setattr(survive, "_trainer", lambda *_, **__: trainer)
    monkeypatch.setattr(survive, "_recover", lambda *_: None)
    options = survive.Options(nproc=4, steps=3, lose=(1,), at=2, backend="shm", rejoin=False)
    store = mcr_dl.HashStore()
    store.set_timeout(timedelta(milliseconds=10))
    _, story = survive.train(options, store, None, mock.Mock(), back=False)
    assert (trainer.steps, story.error, story.known) == (3, "rank 2 is lost", 0)


def test_a_shard_and_its_copy_are_lost() -> None:
    """All that are left say so."""
    code, text = _run("--lose", "3", "0", "--steps", "10")
    assert code == 1
    assert "ranks 3 and 0 are lost, and with them a shard and its copy; choose others with --lose" in text


def test_a_blocking_collective_of_mpi_ends_its_rank() -> None:
    """One line says why; the ranks that were not inside one go on without it."""
    code, text = _run("--backend", "mpi", "--steps", "10")
    assert code == jobs.ENDED, text
    ends = [line for line in text.splitlines() if line.startswith("mcr_dl: ")]
    assert ends, text
    assert all("lost rank 1" in line for line in ends), text
    assert "Traceback" not in text, text


def test_interruptible_mpi_goes_on() -> None:
    """No rank ends but the lost one."""
    code, text = _run("--backend", "mpi", "--steps", "10", MCR_DL_MPI_INTERRUPTIBLE="1")
    assert code == 0, text
    assert "4, then 3" in text, text
    assert "The losses agree" in text


@pytest.mark.parametrize(
    ("arguments", "variables", "error"),
    [
        (["--nproc", "1"], {}, "argument --nproc: expected a whole number from 2 on, got '1'"),
        (["--steps", "0"], {}, "argument --steps: expected a whole number from 1 on, got '0'"),
        (["--at", "0"], {}, "--at: expected a step from 1 to 199, got 0"),
        (["--rejoin", "--at", "195"], {}, "--at: expected at most 190 with --rejoin, got 195"),
        (["--lose", "4"], {}, "--lose: expected some of the ranks 0 to 3, got rank 4"),
        (["--nproc", "2", "--lose", "0", "1"], {}, "--lose: expected some of the ranks 0 to 1, got ranks 0, 1"),
        ([], {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}, "expected no launcher"),
    ],
)
def test_typing_error(arguments: list[str], variables: dict[str, str], error: str) -> None:
    """One line."""
    code, text = _run(*arguments, **variables)
    assert code == 2
    (line,) = text.splitlines()
    assert error in line
