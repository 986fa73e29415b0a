# SPDX-License-Identifier: Apache-2.0
"""MCR_DL_LOG shows what runs at the start of a job."""

from __future__ import annotations

import pytest

from harness import launchers

PROGRAM = "import mcr_dl; mcr_dl.init_process_group('gloo'); mcr_dl.destroy_process_group()"


def _run(level: str) -> launchers.Ended:
    """One rank with this level."""
    return launchers.python("-c", PROGRAM, limit=120, MCR_DL_LOG=level)


@pytest.mark.parametrize(("level", "shown"), [("info", True), ("INFO", True), ("warning", False), ("", False)])
def test_levels(level: str, shown: bool) -> None:
    """Rank 0 names the version, the ranks, the backends with their libraries and the source of auto's choices."""
    done = _run(level)
    assert done.code == 0, done.err
    line = "1 rank on 1 node; backends: gloo (torch "
    assert ("mcr_dl, rank 0: mcr_dl " in done.err and line in done.err) is shown
