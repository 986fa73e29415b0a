# SPDX-License-Identifier: Apache-2.0
"""Which share of their cases the tests of operations run."""

from __future__ import annotations

import os

from mcr_dl.testing import cases
from mcr_dl.testing.calls import Case

SEED = int(os.environ.get("MCR_TEST_SEED") or cases.today())


def share(table: list[Case], step: int, turn: int = 0) -> list[Case]:
    """As ``mcr_dl.testing.cases.share``, with this seed."""
    return cases.share(table, step, turn, seed=SEED)
