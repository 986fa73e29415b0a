# SPDX-License-Identifier: Apache-2.0
"""Collectives over the dimensions of a topology (backends such as hier(shm,mpi))."""

from __future__ import annotations

from pathlib import Path

import pytest

import grids
import jobs
import tables
from harness import Pools
from mcr_dl import _C
from mcr_dl.tables import table as table_files
from mcr_dl.testing.calls import SIGNATURES
from mcr_dl.testing.cases import COUNTS, LARGE, LARGE_DTYPES, table
from mcr_dl.testing.nursery import Nursery
from ranks import hierarchy
from ranks.hierarchy import GRIDS
from seed import share

shapes = pytest.mark.parametrize(
    ("world", "shape"), [(4, [0, 1, 2, 3]), (4, [2, 0, 3, 1]), (3, [])], ids=["grid", "turned", "uneven"]
)


@pytest.mark.parametrize("function", SIGNATURES)
@shapes  # nearest to the function, so that ranks start anew for each shape alone
def test_values(pools: Pools, world: int, shape: list[int], function: str) -> None:
    """Every function in all types: results equal plain torch's, with and without a hierarchical form."""
    cases = []
    for number, dtype in enumerate(_C.dtypes()):
        found = [case for case in table(function, "hier(shm,mpi)", dtype, world, COUNTS) if case.group == "world"]
        cases += share(found, 1 if len(found) < 12 else 47, number)
        if shape:
            found = [case for case in table(function, "themis(shm,mpi)", dtype, world, COUNTS) if case.group == "world"]
            cases += share(found, 1 if len(found) < 12 else 67, number)
    for number, dtype in enumerate(LARGE_DTYPES):
        for backend in ("hier(shm,gloo)", "hier(mpi,gloo)", "hier(shm,stripe(gloo,mpi))", *GRIDS[: 2 * len(shape)]):
            found = [case for case in table(function, backend, dtype, world, (17, LARGE)) if case.group == "world"]
            cases += share(found, 1 if len(found) < 12 else 61, number)
    assert cases
    assert pools.get("processes", world).run(hierarchy.run_all, cases, shape, limit=120) == [len(cases)] * world


@shapes
def test_mixed(pools: Pools, world: int, shape: list[int]) -> None:
    """Several calls in flight, mixed with calls of other backends."""
    pools.get("processes", world).run(hierarchy.mixed, shape)


def test_fused_in_any_order(pools: Pools) -> None:
    """Flushes on a communicator that two candidates share have one order on all ranks."""
    pools.get("processes", 4).run(hierarchy.fused_in_any_order)


def test_life(pools: Pools) -> None:
    """With other groups, passes, and the end of a library."""
    pools.get("processes", 4).run(hierarchy.life)


def test_a_part_that_cannot_be_connected(pools: Pools) -> None:
    """Neither a new group nor a pass leaves groups behind, and both work when they are made again."""
    pools.get("processes", 4).run(hierarchy.without_memory)


def test_groups_of_three_dimensions(pools: Pools) -> None:
    """Subgroups take over the candidates for whose parts they have lines."""
    pools.get("processes", 8).run(hierarchy.groups_of_three_dimensions)


def test_three_dimensions(pools: Pools) -> None:
    """Chunks in orders of three dimensions, each on its own library."""
    pools.get("processes", 8).run(hierarchy.three_dimensions, limit=120)


def test_automatic(pools: Pools, tmp_path: Path) -> None:
    """Without names of backends, the topology's file decides whether Themis is among the candidates."""
    curves = (tables.curve("mpi", 1, 2, 400, 9000), tables.curve("themis(mpi,gloo)", 30, 31, 100, 500))
    path = tmp_path / "table.json"
    table_files.write(tables.make(tables.scale(4, curves=curves, winners=())), path)
    pools.get("processes", 4).run(hierarchy.automatic, str(path))


def test_parts_that_move_no_data(pools: Pools, tmp_path: Path) -> None:
    """``auto`` does not use candidates with ``null`` as a part, also where the group has no ``null``."""
    names = ("hier(null,mpi)", "themis(null,mpi)", "mpi")
    curves = [tables.curve(name, *[time] * 5) for name, time in zip(names, (1, 2, 400), strict=True)]
    path = tmp_path / "table.json"
    table_files.write(tables.make(tables.scale(4, curves=tuple(curves), winners=())), path)
    pools.get("processes", 4).run(hierarchy.without_null, str(path))


def test_mesh(pools: Pools) -> None:
    """A DeviceMesh that the default group has for its topology gives dimensions; all ranks have equal networks."""
    answers = pools.get("processes", 4).run(hierarchy.of_a_mesh)
    assert [row[:2] for row in answers[0][0]] == [("fully_connected", 2)] * 2
    assert [set(plans) for plans in answers[0][1]] == [{"themis(gloo,mpi)"}] * 2
    assert answers == [answers[0]] * 4


