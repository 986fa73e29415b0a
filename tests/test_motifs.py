# SPDX-License-Identifier: Apache-2.0
"""The motif algebra: every rule, alone and composed, gives the operation's result and moves its bytes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import motif_interpreter as interpreter
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.planner import motifs
from mcr_dl.planner.motifs import Expression, Motif, Rule

OPS = motifs.ONE_TENSOR + motifs.BLOCKS


def _traffic(expression: Expression) -> Counter[tuple[int, int]]:
    """Elements from rank to rank."""
    total: Counter[tuple[int, int]] = Counter()
    for motif, _ in motifs.steps(expression):
        for sender, receiver, count in interpreter.transfers(motif):
            total[sender, receiver] += count
    return +total


def _rule(chosen: tuple[str, int]) -> Rule:
    name, value = chosen
    return (
        {"segment": motifs.segment, "tree": motifs.tree, "spline": motifs.spline}[name](value) if value else motifs.ring
    )


RULES = st.one_of(
    st.tuples(st.just("segment"), st.integers(2, 5)),
    st.tuples(st.just("tree"), st.integers(2, 4)),
    st.tuples(st.just("spline"), st.integers(1, 4)),
    st.just(("ring", 0)),
)
CALLS = st.tuples(st.sampled_from(OPS), st.integers(0, 23), st.integers(1, 9), st.integers(0, 8))


def _expression(given_call: tuple[str, int, int, int], rules: list[tuple[str, int]]) -> tuple[Motif, Expression]:
    op, count, ranks, root = given_call
    whole = motifs.call(op, count, ranks, root % ranks)
    expression: Expression = whole
    for chosen in rules:
        expression = motifs.rewrite(expression, _rule(chosen))
    return whole, expression


@settings(max_examples=400, deadline=None)
@given(CALLS, st.lists(RULES, max_size=3), st.integers(0, 1 << 16))
def test_rules_compose_to_the_operations_result(call: tuple[str, int, int, int], rules: list, seed: int) -> None:
    op, count, ranks, root = call
    _, expression = _expression(call, rules)
    memory = interpreter.before(op, count, ranks)
    result = interpreter.run(expression, op, memory, seed)
    for rank, span, values in interpreter.after(op, count, memory, root % ranks):
        np.testing.assert_array_equal(result[rank, slice(*span)], values, err_msg=f"rank {rank}")


@pytest.mark.parametrize(
    ("rule", "call", "texts"),
    [
        (motifs.segment(4), ("all_gather", 3, 2), ["all_gather 2"] * 3),
        (motifs.segment(4), ("all_gather", 1, 2), ["all_gather 2"]),
        (motifs.ring, ("all_reduce", 10, 3), ["reduce_scatter 10", "all_gather 10"]),
        (motifs.tree(2), ("all_reduce", 10, 3), ["reduce 10", "reduce 10", "broadcast 10", "broadcast 10"]),
        (
            motifs.tree(3),
            ("all_reduce", 9, 7),
            ["reduce 9 in 2 groups", "reduce 9", "broadcast 9", "broadcast 9 in 2 groups"],
        ),
        (
            motifs.spline(2),
            ("all_to_all", 3, 5),
            ["all_to_all 6 shifts 0-1", "all_to_all 6 shifts 2-3", "all_to_all 3 shifts 4-4"],
        ),
        (motifs.spline(5), ("all_to_all", 3, 5), ["all_to_all 15"]),
        (motifs.spline(2), ("all_gather", 3, 5), ["all_gather 15"]),
    ],
)
def test_a_rule_gives_these_motifs(rule: Rule, call: tuple[str, int, int], texts: list[str]) -> None:
    found = [str(motif) for motif, _ in motifs.steps(motifs.rewrite(motifs.call(*call), rule))]
    assert found == texts


def test_rules_fit_their_own_results() -> None:
    windows = motifs.rewrite(motifs.call("all_to_all", 3, 7), motifs.spline(3))
    assert [str(motif)[-3:] for motif, _ in motifs.steps(motifs.rewrite(windows, motifs.spline(2)))] == [
        "0-1",
        "2-2",
        "3-4",
        "5-5",
        "6-6",
    ]
    assert motifs.ring(Motif("all_reduce", ((0, 1), (2, 3)), ((0, 4),))) is None
    assert motifs.tree(2)(Motif("all_reduce", ((0, 1), (2, 3)), ((0, 4),))) is None


@settings(max_examples=200, deadline=None)
@given(CALLS, st.lists(RULES, max_size=3))
def test_elements_are_moved_once(call: tuple[str, int, int, int], rules: list) -> None:
    """Segments, splines and rings move from rank to rank what the call does; a tree moves other elements."""
    op, _, ranks, _ = call
    whole, expression = _expression(call, [rule for rule in rules if rule[0] != "tree"])
    moved, expected = _traffic(expression), _traffic(whole)
    if op in ("all_reduce", "reduce_scatter", "all_gather"):  # each segment's blocks are cut differently
        assert sum(moved.values()) == sum(expected.values())
        assert set(moved) <= {(rank, (rank + 1) % ranks) for rank in range(ranks)}
    else:
        assert moved == expected


@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("fan_in", [2, 3, 4])
def test_tree_moves_the_tensor_up_and_down_once_per_rank(ranks: int, fan_in: int) -> None:
    expression = motifs.rewrite(motifs.call("all_reduce", 7, ranks), motifs.tree(fan_in))
    degrees = [motifs.in_degree(motif) for motif, _ in motifs.steps(expression)]
    received = Counter[int]()
    for (_, receiver), count in _traffic(expression).items():
        received[receiver] += count
    assert sum(received.values()) == 2 * 7 * (ranks - 1)
    assert max(degrees, default=0) <= max(fan_in - 1, 1)


@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("peers", [1, 2, 3, 4])
def test_rotation_keeps_the_in_degree(ranks: int, peers: int) -> None:
    whole = motifs.call("all_to_all", 5, ranks)
    for motif, _ in motifs.steps(motifs.rewrite(whole, motifs.spline(peers))):
        assert motifs.in_degree(motif) <= peers
        sent = Counter(sender for sender, _, _ in interpreter.transfers(motif))
        received = Counter(receiver for _, receiver, _ in interpreter.transfers(motif))
        assert sent == received  # every rank sends to as many as it receives from


def _listed_in_degree(motif: motifs.Motif) -> int:
    senders: dict[int, set[int]] = {}
    for sender, receiver, _ in interpreter.transfers(motif):
        senders.setdefault(receiver, set()).add(sender)
    return max(map(len, senders.values()), default=0)


@settings(max_examples=200, deadline=None)
@given(CALLS, st.lists(RULES, max_size=3))
def test_the_in_degree_is_that_of_the_transfers(call: tuple[str, int, int, int], rules: list) -> None:
    for expression in _expression(call, rules):
        for motif, _ in motifs.steps(expression):
            assert motifs.in_degree(motif) == _listed_in_degree(motif), motif


def test_the_in_degree_in_a_large_group() -> None:
    """Without a list of its transfers."""
    whole = motifs.call("all_to_all", 1, 100_000)
    assert motifs.in_degree(whole) == 99_999
    assert {motifs.in_degree(motif) for motif, _ in motifs.steps(motifs.rewrite(whole, motifs.spline(50_000)))} == {
        49_999,
        50_000,
    }


def test_rotated_windows_make_no_incast() -> None:
    """8 ranks in windows of two: 2 at most send to one rank."""
    rotated = motifs.steps(motifs.rewrite(motifs.call("all_to_all", 3, 8), motifs.spline(2)))
    assert [motifs.in_degree(motif) for motif, _ in rotated] == [1, 2, 2, 2]  # shift 0 is the rank itself


def test_an_interpreter_finds_a_missing_dependency() -> None:
    """The test of the tests: a ring whose halves run in parallel gives another result in some order."""
    memory = interpreter.before("all_reduce", 12, 4)
    serial = motifs.ring(motifs.call("all_reduce", 12, 4))
    assert isinstance(serial, motifs.Serial)
    wrong = [interpreter.run(motifs.Parallel(serial.parts), "all_reduce", memory, seed) for seed in range(8)]
    assert any((result != memory.sum(axis=0)).any() for result in wrong)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: motifs.segment(1),
        lambda: motifs.tree(1),
        lambda: motifs.spline(0),
        lambda: motifs.call("scan", 4, 2),
        lambda: motifs.call("broadcast", 4, 2, root=2),
    ],
)
def test_bad_arguments_are_refused(bad: object) -> None:
    with pytest.raises(InvalidArgumentError, match="expected"):
        bad()  # type: ignore[operator]
