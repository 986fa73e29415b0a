# SPDX-License-Identifier: Apache-2.0
"""Every operation on every backend against plain torch, over the table of ``cases``."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from harness import Pools
from mcr_dl import _C
from mcr_dl.testing import reference
from mcr_dl.testing.calls import OPS, SIGNATURES, STYLES, Case, kinds, layouts
from mcr_dl.testing.cases import COUNTS, SEEDS, large, modes, some_large, table
from mcr_dl.testing.cases import some as some_of
from ranks import operations, session
from seed import SEED


def run(pools: Pools, launcher: str, world: int, cases: list[Case], limit: float, *started: str) -> None:
    """Run the cases on all ranks, with these backends or all of the tests; every rank must have run all."""
    assert cases
    done = pools.get(launcher, world).run(operations.run_all, cases, *started, limit=limit)
    assert done == [len(cases)] * world


functions = pytest.mark.parametrize("function", SIGNATURES)
backends = pytest.mark.parametrize("backend", session.BACKENDS)
worlds = pytest.mark.parametrize("world", [2, 3, 4])


def some(function: str, backend: str, dtype: str, world: int, seed: int = SEED) -> list[Case]:
    """The share of a seed; at two and four ranks a fifth of that at three."""
    return some_of(function, backend, dtype, world, seed, sparse=world != 3)


@functions
def test_seeds_cover_the_table(function: str) -> None:
    """SEEDS seeds in a row cover the table, wherever they begin, and large cases take seven."""
    backend = session.BACKENDS[0]  # the shares of all backends are alike
    for dtype, world in product(_C.dtypes()[SEED % 4 :: 4], (2, 3, 4)):  # the others in the next runs
        whole = table(function, backend, dtype, world, COUNTS)
        shares = [some(function, backend, dtype, world, seed) for seed in range(SEED, SEED + SEEDS)]
        assert {case for each in shares for case in each} == set(whole)
        assert sum(map(len, shares)) in {times * len(whole) for times in (1, 3, 5, 15)}
    for world in (2, 3, 4):
        found = {case for seed in range(SEED, SEED + 7) for case in some_large(function, backend, world, seed)}
        assert found == set(large(function, backend, world))


@backends
@functions
@pytest.mark.parametrize("dtype", _C.dtypes())
def test_values(pools: Pools, backend: str, function: str, dtype: str) -> None:
    """Results equal plain torch's; memory outside the blocks and all inputs stay unchanged."""
    run(pools, "processes", 3, some(function, backend, dtype, 3), 120)


@backends
@functions
@pytest.mark.parametrize("world", [2, 4])
def test_values_of_two_and_four(pools: Pools, world: int, backend: str, function: str) -> None:
    """As ``test_values`` for powers of two, all types in one run."""
    run(
        pools,
        "processes",
        world,
        [case for dtype in _C.dtypes() for case in some(function, backend, dtype, world)],
        120,
    )


@worlds
@backends
@functions
def test_large(pools: Pools, world: int, backend: str, function: str) -> None:
    """As ``test_values`` for messages beyond every library's eager limit.

    The limit is longer: with more ranks than cores, all_to_all of megabytes stalls in MPICH now and then.
    """
    run(pools, "processes", world, some_large(function, backend, world, SEED), 240)


@worlds
@backends
@functions
def test_groups_roots_spellings(pools: Pools, world: int, backend: str, function: str) -> None:
    """Every group with every root in every spelling, with and without async_op."""
    cases = []
    for group in ["world", *session.SUBGROUPS[world]]:
        members = len(session.members(group, world)) if OPS[SIGNATURES[function]["op"]]["rooted"] else 1
        ways = (False, True) if "group_src" in kinds(function) else (False,)
        for root, style, mode, local in product(range(members), STYLES, modes(function), ways):
            cases.append(
                Case(function, "int32", "SUM", 5, layouts(function)[0], False, mode, style, group, root, local, backend)
            )
    run(pools, "processes", world, cases, 120)


