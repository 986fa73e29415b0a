# SPDX-License-Identifier: Apache-2.0
"""Tuning tables for tests, made by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from mcr_dl import _C
from mcr_dl.tables.host import Host, Software, host
from mcr_dl.tables.model import Curve, Range, Sample, Scale, Table, Winner

TIME = "2026-03-01T12:00:00Z"
HOST = Host("0123456789abcdef", "A CPU", 2, 8, (), "Linux x86_64")
SOFTWARE = Software("0.1.0", "2.13.0", "3.11.7", {"mpi": "MPICH 5.0.2", "gloo": "torch 2.13.0"})

# Of the tables that hold all operations.
CANDIDATES = ("mpi", "mpi:p2p", "gloo")
SIZES = tuple(4**k for k in range(1, 13))


def curve(
    candidate: str,
    *medians: float,
    operation: str = "all_reduce",
    dtype_class: str = "float",
    sizes: Sequence[int] = (),
    codec: str = "",
    spread: float = 2,
) -> Curve:
    """A curve with these medians at these sizes, by default at 4, 64, 1K, ... bytes (a barrier's at 0).

    The least time is the median divided by ``spread``, the greatest one the median times ``spread``.
    """
    sizes = sizes or ([0] if operation == "barrier" else [4 << 4 * index for index in range(len(medians))])
    samples = [Sample(size, 20, time / spread, time, time * spread) for size, time in zip(sizes, medians, strict=True)]
    return Curve(operation, dtype_class, "float32", candidate, tuple(samples), codec)


def winner(*ranges: tuple[int, str], operation: str = "all_reduce", dtype_class: str = "float") -> Winner:
    return Winner(operation, dtype_class, tuple(Range(start, candidate) for start, candidate in ranges))


def scale(ranks: int = 2, nodes: int = 1, **parts: Any) -> Scale:
    parts.setdefault("curves", (curve("mpi", 1.0, 2.0, 400.0), curve("gloo", 30.0, 31.0, 100.0)))
    parts.setdefault("winners", (winner((0, "mpi"), (512, "gloo")),))
    return Scale(ranks, nodes, ranks // nodes, parts.pop("device", "cpu"), TIME, **parts)


def make(*scales: Scale, **parts: Any) -> Table:
    return Table(**{"created": TIME, "host": HOST, "software": SOFTWARE, "scales": scales or (scale(),), **parts})


def flat(favourite: str, ranks: int = 2) -> Table:
    """A table of this machine in which one candidate is the best everywhere, for every operation."""
    curves = [
        curve(
            candidate,
            *[1.0 if candidate == favourite else 2.0] * len(SIZES),
            operation=name,
            dtype_class="float" if _reduces(name) else "any",
            sizes=SIZES,
            spread=1,
        )
        for name in _C.operations()
        for candidate in CANDIDATES
    ]
    return make(scale(ranks, curves=tuple(curves), winners=()), host=host())


def random_table(seed: int, ranks: int) -> Table:
    """Curves that cross often, for every operation; gloo seldom wins, as it takes a hundred times as long as mpi."""
    draw = random.Random(seed)

    def times(candidate: str) -> list[float]:
        return [draw.uniform(1.5 if candidate == "gloo" else 1, 2) * (1 + size / 4096) for size in SIZES]

    curves = [
        curve(candidate, *times(candidate), operation=name, dtype_class=types, sizes=SIZES, spread=1)
        for name in _C.operations()
        for types in (("float", "half") if _reduces(name) else ("any",))
        for candidate in CANDIDATES
    ]
    return make(scale(ranks, curves=tuple(curves), winners=()), host=host())


def _reduces(name: str) -> bool:
    """Whether the operation of this name, or the one that it is a form of, combines values."""
    return any(row["reduces"] for row in _C.ops() if row["name"] == name.removesuffix("v"))