def test_six(pools: Pools) -> None:
    """Dimensions of three and two ranks; all ranks have equal networks, with the figures of the file."""
    answers = pools.get("processes", 6).run(hierarchy.six, limit=120)
    assert answers == [answers[0]] * 6
    inner, outer = answers[0]
    assert inner[1] == 3
    assert outer == ("fully_connected", 2, 10**9, 5_000_000, 1)


@pytest.mark.parametrize(
    ("backends", "dimensions", "expected"),
    [
        (
            "auto",
            ["mpi", "shm"],
            "STARTED mpi gloo hier(shm,mpi) hier(shm,gloo) stripe(gloo,mpi) hier(shm,stripe(gloo,mpi)) themis(shm,mpi)",
        ),
        ("auto", ["stripe(gloo,mpi)", "shm"], "themis(shm,stripe(gloo,mpi))"),
        ("mpi,themis(shm,mpi)", ["mpi", "shm"], "STARTED mpi themis(shm,mpi)"),
        ("mpi,gloo,stripe(gloo,mpi),themis(shm,stripe(gloo,mpi))", ["stripe(gloo,mpi)", "shm"], "STARTED mpi"),
        (
            "auto",
            ["shm", "mpi"],
            "expected one of mpi, gloo, stripe(gloo,mpi), got 'shm', which connects the ranks of one host",
        ),
        ("mpi,gloo", ["mpi", "shm"], "dimensions[1].backend: expected one of mpi, gloo, got 'shm'"),
    ],
)
def test_several_hosts(nursery: Nursery, tmp_path: Path, backends: str, dimensions: list[str], expected: str) -> None:
    """The file of a job of two hosts can name a backend of one host for the dimension within hosts, and stripes."""
    rows = [{"name": name, "size": 2, "backend": each} for name, each in zip(("a", "b"), dimensions, strict=True)]
    variables = {"MCR_DL_TOPOLOGY": grids.write(tmp_path / "topology.json", *rows), "MCR_DL_BACKENDS": backends}
    ranks = jobs.start(nursery, "hosts", ["0,0,1,1", "starts", "networks", "2"], 4, **variables)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, expected)


@pytest.mark.parametrize("backends", ["auto", "mpi,gloo,hier(shm,mpi)"])
def test_groups_within_a_host(nursery: Nursery, backends: str) -> None:
    """They get shared memory where `auto` has chosen the job's backends and the program names none for the group."""
    ranks = jobs.start(nursery, "hosts", ["0,0,1,1", "starts", "within_hosts"], 4, MCR_DL_BACKENDS=backends)
    jobs.end(nursery, ranks)
    shared = " shm" if backends == "auto" else ""
    jobs.expect(ranks, 0, f"WITHIN{shared} mpi gloo;{shared} mpi gloo;{shared} mpi gloo; mpi; mpi gloo; mpi gloo")


@pytest.mark.parametrize("backends", ["gloo,mpi,themis(shm,mpi)", "gloo,mpi,hier(shm,mpi)"])
def test_a_host_cannot_connect(nursery: Nursery, tmp_path: Path, backends: str) -> None:
    """All ranks raise with the cause, long before the time limit: the others do not wait for that host's ranks."""
    variables = {"MCR_DL_TOPOLOGY": grids.write(tmp_path / "topology.json", 2, 2), "MCR_DL_BACKENDS": backends}
    ranks = jobs.start(nursery, "hosts", ["0,0,1,1", "starts", "broken_parts", "2,3"], 4, **variables)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "RAISED BackendUnavailableError", "no memory left on this host")


def test_a_hierarchy_fails_after_its_parts(nursery: Nursery) -> None:
    """On one rank: it is left out on all, and its parts end."""
    ranks = jobs.start(nursery, "hosts", ["0,0,1,1", "starts", "fails_after_parts", "2"], 4)
    jobs.end(nursery, ranks)
    jobs.expect(
        ranks,
        0,
        "rank 2: backend 'hier(shm,",
        "cannot start: OSError: [Errno 24] no more of them",
        "PARTS 0\n",
        "STARTED mpi gloo",
    )


@pytest.mark.parametrize("at", ["start", "group"])
def test_a_rank_ends_while_parts_are_connected(nursery: Nursery, at: str) -> None:
    """The others notice it, and do not wait until the time limit."""
    ranks = jobs.start(nursery, "hosts", ["0,0,1,1", "starts", "ends_between", "3", at], 4)
    jobs.end(nursery, ranks)
    jobs.expect(ranks[:3], 0, "RAISED PeerLostError", "lost rank 3")


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_a_rank_ends_while_a_group_is_connected(nursery: Nursery, backend: str) -> None:
    """The first one that is lost: the others notice it, and wait neither for its address nor for its memory."""
    ranks = jobs.start(nursery, "starts", ["ends_before", "1", backend], 3)
    jobs.end(nursery, ranks)
    jobs.expect([ranks[0], ranks[2]], 0, "RAISED PeerLostError", "lost rank 1")


@pytest.mark.parametrize("world", [2, 4])
def test_without_lines(pools: Pools, world: int) -> None:
    """A topology of one dimension is an error."""
    pools.get("processes", world).run(hierarchy.without_lines)