@pytest.mark.parametrize("backend", [*session.BACKENDS, "auto"])
def test_values_of_one_rank(pools: Pools, backend: str) -> None:
    """As ``test_values`` for a job of one rank, which starts this backend alone; all functions and types in one run."""
    cases = [case for function in SIGNATURES for dtype in _C.dtypes() for case in some(function, backend, dtype, 1)]
    large_ones = [case for function in SIGNATURES for case in some_large(function, backend, 1, SEED)]
    run(pools, "processes", 1, cases[SEED % SEEDS :: SEEDS] + large_ones[SEED % SEEDS :: SEEDS], 120, backend)


@backends
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("red", ["SUM", "AVG", "PRODUCT", "MIN", "MAX"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_rounding(pools: Pools, dtype: str, red: str, world: int, backend: str) -> None:
    """All pairs of values, including special ones: each result is rounded once, as torch's cast does it."""
    overflowed = pools.get("processes", world).run(operations.float8_pairs, backend, dtype, red, limit=120)
    assert all(count > 100 for count in overflowed) == (red == "SUM")


@functions
def test_the_groups_choice(pools: Pools, function: str) -> None:
    """Without a backend, and with "auto", the group chooses one, equally on all ranks."""
    cases = [
        Case(function, "float64", "SUM", 9, layouts(function)[0], asynchronous=mode, style=style, backend=backend)
        for backend, style, mode in product((None, "auto"), STYLES, modes(function))
    ]
    run(pools, "processes", 3, cases, 60)


@pytest.mark.parametrize("launcher", ["mpiexec-openmpi", "mpiexec-mpich"])
@pytest.mark.parametrize("world", [2, 3])
@functions
def test_values_under_mpiexec(pools: Pools, launcher: str, world: int, function: str) -> None:
    """The operations and types on Open MPI, and on MPICH without mcr_dl's process manager."""
    cases = []
    for dtype in _C.dtypes():
        cases += table(function, "mpi", dtype, world, (17,))
    run(pools, launcher, world, cases, 120)


@pytest.mark.parametrize("variant", ["ring", "doubling"])
@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize("function", [name for name in SIGNATURES if OPS[SIGNATURES[name]["op"]]["reduces"]])
def test_variants_of_open_mpi(pools: Pools, world: int, variant: str, function: str) -> None:
    """Small data and several segments; what a variant leaves alone is the library's own."""
    backend = f"mpi:{variant}"
    cases = [case for dtype in _C.dtypes() for case in some_of(function, backend, dtype, world, SEED, sparse=True)]
    run(pools, "mpiexec-openmpi", world, cases + some_large(function, backend, world, SEED), 240)


def test_reference_against_hand_made_values() -> None:
    """The reference itself, on values that can be checked by hand."""
    inputs = [torch.tensor([1, 2, 3, -7]), torch.tensor([10, 20, 30, -4])]
    want = {
        "SUM": [11, 22, 33, -11],
        "AVG": [5, 11, 16, -5],
        "PRODUCT": [10, 40, 90, 28],
        "MIN": [1, 2, 3, -7],
        "MAX": [10, 20, 30, -4],
        "BAND": [0, 0, 2, -8],
        "BOR": [11, 22, 31, -3],
        "BXOR": [11, 22, 29, 5],
    }
    assert set(want) == {red for red in _C.reductions() if _C.reduction_defined("int64", red)}
    for red, result in want.items():
        assert reference.reduced(inputs, red).tolist() == result, red
    assert reference.expected("all_to_all", inputs, [[1, 3], [2, 2]], 0, "SUM", 1).tolist() == [2, 3, -7, 30, -4]
    assert reference.expected("scatter", inputs, [3, 1], 1, "SUM", 1).tolist() == [-4]
    assert reference.expected("gather", inputs, [4, 4], 1, "SUM", 0) is None
    assert {op["name"] for op in _C.ops()} - {"barrier"} <= set(vars(reference.Expected))
