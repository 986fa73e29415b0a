# SPDX-License-Identifier: Apache-2.0
"""The cases of the table-driven suite: op x dtype x reduction x count x layout x in place x asynchronous, with groups,
roots and spellings in turn. The lists of all of them come from the op table. Needs no pytest (bench/gpu/suite.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, product

from calls import OPS, SIGNATURES, STYLES, Case, can_alias, kinds, layouts
from mcr_dl import _C
from ranks import session

COUNTS = (0, 1, 17, 1001)
LARGE = 100_003
LARGE_DTYPES = ("float32", "bfloat16", "uint8")
# In one buffer for both sides of all_to_all: layouts in which that makes sense.
SHARED_LAYOUTS = ("plain", "matrix", "single", "adjacent", "even", "splits", "gaps")


def reductions(function: str, dtype: str) -> list[str]:
    """The reductions to try: those that mean something for the type."""
    if not OPS[SIGNATURES[function]["op"]]["reduces"]:
        return ["SUM"]
    return [red for red in _C.reductions() if _C.reduction_defined(dtype, red)]


def memories(function: str) -> Iterator[tuple[str, bool]]:
    """Layouts, each with the input beside the output and inside it."""
    for layout in layouts(function):
        yield layout, False
        if can_alias(function) and (SIGNATURES[function]["op"] != "all_to_all" or layout in SHARED_LAYOUTS):
            yield layout, True


def modes(function: str) -> tuple[bool, ...]:
    """With async_op and without, where there is a choice."""
    return (False,) if SIGNATURES[function]["starts"] else (False, True)


def table(
    function: str, backend: str, dtype: str, world: int, counts: tuple[int, ...], device: str = "cpu"
) -> list[Case]:
    """All combinations for one function and type; group, root and spelling change from case to case."""
    groups = ["world", *session.SUBGROUPS[world]]
    turn = count()
    cases = []
    for red, size, (layout, aliased), mode in product(
        reductions(function, dtype), counts, memories(function), modes(function)
    ):
        index = next(turn)
        group = groups[index % len(groups) if index % 2 else 0]
        root = index % len(session.members(group, world))
        case = Case(function, dtype, red, size, layout, aliased, mode, STYLES[index % 4], group, root)
        cases.append(
            replace(case, by_group_rank=by_group_rank(case, index), backend=backend, seed=index, device=device)
        )
    return cases


def by_group_rank(case: Case, index: int) -> bool:
    """Whether to give the root as a rank of the group, where the function can."""
    return "group_src" in kinds(case.function) and index % 3 == 0
