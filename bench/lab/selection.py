# SPDX-License-Identifier: Apache-2.0
"""Which cases of the table of operations the lab runs."""

from __future__ import annotations

from itertools import product

from mcr_dl import _C
from mcr_dl.testing.calls import SIGNATURES, Case
from mcr_dl.testing.cases import COUNTS, LARGE, LARGE_DTYPES, table

BACKENDS = ("mpi", "gloo")  # those that connect hosts
EACH = 6  # cases of every function, backend and type


def chosen(world: int, each: int = EACH) -> list[Case]:
    """For every function, backend and element type, `each` cases of small counts, spread evenly over their table, from
    an index that moves with function and type; and for every function and backend one case of each type with large
    messages. Equal on all ranks, as it depends on the table alone.
    """
    cases = []
    for (row, function), backend in product(enumerate(SIGNATURES), BACKENDS):
        for column, dtype in enumerate(_C.dtypes()):
            cases += spread(table(function, backend, dtype, world, COUNTS), each, 7 * row + 3 * column)
            if dtype in LARGE_DTYPES:
                cases += spread(table(function, backend, dtype, world, (LARGE,)), 1, row + column)
    return cases


def spread(cases: list[Case], each: int, turn: int) -> list[Case]:
    """`each` of them at even distances (all, if there are no more), from index `turn` on."""
    if len(cases) <= each:
        return cases
    return [cases[(turn + index * len(cases) // each) % len(cases)] for index in range(each)]
