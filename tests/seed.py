# SPDX-License-Identifier: Apache-2.0
"""Which share of their cases the tests of operations run."""

from __future__ import annotations

import os

from mcr_dl.testing import cases
from mcr_dl.testing.calls import Case

SEED = int(os.environ.get("MCR_TEST_SEED") or cases.today())
TURNS = 4
"""A test of a slow file (IN_TURNS in conftest.py) runs with every fourth seed."""


def share(table: list[Case], step: int, turn: int = 0, seed: int = SEED) -> list[Case]:
    """As ``mcr_dl.testing.cases.share``, for tests of slow files: the next share comes after TURNS seeds. With the next
    seed it would come before a test's own turn, which then would only ever have some of the shares.
    """
    return cases.share(table, step, turn, seed=seed // TURNS)


def ranks_of(place: int, seed: int = SEED) -> int:
    """The number of ranks, 2 or 3, of a case of a slow file that has them in turns: the other after TURNS seeds."""
    return 2 + (seed // TURNS + place) % 2
