# SPDX-License-Identifier: Apache-2.0
"""MCR_DL_LOG shows what runs at the start of a job."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = "import mcr_dl; mcr_dl.init_process_group('gloo'); mcr_dl.destroy_process_group()"


def _run(level: str) -> subprocess.CompletedProcess[str]:
    """One rank with this level."""
    variables = {**os.environ, "MCR_DL_LOG": level, "MCR_DL_TUNING_TABLE": "none"}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=variables, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(("level", "shown"), [("info", True), ("INFO", True), ("warning", False), ("", False)])
def test_levels(level: str, shown: bool) -> None:
    """Rank 0 names the version, the ranks, the backends with their libraries and the source of auto's choices."""
    done = _run(level)
    assert done.returncode == 0, done.stderr
    line = "1 rank on 1 node; backends: gloo (torch "
    assert ("mcr_dl, rank 0: mcr_dl " in done.stderr and line in done.stderr) is shown


def test_unknown_level() -> None:
    """A typo is an error that lists the levels."""
    done = _run("inof")
    assert done.returncode != 0
    assert "MCR_DL_LOG: expected one of debug, info, warning, error, got 'inof'" in done.stderr
