# SPDX-License-Identifier: Apache-2.0
"""The Makefile: the output of its steps (mcr/mcr_dl_build/progress.py), and a copy of a folder with an environment."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "mcr" / "mcr_dl_build" / "progress.py"
COMPILE = "print('warning: of others'); print('[1/2] Building a.cc'); print('[2/2] Linking a')"


def step(log: Path, program: str) -> list[str]:
    return [sys.executable, str(SCRIPT), "compiling", str(log), sys.executable, "-c", program]


def test_a_terminal_shows_the_status_in_one_line(tmp_path: Path) -> None:
    """And no other output, which is in the log."""
    ours, theirs = pty.openpty()
    process = subprocess.run(step(tmp_path / "log", COMPILE), stdout=theirs, timeout=60, check=True)
    os.close(theirs)
    text = os.read(ours, 10000).decode()
    os.close(ours)
    assert process.returncode == 0
    assert text.startswith("compiling\r\n")
    assert "\r\x1b[K[1/2] Building a.cc\r\x1b[K[2/2] Linking a\r\x1b[Kcompiling: done in " in text
    assert "warning" not in text
    assert "warning: of others\n[1/2] Building a.cc\n" in (tmp_path / "log").read_text()


def test_a_step_that_fails_prints_its_own_output(tmp_path: Path) -> None:
    """Not the output of earlier steps, which share the log."""
    log = tmp_path / "build" / "setup.log"
    subprocess.run(step(log, COMPILE), capture_output=True, timeout=60, check=True)
    failing = step(log, "print('no such file'); exit(7)")
    done = subprocess.run(failing, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == f"compiling\ncompiling: failed (exit code 7); the output, also in {log}:\nno such file\n"
    assert log.read_text().count("== compiling: ") == 2


def test_an_environment_of_another_folder(tmp_path: Path) -> None:
    """It names the other folder in its files, where `make` would work on."""
    for name in ("Makefile", "requirements-dev.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".made-as").write_text("/another/.venv\n")
    environment = {"PATH": os.environ["PATH"]}  # without MAKEFLAGS
    done = subprocess.run(
        ["make", "format"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    wrong = f".venv and build/ were made as /another/.venv, and do not work in {tmp_path}: run make clean"
    assert wrong in done.stderr.splitlines()
