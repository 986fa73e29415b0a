# SPDX-License-Identifier: Apache-2.0
"""Which tests a run has, and which of their cases: the tables of conftest.py, the shares of seed.py."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import conftest
from mcr_dl.testing.calls import Case
from seed import SEED, TURNS, ranks_of, share

TESTS = Path(__file__).resolve().parent


def test_the_tables_name_files() -> None:
    """A file that is renamed must be renamed there."""
    assert [name for name in conftest.TIMED | conftest.IN_TURNS if not (TESTS / f"{name}.py").exists()] == []


def test_turns() -> None:
    """TURNS seeds in a row have each test of a slow file once, and those of other files always."""
    seeds = range(SEED, SEED + TURNS)
    for number in range(20):
        slow, other = (f"tests/{name}.py::test[{number}]" for name in (min(conftest.IN_TURNS), Path(__file__).stem))
        assert sum(conftest.has_its_turn(slow, seed) for seed in seeds) == 1, slow
        assert all(conftest.has_its_turn(other, seed) for seed in seeds), other


@pytest.mark.parametrize("turn", range(TURNS))
@pytest.mark.parametrize("step", [1, 2, 4, 6, 7, 12, 47])
def test_shares_of_a_slow_test(step: int, turn: int) -> None:
    """The seeds with which a test of a slow file runs have the whole list, and each of them has a part."""
    seeds = range(SEED + turn, SEED + turn + step * TURNS, TURNS)
    for length in (0, 1, step - 1, step, 3 * step + 1):
        cases = [Case("barrier", seed=number) for number in range(length)]
        shares = [share(cases, step, 5, seed) for seed in seeds]
        assert {case for each in shares for case in each} == set(cases)
        assert all(shares) == bool(cases)
        assert share(cases, step, 5) == share(cases, step, 5, SEED)


def test_ranks_of_a_slow_test() -> None:
    """A case with 2 ranks or 3, which its test's name has, runs with both."""
    name = f"tests/{min(conftest.IN_TURNS)}.py::test"
    for place in range(20):
        sizes = {seed: ranks_of(place, seed) for seed in range(SEED, SEED + 3 * TURNS)}
        ran = {size for seed, size in sizes.items() if conftest.has_its_turn(f"{name}[{size}-{place}]", seed)}
        assert ran == {2, 3}, place


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [("", "-m pytest"), ("-k gather -x", "-m pytest -k gather -x"), ("tests/test_x.py", "-m pytest tests/test_x.py")],
)
def test_arguments_of_make(arguments: str, expected: str) -> None:
    """`make test-python` runs the files that ARGS names, and all tests if it names none."""
    command = ["make", "--dry-run", "--no-print-directory", "test-python", f"ARGS={arguments}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=TESTS.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].strip().endswith(expected)
