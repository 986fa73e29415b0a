# SPDX-License-Identifier: Apache-2.0
"""Messages that are cut over two libraries (backends such as stripe(gloo,mpi))."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness import Pools
from mcr_dl.tables.host import host
from mcr_dl.tables.model import content
from mcr_dl.testing.calls import SIGNATURES
from mcr_dl.testing.cases import LARGE, LARGE_DTYPES, table
from mcr_dl.tuning import tuner
from mcr_dl.tuning._journal import Journal, Plan, Progress, Unit
from ranks import striped
from seed import share
from tables import curve, make, scale, winner

SIZES = (1 << 14, 1 << 17, 1 << 20)
CANDIDATES = ["stripe(gloo,mpi)", "stripe(gloo,mpi,67)", "stripe(mpi,gloo,40)", "stripe(shm,mpi)"]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("function", SIGNATURES)
def test_values(pools: Pools, world: int, function: str) -> None:
    """Every function: results of cut messages, and of messages that are too short for it, equal plain torch's."""
    cases = []
    for number, dtype in enumerate([*LARGE_DTYPES, LARGE_DTYPES[0]]):
        found = table(function, CANDIDATES[number], dtype, world, (17, LARGE))
        cases += share(found, 1 if len(found) < 40 else 7, number)
    assert cases
    assert pools.get("processes", world).run(striped.run_all, cases, limit=120) == [len(cases)] * world


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize(
    "function",
    [
        striped.mixed,
        striped.fused_in_any_order,
        striped.compressed_in_any_order,
        striped.ends,
        striped.ends_in_a_group,
        striped.wrong_names,
    ],
    ids=lambda each: each.__name__,
)
def test_life(pools: Pools, world: int, function: Callable[[], None]) -> None:
    """With other calls, at the end of a library, and under wrong names."""
    pools.get("processes", world).run(function)


def test_candidates(pools: Pools) -> None:
    """Each share is a candidate of `auto` for the operations that are cut; equal on all ranks."""
    first, second = pools.get("processes", 2).run(striped.choices)
    assert first == second
    assert {"stripe(gloo,mpi)", *(f"stripe(gloo,mpi,{share})" for share in (25, 33, 67, 75))} <= set(first)
    assert not any("+" in name for name in first)
    assert "stripe(gloo,mpi,40)" not in first


@pytest.mark.parametrize("world", [2, 3, 4])
def test_any_share(pools: Pools, world: int) -> None:
    """Calls, blocks, fused and compressed calls and rules take any share of 1 to 99 percent; the ranks cut alike."""
    pools.get("processes", world).run(striped.any_share, limit=120)


@pytest.mark.parametrize("world", [2, 3])
def test_computed_share(pools: Pools, world: int) -> None:
    """The share of each part follows from the parts' costs."""
    pools.get("processes", world).run(striped.computed_share)


def test_measured_with_computed_shares(tmp_path: Path) -> None:
    """mcr-tune measures the parts of a stripe first, and the stripe with the shares that follow from their times."""
    backends = ("gloo", "mpi", "stripe(gloo,mpi)")
    units = (Unit("all_reduce", "float32", SIZES), Unit("all_to_all", "float32", SIZES, async_op=True))
    plan = Plan(2, backends, units, budget_seconds=0.05, confidence=0.5)
    journal = Journal(tmp_path / "journal")
    journal.begin(plan)
    progress = tuner.Tuner(plan, journal, Progress(), limit=10, entry=striped.tuned_shares).run()
    assert not progress.excluded
    assert {"stripe(gloo,mpi)"} <= {each["candidate"] for each in progress.results(units[0])}


@pytest.mark.parametrize("world", [2, 3])
def test_spellings(pools: Pools, world: int) -> None:
    """Old names and new ones, in calls, blocks, groups and lists, are the same candidates."""
    settings: list[object] = ["mpi,gloo,stripe(gloo,mpi)", "mpi, gloo, gloo+mpi", ["mpi", "gloo", "stripe(gloo, mpi)"]]
    pools.get("processes", world).run(striped.spellings, settings, limit=120)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("gloo+mpi:67", "stripe(gloo,mpi,67)"),
        ("stripe(gloo,mpi,67)", "stripe(gloo,mpi,67)"),
        ("gloo+mpi:40", "stripe(gloo,mpi,40)"),
    ],
)
def test_a_table_with_either_spelling(pools: Pools, tmp_path: Path, world: int, spelling: str, name: str) -> None:
    """`auto` uses a table and rules with one of the spellings, on ranks with either."""
    curves = (curve("mpi", 1, 10, 100, 1e3, 1e4, 1e5), curve(spelling, 9, 90, 900, 9e3, 9e3, 9e3))
    path = tmp_path / "table.json"
    ranges = (winner((0, "mpi"), (1 << 18, spelling)),)
    made = replace(make(scale(world, curves=curves, winners=ranges)), host=host())
    path.write_text(json.dumps({**content(made), "checksum": made.digest}))
    sizes, pool = [1 << 10, 1 << 20], pools.get("processes", world)
    assert pool.run(striped.by_table, str(path), "", sizes) == [["mpi", name]] * world
    rules = f"all_reduce:*:gloo#all_reduce:1m-inf:{spelling}"
    assert pool.run(striped.by_table, "none", rules, sizes) == [["gloo", name]] * world
