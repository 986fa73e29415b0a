# SPDX-License-Identifier: Apache-2.0
"""Runs a script of bench/ in smoke mode."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness import launchers

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"
LIMIT = 150.0  # seconds; a longer run means a hang: alone on two cores none takes 30
SMOKE = "smoke mode: the figures mean nothing"  # the text of bench/script.py


def results() -> dict[Path, int]:
    """The time at which each file of the kept results was written."""
    folders = (ROOT / "docs" / "results", ROOT / "docs" / "images")
    return {path: path.stat().st_mtime_ns for folder in folders for path in folder.iterdir()}


def run(*command: str, launcher: Sequence[str] = (sys.executable,), limit: float = LIMIT, **variables: str) -> str:
    """Run ``LAUNCHER bench/COMMAND --smoke``, which must succeed and keep no results. Returns its output."""
    before = results()
    script = [*launcher, str(BENCH / command[0]), *command[1:], "--smoke"]
    environment = launchers.environment(MCR_DL_TUNING_TABLE="none", **variables)
    code, text = launchers.finish(script, ROOT, environment, limit)
    assert code == 0, text
    assert SMOKE in text, f"the smoke mode of bench/script.py was not used:\n{text}"
    assert results() == before
    return text
