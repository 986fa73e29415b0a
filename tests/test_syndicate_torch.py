# SPDX-License-Identifier: Apache-2.0
"""Programs for torch.distributed under Syndicate reach the weights that they reach without it."""

from __future__ import annotations

import itertools

import pytest

from harness import Pools, launchers
from ranks import syndicate_torch

worlds = pytest.mark.parametrize("world", [2, 3])
programs = pytest.mark.parametrize("program", list(syndicate_torch.PROGRAMS))
RANDOM = list(itertools.product(syndicate_torch.PROGRAMS, (2, 3), (0, 100)))


@worlds
@programs
def test_searched_plans(pools: Pools, program: str, world: int) -> None:
    """Plans that the search finds; ranks keep equal weights."""
    found = pools.get("processes", world).run(syndicate_torch.searched, program, limit=150)
    assert len(set(found)) == 1


@pytest.mark.parametrize(("program", "world", "seed"), RANDOM)
def test_random_plans(pools: Pools, program: str, world: int, seed: int) -> None:
    """Plans that no search would make."""
    found = pools.get("processes", world).run(syndicate_torch.forced, program, seed, limit=150)
    assert len(set(found)) == 1


@worlds
@programs
def test_training_again(pools: Pools, program: str, world: int) -> None:
    """An exception in the middle of a backward pass."""
    found = pools.get("processes", world).run(syndicate_torch.trained_again, program, 100, limit=150)
    assert len(set(found)) == 1


@pytest.mark.parametrize("way", ["wait", "future", "poll"])
def test_ways_to_wait(pools: Pools, way: str) -> None:
    """See the function's docstring."""
    pools.get("processes", 2).run(syndicate_torch.waits, way, limit=90)


@worlds
@pytest.mark.parametrize("seed", range(3))
def test_exceptions(pools: Pools, world: int, seed: int) -> None:
    """All ranks leave the plan, and follow it again."""
    found = pools.get("processes", world).run(syndicate_torch.interrupted, seed, limit=120)
    assert all(each == found[0] for each in found)


@worlds
def test_an_exception_through_the_block(pools: Pools, world: int) -> None:
    """See the function's docstring."""
    pools.get("processes", world).run(syndicate_torch.interrupted_outside, 0, limit=60)


def test_a_block_under_the_variable(pools: Pools) -> None:
    """See the function's docstring."""
    pools.get("processes", 2).run(syndicate_torch.twice, limit=60)


@worlds
def test_variable(pools: Pools, world: int) -> None:
    """MCR_DL_SCHEDULE=syndicate."""
    pools.get("processes", world).run(syndicate_torch.by_variable, limit=90)


@programs
def test_variable_in_torch(pools: Pools, program: str) -> None:
    """MCR_DL_SCHEDULE=syndicate."""
    found = pools.get("processes", 2).run(syndicate_torch.by_variable_in_torch, program, limit=150)
    assert len(set(found)) == 1


def test_mistakes(pools: Pools) -> None:
    """See the function's docstring."""
    pools.get("processes", 2).run(syndicate_torch.mistakes, limit=60)


@pytest.mark.parametrize("end", ["destroyed", "works left", "group destroyed", "forgotten"])
def test_a_program_without_mcr_dl(end: str) -> None:
    """It ends without a word, whatever it leaves behind."""
    codes, text = launchers.torch_alone(2, end, MCR_DL_SCHEDULE="syndicate")
    assert codes == [0, 0], text
    assert text.strip() == ""


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"MCR_DL_SCHEDULE": "syndicat"}, "MCR_DL_SCHEDULE: expected syndicate or none, got 'syndicat'"),
        ({"MCR_DL_SCHEDULE": "syndicate", "MCR_DL_PASSES": "fuse"}, "expected a group without the pass fuse"),
    ],
    ids=["unknown", "with fuse"],
)
def test_a_wrong_variable(variables: dict[str, str], text: str) -> None:
    """Such a program ends with the error."""
    codes, output = launchers.torch_alone(2, "destroyed", **variables)
    assert codes == [1, 1], output
    assert output.count(text) == 2
