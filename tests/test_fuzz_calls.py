# SPDX-License-Identifier: Apache-2.0
"""Calls with any arguments: the result is the reference's, or there is one documented error and a usable group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuzzing import fuzz
from harness import Pools
from mcr_dl import _C
from mcr_dl.testing.calls import OPS, SIGNATURES, Case
from mcr_dl.testing.cases import memories
from ranks import fuzz as on_rank
from ranks import operations, session
from ranks.fuzz import Blocks, Vectored

pytestmark = pytest.mark.timeout(900)

VECTORED = ("all_to_allv", "all_gatherv", "gatherv", "scatterv", "reduce_scatterv")
BACKENDS = st.sampled_from([*session.BACKENDS, *session.BACKENDS, None])
COUNT = st.one_of(st.integers(0, 3), st.sampled_from([0, 1, 7, 64, 1000]))
LARGE = st.sampled_from([5_000, 40_000, 70_001])  # elements of blocks that libraries transfer in other ways
STRANGE = st.sampled_from([-1, 0, 1, 2, 5, 2**31, 2**62, 2**63 - 1, -(2**63)])


@st.composite
def _laid_out(draw: st.DrawFn, counts: list[int]) -> Blocks:
    """Blocks of these sizes with gaps, in any order, with room after them; mostly without displacements."""
    if draw(st.integers(0, 2)):
        return Blocks(sum(counts) + draw(st.sampled_from([0, 0, 0, 5])), tuple(counts))
    order = draw(st.permutations(range(len(counts))))
    displs, end = [0] * len(counts), 0
    for index in order:
        end += draw(st.integers(0, 2))
        displs[index] = end
        end += counts[index]
    return Blocks(end + draw(st.integers(0, 2)), tuple(counts), tuple(displs))


@st.composite
def _spoilt(draw: st.DrawFn, blocks: Blocks) -> Blocks:
    """Change one of its numbers, or add or remove one."""
    counts, displs = list(blocks.counts or ()), None if blocks.displs is None else list(blocks.displs)
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return replace(blocks, extent=max(0, blocks.extent + draw(st.integers(-3, 3))))
    target = displs if displs is not None and kind >= 3 else counts
    if kind == 1:
        target.append(draw(st.integers(0, 2)))
    elif kind == 2 and target:
        target.pop()
    elif target:
        target[draw(st.integers(0, len(target) - 1))] = draw(STRANGE)
    return replace(blocks, counts=tuple(counts), displs=None if displs is None else tuple(displs))


@st.composite
def vectored_calls(draw: st.DrawFn, size: int) -> Vectored:
    """A valid call of all ranks, in which up to two sides are then damaged."""
    function = draw(st.sampled_from(VECTORED))
    dtype = draw(st.sampled_from(_C.dtypes()))
    red = draw(st.sampled_from([red for red in ("SUM", "MAX", "PRODUCT", "BXOR") if _C.reduction_defined(dtype, red)]))
    matrix = [[draw(COUNT) for _ in range(size)] for _ in range(size)]
    row = matrix[0]
    if function == "all_to_allv":
        inputs = [draw(_laid_out(matrix[rank])) for rank in range(size)]
        outputs = [draw(_laid_out([matrix[other][rank] for other in range(size)])) for rank in range(size)]
    elif function in ("all_gatherv", "gatherv"):
        inputs = [Blocks(row[rank]) for rank in range(size)]
        outputs = [draw(_laid_out(row)) for _ in range(size)]
    else:
        inputs = [draw(_laid_out(row)) for _ in range(size)]
        if function == "reduce_scatterv":  # which has no displacements
            inputs = [Blocks(sum(row), tuple(row))] * size
        outputs = [Blocks(row[rank]) for rank in range(size)]
    root = (
        draw(st.integers(0, size - 1)) if draw(st.integers(0, 19)) else draw(st.sampled_from([-1, size, 2**31, 2**63]))
    )
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        sides = draw(st.sampled_from([inputs, outputs]))
        place = draw(st.integers(0, size - 1))
        if sides[place].counts is not None:
            sides[place] = draw(_spoilt(sides[place]))
    rooted = function in ("gatherv", "scatterv")
    return Vectored(
        function, dtype, red, root if rooted else 0, tuple(inputs), tuple(outputs), draw(BACKENDS), draw(st.booleans()),
        draw(st.integers(0, 999)),
    )  # fmt: skip


@pytest.mark.parametrize("size", [2, 3])
def test_counts_and_displacements(pools: Pools, size: int) -> None:
    """Vectored calls with gaps, overlaps, negative, too large and too few numbers: all ranks that see it raise."""
    seen: dict[str, int] = {}

    @fuzz(150)
    @given(case=vectored_calls(size))
    def run(case: Vectored) -> None:
        answers = pools.get("processes", size).run(on_rank.vectored, case, limit=30.0)
        expected = ["right" if all(map(case.valid, range(size))) and case.matched() else ""] * size
        if "right" not in expected:
            expected = ["not called" if case.valid(rank) else "refused" for rank in range(size)]
        assert answers == expected
        if "refused" in answers:
            pools.get("processes", size).run(on_rank.usable, case.backend or "mpi", limit=30.0)
        for answer in answers:
            seen[answer] = seen.get(answer, 0) + 1

    run()
    assert seen["right"] > 30
    assert seen["refused"] > 30


@pytest.mark.parametrize("backend", session.BACKENDS)
@pytest.mark.parametrize("function", ["gatherv", "scatterv"])
def test_what_the_root_alone_needs(pools: Pools, function: str, backend: str) -> None:
    """Given on every rank, as MPI allows, with displacements that are useless there: they are ignored."""
    full, part = Blocks(9, (2, 3), (1, 5)), Blocks(1, (2**40, -3), (-(2**50),))
    sides = [(Blocks(2), full), (Blocks(3), part)] if function == "gatherv" else [(full, Blocks(2)), (part, Blocks(3))]
    inputs, outputs = zip(*sides, strict=True)
    case = Vectored(function, "int32", "SUM", 0, inputs, outputs, backend, False, 1)
    assert pools.get("processes", 2).run(on_rank.vectored, case, limit=30.0) == ["right", "right"]


@st.composite
def cases(draw: st.DrawFn, world: int) -> Case:
    """Valid calls of every function, type, size, layout, group and spelling, also in place."""
    function = draw(st.sampled_from(sorted(SIGNATURES)))
    op = OPS[SIGNATURES[function]["op"]]
    dtype = draw(st.sampled_from(_C.dtypes()))
    defined = [red for red in _C.reductions() if _C.reduction_defined(dtype, red)]
    group = draw(st.sampled_from(["world", *session.SUBGROUPS[world]]))
    asynchronous = not SIGNATURES[function]["starts"] and (op["peer"] or draw(st.booleans()))
    layout, aliased = draw(st.sampled_from(list(memories(function))))
    return Case(
        function, dtype, draw(st.sampled_from(defined)) if op["reduces"] else "SUM",
        draw(COUNT if draw(st.integers(0, 5)) else LARGE), layout, aliased, asynchronous,
        draw(st.sampled_from(["keywords", "positions", "backend first", "mixed"])), group,
        draw(st.integers(0, len(session.members(group, world)) - 1)), backend=draw(BACKENDS),
        seed=draw(st.integers(0, 9999)),
    )  # fmt: skip


@pytest.mark.parametrize("world", [2, 3])
def test_right_calls(pools: Pools, world: int) -> None:
    """Drawn from all cases, compared with plain torch."""

    @fuzz(60)
    @given(batch=st.lists(cases(world), min_size=1, max_size=8))
    def run(batch: list[Case]) -> None:
        done = pools.get("processes", world).run(operations.run_all, batch, limit=120.0)
        assert done == [len(batch)] * world

    run()


NAMES = sorted(on_rank.values())


@st.composite
def any_arguments(draw: st.DrawFn) -> tuple[str, dict[str, str]]:
    """A function and a value for each of its parameters: more often one that fits its kind."""
    function = draw(st.sampled_from(sorted(SIGNATURES)))
    fitting = {
        "tensor": ["ones", "rows", "int64", "array"], "input": ["ones", "rows"], "output": ["ones", "rows"],
        "inputs": ["tensors"], "outputs": ["tensors"], "op": ["SUM"], "src": ["0"], "group_src": ["None"],
        "async_op": ["True", "None"], "tag": ["0"],
    }  # fmt: skip
    arguments: dict[str, str] = {}
    for name, kind, default, _ in SIGNATURES[function]["params"]:
        if default and draw(st.booleans()):
            continue
        usual = fitting.get(kind, ["None", "ones list"])
        arguments[name] = draw(st.sampled_from(usual if draw(st.integers(0, 2)) else NAMES))
    return function, arguments


@fuzz(200)
@given(
    function=st.sampled_from(sorted(SIGNATURES)),
    keyword=st.text(st.characters(exclude_categories=()), max_size=4),
)
@example("all_reduce", "\ud800")
@example("all_reduce", "tensor\x00")
@example("gatherv", "srcs")
def test_any_keyword(pools: Pools, function: str, keyword: str) -> None:
    """Arguments that no function has, with lone surrogates and null characters too: Python's error names them."""
    if keyword not in {name for row in SIGNATURES.values() for name, *_ in row["params"]}:
        pools.get("processes", 1).run(on_rank.any_keyword, function, keyword, limit=30.0)


