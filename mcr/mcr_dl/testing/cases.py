# SPDX-License-Identifier: Apache-2.0
"""The cases of the table-driven suite: op x dtype x reduction x count x layout x in place x asynchronous; groups, roots
and spellings are drawn for each case. All lists come from the op table.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from mcr_dl import _C
from mcr_dl.testing import session
from mcr_dl.testing.calls import OPS, SIGNATURES, STYLES, Case, can_alias, kinds, layouts

__all__ = ["SEEDS", "WORLDS", "large", "share", "some", "some_large", "table", "today"]

COUNTS = (0, 1, 17, 1001)
LARGE = 100_003
LARGE_DTYPES = ("float32", "bfloat16", "uint8")
WORLDS = tuple(session.SUBGROUPS)
"""The numbers of ranks that there are cases for, 1 to 16."""
SEEDS = 15
"""So many seeds in a row cover the table, wherever they begin."""

# Layouts that make sense with one buffer for both sides of all_to_all.
SHARED_LAYOUTS = ("plain", "matrix", "single", "adjacent", "even", "splits", "gaps")


def reductions(function: str, dtype: str) -> list[str]:
    """The reductions to try: those that are defined for the type."""
    if not OPS[SIGNATURES[function]["op"]]["reduces"]:
        return ["SUM"]
    return [red for red in _C.reductions() if _C.reduction_defined(dtype, red)]


def memories(function: str, through_torch: bool = False) -> Iterator[tuple[str, bool]]:
    """Layouts, each with the input next to the output and inside it."""
    for layout in layouts(function, through_torch):
        yield layout, False
        if can_alias(function) and (SIGNATURES[function]["op"] != "all_to_all" or layout in SHARED_LAYOUTS):
            yield layout, True


def modes(function: str) -> tuple[bool, ...]:
    """With and without async_op, where the function has it."""
    return (False,) if SIGNATURES[function]["starts"] else (False, True)


def _dealt(values: tuple[bool, ...], drawn: random.Random) -> Iterator[bool]:
    """The values in random orders, one after the other, so that few draws have all of them."""
    while True:
        yield from drawn.sample(values, len(values))


def table(
    function: str,
    backend: str,
    dtype: str,
    world: int,
    counts: tuple[int, ...],
    device: str = "cpu",
    *,
    through_torch: bool = False,
) -> list[Case]:
    """All combinations for one function and type. Group, root and spelling are drawn for each case, independently of
    the rest: half of the cases are in the world. Equal arguments give equal cases.
    """
    groups = list(session.SUBGROUPS[world]) or ["world"]
    drawn = random.Random(f"{function} {dtype} {world} {counts}")
    in_world = {mode: _dealt((True, False), drawn) for mode in modes(function)}
    takes_group_rank = "group_src" in kinds(function)
    cases = []
    for index, (red, size, (layout, aliased), mode) in enumerate(
        product(reductions(function, dtype), counts, memories(function, through_torch), modes(function))
    ):
        group = "world" if next(in_world[mode]) else drawn.choice(groups)
        root = drawn.randrange(len(session.members(group, world)))
        style = "keywords" if through_torch else drawn.choice(STYLES)
        local = takes_group_rank and drawn.random() < 0.5
        case = Case(function, dtype, red, size, layout, aliased, mode, style, group, root, local, backend)
        cases.append(replace(case, seed=index, device=device, through_torch=through_torch))
    return cases


def today() -> int:
    """The seed of today: every day has the next one."""
    return int(time.time() // 86400)


def share(cases: list[Case], step: int, turn: int = 0, *, seed: int) -> list[Case]:
    """Every ``step``-th case, and at least one. A list's shares of ``step`` seeds in a row are the whole list; lists
    that run together have different turns, and so different shares.
    """
    return cases[(turn + seed) % max(1, min(step, len(cases))) :: step]


def some(function: str, backend: str, dtype: str, world: int, seed: int, *, sparse: bool) -> list[Case]:
    """Every combination (of more than 60 every third one); sparse: a fifth of that. The selection differs between
    types and seeds.
    """
    cases = table(function, backend, dtype, world, COUNTS)
    step = 3 if len(cases) > 60 else 1
    if sparse and len(cases) > 30 * step:
        step *= 5
    return share(cases, step, _C.dtypes().index(dtype), seed=seed)


def some_large(function: str, backend: str, world: int, seed: int) -> list[Case]:
    """Messages beyond every library's eager limit: of more than 40 combinations every seventh one, of all types."""
    cases = large(function, backend, world)
    return share(cases, 1 if len(cases) < 40 else 7, seed=seed)


def large(function: str, backend: str, world: int) -> list[Case]:
    """All combinations of one function with messages beyond every library's eager limit, of some types."""
    return [case for dtype in LARGE_DTYPES for case in table(function, backend, dtype, world, (LARGE,))]
