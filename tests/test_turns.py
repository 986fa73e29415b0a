# SPDX-License-Identifier: Apache-2.0
"""Which tests a run has: the tables of conftest.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import conftest
from seed import SEED

TESTS = Path(__file__).resolve().parent


@pytest.mark.parametrize("name", sorted(conftest.TIMED | conftest.IN_TURNS))
def test_the_tables_name_files(name: str) -> None:
    """A file that is renamed must be renamed there."""
    assert (TESTS / f"{name}.py").exists()


@pytest.mark.parametrize("number", range(20))
def test_turns(number: int) -> None:
    """TURNS seeds in a row have each test of a slow file once, and those of other files always."""
    slow, other = (f"tests/{name}.py::test[{number}]" for name in (min(conftest.IN_TURNS), Path(__file__).stem))
    seeds = range(SEED, SEED + conftest.TURNS)
    assert sum(conftest.has_its_turn(slow, seed) for seed in seeds) == 1
    assert all(conftest.has_its_turn(other, seed) for seed in seeds)
