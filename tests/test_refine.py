# SPDX-License-Identifier: Apache-2.0
"""Refinement: a wrong table is corrected while the program runs, equally on all ranks, and no result changes."""

from __future__ import annotations

from pathlib import Path

import pytest

import tables
from harness import Pools
from mcr_dl.tables import table
from ranks import refine


def test_a_wrong_table_is_put_right(pools: Pools, tmp_path: Path) -> None:
    """The table says that gloo is fastest at small messages, where it is much slower than MPI."""
    path = tmp_path / "wrong.json"
    table.write(tables.flat("gloo"), path)
    answers = pools.get("processes", 2).run(refine.correct, str(path), 0.2, 1000)
    assert answers[0] == answers[1]
    changes, chosen, text, total = answers[0]
    assert chosen.partition(":")[0] == "mpi"
    assert [(each.operation, each.nbytes, each.old, each.new) for each in changes] == [
        ("all_reduce", refine.SIZE, "gloo", chosen)
    ]
    assert "refined while running" in text
    assert total == 1000 * (refine.SIZE // 4) * 3


@pytest.mark.parametrize(("world", "count"), [(2, 1500), (3, 500)])
def test_results_and_choices_are_equal(pools: Pools, tmp_path: Path, world: int, count: int) -> None:
    """Random calls, many of them trials, with a step every hundred: no rank hangs, and all ranks learn equal values."""
    for rank in range(world):
        table.write(tables.random_table(rank, world), tmp_path / f"{rank}.json")
    answers = pools.get("processes", world).run(refine.storm, str(tmp_path), 3, count, limit=100.0)
    assert all(same for same, _ in answers)
    assert len({digest for _, digest in answers}) == 1


def test_it_learns_without_a_table(pools: Pools) -> None:
    """The first backend gets all calls until the others have been timed."""
    answers = pools.get("processes", 2).run(refine.correct, "none", 0.5, 200)
    assert answers[0] == answers[1]
    assert "refined while running" in answers[0][2]
    assert "not measured" not in answers[0][2]


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ([0.1, 0.2], ("share", "the same on all ranks", "0.2", "0.1")),
        ([0.1, 0.0], ("share", "the same on all ranks")),
        ([0.1, 0.7], ("share", "0 to 0.5")),
        ([-1.0, 0.1], ("share", "0 to 0.5")),
        ([float("nan"), float("nan")], ("share", "0 to 0.5", "nan")),
        ([0.02, 0.02], ("none",)),
        ([0.0, 0.0], ("none",)),
        ([1e-300, 1e-300], ("none",)),
    ],
)
def test_shares(pools: Pools, values: list[float], parts: tuple[str, ...]) -> None:
    """A wrong or different share is an error on every rank, and the group stays usable."""
    for text in pools.get("processes", 2).run(refine.shares, values):
        assert all(part in text for part in parts), text
        assert text == "none" or text.startswith("InvalidArgumentError")


@pytest.mark.parametrize("what", ["named on one", "off on one"])
def test_different_calls_are_reported(pools: Pools, what: str) -> None:
    """Every rank gets the error at the step; refinement is then off, and the group stays usable."""
    for text, later, total in pools.get("processes", 2).run(refine.different, what):
        assert "the same blocking collectives" in text
        assert "refinement is off now" in text
        assert later == []
        assert total == 3


def test_a_step_of_some_ranks_alone(pools: Pools) -> None:
    """Others make another change: every rank gets the error, and refinement stays on, on all ranks."""
    for text, periods, total in pools.get("processes", 2).run(refine.another_change):
        assert "to make the same change" in text
        assert periods == [10, 10]
        assert total == 3


def test_the_same_calls_are_not(pools: Pools) -> None:
    """The control of the test above."""
    assert [text for text, _, _ in pools.get("processes", 2).run(refine.different, "nothing")] == ["none", "none"]


def test_it_is_off_by_default(pools: Pools, tmp_path: Path) -> None:
    """The wrong table stays unchanged."""
    path = tmp_path / "wrong.json"
    table.write(tables.flat("gloo"), path)
    assert pools.get("processes", 2).run(refine.quiet, str(path), 300) == [(0, [], "gloo")] * 2


def test_groups_are_refined_apart(pools: Pools, tmp_path: Path) -> None:
    """Groups learn independently, and the members' other calls do not count."""
    path = tmp_path / "wrong.json"
    table.write(tables.flat("gloo"), path)
    for world, pair in pools.get("processes", 2).run(refine.apart, str(path)):
        assert "refined while running" in world
        assert pair == "the cheapest"
