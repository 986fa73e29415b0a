# SPDX-License-Identifier: Apache-2.0
"""Topologies of groups: found, given in a file or as a DeviceMesh, and the groups of their dimensions."""

from __future__ import annotations

from pathlib import Path

import pytest

import grids
from harness import Pools
from mcr_dl import _C, InvalidArgumentError
from mcr_dl.runtime import topologies
from ranks import topology


@pytest.mark.parametrize("world", [2, 3, 4])
def test_found(pools: Pools, world: int) -> None:
    """On one host there is one dimension, whose group is the default one: no other group is made."""
    answers = pools.get("processes", world).run(topology.found)
    assert answers == [(("host",), (world,), (rank,), True, 1) for rank in range(world)]


def test_given(pools: Pools) -> None:
    """A file makes a 2x2 grid of four ranks of one host: columns 0-1 and 2-3, rows 0-2 and 1-3."""
    answers = pools.get("processes", 4).run(topology.given)
    lines = {0: {"a": 1.0, "b": 2.0}, 1: {"a": 1.0, "b": 4.0}, 2: {"a": 5.0, "b": 2.0}, 3: {"a": 5.0, "b": 4.0}}
    assert answers == [((2, 2), ("a", "b"), lines[rank]) for rank in range(4)]


def test_made_by_torch(pools: Pools) -> None:
    """The groups of dimensions are torch's process groups, and have the form of the group that they belong to."""
    pools.get("processes", 4).run(topology.made_by_torch, limit=120)


def test_wrong_files(pools: Pools) -> None:
    """Three ranks do not form a 2x2 grid; files that differ are an error on all ranks."""
    pools.get("processes", 3).run(topology.wrong_files, limit=120)


def test_meshes(pools: Pools) -> None:
    """A mesh's groups are used if all ranks give it, else groups are made; wrong ones leave the topology unchanged."""
    answers = pools.get("processes", 4).run(topology.meshes, limit=120)
    for rank, (first, sums) in enumerate(answers):
        assert first == (("outer", "inner"), (rank // 2, rank % 2), 1.0 if rank < 2 else 5.0)
        assert sums == {"a": 2.0 if rank % 2 == 0 else 4.0, "b": 1.0 if rank < 2 else 5.0}


def test_names_alike(pools: Pools) -> None:
    """Groups of different dimensions and topologies have different names."""
    pools.get("processes", 4).run(topology.names_alike)


def test_failed(pools: Pools) -> None:
    """All ranks keep the topology before one whose groups cannot be made, or that a rank cannot read."""
    pools.get("processes", 4).run(topology.failed, limit=120)


def test_read(tmp_path: Path) -> None:
    """A file is read with all its figures; errors name the variable and the file."""
    row = {"name": "rail", "size": 2, "bandwidth": 25 * 10**9, "latency": 3000, "backend": "mpi"}
    told = topologies.own({"MCR_DL_TOPOLOGY": grids.write(tmp_path / "t.json", row)})
    grid = topologies.grid_of(told["document"], 2)
    assert grid is not None
    assert grid.dimensions == [("rail", 2, 25 * 10**9, 3000, "mpi")]
    assert topologies.own({}) == {"document": None, "problem": ""}
    assert "no such file" in topologies.own({"MCR_DL_TOPOLOGY": str(tmp_path / "none")})["problem"]


@pytest.mark.parametrize(("key", "most"), [("bandwidth", 1 << 50), ("latency", 10**9)])
def test_figures_out_of_range(key: str, most: int) -> None:
    """Figures that plans of collectives cannot use are errors of the file, not of the calls."""
    document = grids.document({"name": "a", "size": 2, key: most})
    assert topologies.check(document, "topology") == document
    document = grids.document({"name": "a", "size": 2, key: most + 1})
    with pytest.raises(
        InvalidArgumentError, match=rf": dimensions\[0\]\.{key}: expected a number of at most {most}, got {most + 1}"
    ):
        topologies.check(document, "topology")


def test_hosts() -> None:
    """Hosts with equal numbers of ranks make two dimensions; others one."""
    assert [row[:2] for row in _C.Topology.of_hosts([0, 1, 0, 1]).dimensions] == [("rail", 2), ("host", 2)]
    assert _C.Topology.of_hosts([0, 1, 0, 1]).line(1, 1) == [1, 3]
    assert [row[:2] for row in _C.Topology.of_hosts([0, 0, 1]).dimensions] == [("ranks", 3)]
    with pytest.raises(InvalidArgumentError, match="make 4 ranks"):
        _C.Topology([("a", 3, 0, 0, "")], 4)
