# SPDX-License-Identifier: Apache-2.0
"""Cost models from tuning tables: equal numbers on all ranks, and the simulated times of schedules."""

from __future__ import annotations

from pathlib import Path

import pytest

import tables
from harness import Pools
from mcr_dl.tables import table
from mcr_dl.tables.model import Curve
from ranks import costs

_SIZES = (1 << 10, 1 << 16, 1 << 20)


def _curve(candidate: str, us_per_kib: float, operation: str = "all_reduce", dtype_class: str = "float") -> Curve:
    times = [1 + us_per_kib * size / 1024 for size in _SIZES]
    return tables.curve(candidate, *times, operation=operation, dtype_class=dtype_class, sizes=_SIZES)


@pytest.mark.parametrize("world", [2, 3])
def test_a_model_of_the_table(pools: Pools, tmp_path: Path, world: int) -> None:
    """All ranks get one model. A striped call takes as long as its slower half, a compressed one a little longer than
    its exchanges, which take a hundred times as long as the codec."""
    curves = [
        _curve("mpi", 1),
        _curve("gloo", 3),
        _curve("mpi", 100, "all_to_all", "any"),
        _curve("mpi", 100, "all_gather", "any"),
    ]
    path = tmp_path / "table.json"
    table.write(tables.make(tables.scale(ranks=world, curves=tuple(curves))), path)
    answers = pools.get("processes", world).run(costs.agreed, str(path))
    assert all(answer == answers[0] for answer in answers)
    ends = answers[0]
    assert 240_000 < ends["mpi"] < 270_000
    assert 1.4 < ends["halves"] / ends["mpi"] < 1.6
    assert 1 < ends["bf16"] / ends["exchanges"] < 1.5


def test_refused(pools: Pools) -> None:
    """Codecs that differ, or that are unknown on one rank, are an error on all ranks."""
    pools.get("processes", 2).run(costs.refused)
