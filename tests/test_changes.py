# SPDX-License-Identifier: Apache-2.0
"""Changes that the ranks of a group make together: at one point in its calls, or an error on all ranks."""

from __future__ import annotations

import pytest

from harness import Pools
from ranks import changes, session

real = pytest.mark.parametrize("backend", session.BACKENDS)
sizes = pytest.mark.parametrize("size", [2, 3])


@sizes
@pytest.mark.parametrize("change", changes.CHANGES)
def test_a_change_in_different_places(pools: Pools, size: int, change: str) -> None:
    """Every rank gets one error, which names the collectives; the group keeps its old passes and continues."""
    texts = pools.get("processes", size).run(changes.elsewhere, "gloo", change)
    assert len(set(texts)) == 1
    assert f"{change}: expected all ranks of group " in texts[0]
    assert (
        f"got after collective 1 (all_reduce) on rank 0 and after collective 2 (all_reduce) on rank {size - 1}; move it"
        in texts[0]
    )


def test_a_change_in_different_places_on_mpi(pools: Pools) -> None:
    assert len(set(pools.get("processes", 2).run(changes.elsewhere, "mpi", "set_passes"))) == 1


@sizes
def test_different_changes(pools: Pools, size: int) -> None:
    texts = pools.get("processes", size).run(changes.others)
    assert len(set(texts)) == 1
    assert f"to make the same change, got set_passes on rank 0 and refine on rank {size - 1}" in texts[0]


@sizes
def test_different_steps(pools: Pools, size: int) -> None:
    """Of one change that has several, as after an exception in one of them."""
    texts = pools.get("processes", size).run(changes.steps)
    assert len(set(texts)) == 1
    assert "set_passes: expected all ranks of group " in texts[0]
    assert "to be in the same step of it, got rank 1 and rank 0 in different ones" in texts[0]


@pytest.mark.parametrize(
    ("kind", "error", "others", "text"),
    [
        ("entry", "InvalidTypeError", "InvalidTypeError", "passes: expected a name or a pass of mcr_dl.passes, got 3"),
        ("number", "InvalidTypeError", "InvalidTypeError", "passes: expected a list of passes, got 5"),
        ("raising", "ValueError", "InvalidArgumentError", "no more passes"),
    ],
)
def test_a_list_that_is_wrong_on_one_rank(pools: Pools, kind: str, error: str, others: str, text: str) -> None:
    """The other ranks' error names that rank."""
    answers = pools.get("processes", 3).run(changes.wrong_on_one, kind)
    assert answers == [(others, f"rank 2: {text}"), (others, f"rank 2: {text}"), (error, text)]


def test_a_pass_that_one_rank_cannot_make(pools: Pools) -> None:
    """No rank gets the new passes, although the others could make them."""
    answers = pools.get("processes", 3).run(changes.not_made, "gloo")
    assert answers == [*[("InvalidArgumentError", "rank 2: no room")] * 2, ("MemoryError", "no room")]


@sizes
def test_a_rank_that_fails_before_the_others_connect(pools: Pools, size: int) -> None:
    """The rank has made one attempt fewer than the others. It skips the one that they have given up."""
    pools.get("processes", size).run(changes.not_begun, "gloo")


def test_a_problem_when_the_others_do_not_come(pools: Pools) -> None:
    pools.get("processes", 2).run(changes.own_problem)


def test_a_rank_outside_the_group(pools: Pools) -> None:
    pools.get("processes", 2).run(changes.outside)


@sizes
def test_a_rank_that_does_not_come(pools: Pools, size: int) -> None:
    """All ranks get one text at the timeout, even the late one; it says who is missing and where that rank is."""
    answers = pools.get("processes", size).run(changes.late, "gloo")
    assert len({text for text, _ in answers}) == 1
    text = answers[0][0]
    assert text.startswith("set_passes (group ")
    assert f"rank {size - 1} did not come within 2 s" in text
    assert "Where the ranks are" in text
    assert max(taken for _, taken in answers[:-1]) >= 1.9  # of the first, whose timeout ends the wait of all


@sizes
@real
def test_calls_under_way(pools: Pools, size: int, backend: str) -> None:
    pools.get("processes", size).run(changes.in_flight, backend)


@sizes
@real
def test_a_call_that_is_held_before_fuse(pools: Pools, size: int, backend: str) -> None:
    pools.get("processes", size).run(changes.held_before_fuse, backend)


@sizes
@real
def test_calls_that_a_rank_does_not_release(pools: Pools, size: int, backend: str) -> None:
    """The change fails on all ranks, and they keep their passes."""
    for text, names in pools.get("processes", size).run(changes.not_released, backend):
        assert "it still holds calls after the timeout of 0:00:00.500000" in text
        assert names == ["fuse", "keeps"]


@sizes
@real
def test_calls_of_another_group(pools: Pools, size: int, backend: str) -> None:
    pools.get("processes", size).run(changes.with_another_group, backend, 12)