@fuzz(500)
@given(call=any_arguments(), backend=st.sampled_from(["gloo", "null", None]))
@example(("barrier", {"timeout": "1e300"}), "gloo")
@example(("all_to_all_single", {"output": "rows", "input": "rows", "input_split_sizes": "sums to one"}), "gloo")
@example(("all_reduce", {"tensor": "hostile surrogate"}), "gloo")
@example(("all_reduce", {"tensor": "ones", "backend": "surrogate"}), None)
@example(("all_reduce", {"tensor": "ones", "codec": "surrogate"}), "gloo")
@example(("all_gather", {"tensor_list": "shrinking list", "tensor": "ones"}), "gloo")
@example(("all_gatherv", {"output": "ones", "input": "ones", "rcounts": "shrinking list"}), "gloo")
@example(("all_gatherv", {"output": "ones", "input": "ones", "rcounts": "ones list", "size_hint": "surrogate"}), "gloo")
def test_any_arguments(pools: Pools, call: tuple[str, dict[str, Any]], backend: str | None) -> None:
    """Any value for any argument, on a group of one rank: only mcr_dl's errors, and the next call is right."""
    function, arguments = call
    assert set(arguments) <= {name for name, *_ in SIGNATURES[function]["params"]} | {"backend"}
    if "backend" in arguments:
        backend = None
    pool = pools.get("processes", 1)
    (answer,) = pool.run(on_rank.any_call, function, arguments, backend, limit=30.0)
    if answer != "returned":
        pool.run(on_rank.alone, backend or "gloo", limit=30.0)
