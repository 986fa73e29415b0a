# SPDX-License-Identifier: Apache-2.0
"""Tuning tables for tests, made by hand."""

from __future__ import annotations

from typing import Any

from mcr_dl.tables.host import Host, Software
from mcr_dl.tables.model import Curve, Range, Sample, Scale, Table, Winner

TIME = "2026-03-01T12:00:00Z"
HOST = Host("0123456789abcdef", "A CPU", 2, 8, (), "Linux x86_64")
SOFTWARE = Software("0.1.0", "2.13.0", "3.11.7", {"mpi": "MPICH 5.0.2", "gloo": "torch 2.13.0"})


def curve(candidate: str, *medians: float, operation: str = "all_reduce", dtype_class: str = "float") -> Curve:
    """A curve with these medians at 4, 64, 1K, ... bytes (a barrier's at 0)."""
    sizes = [0] if operation == "barrier" else [4 << 4 * index for index in range(len(medians))]
    samples = [Sample(size, 20, time * 0.5, time, time * 2) for size, time in zip(sizes, medians, strict=True)]
    return Curve(operation, dtype_class, "float32", candidate, tuple(samples))


def winner(*ranges: tuple[int, str], operation: str = "all_reduce", dtype_class: str = "float") -> Winner:
    return Winner(operation, dtype_class, tuple(Range(start, candidate) for start, candidate in ranges))


def scale(ranks: int = 2, nodes: int = 1, **parts: Any) -> Scale:
    parts.setdefault("curves", (curve("mpi", 1.0, 2.0, 400.0), curve("gloo", 30.0, 31.0, 100.0)))
    parts.setdefault("winners", (winner((0, "mpi"), (512, "gloo")),))
    return Scale(ranks, nodes, ranks // nodes, parts.pop("device", "cpu"), TIME, **parts)


def make(*scales: Scale, **parts: Any) -> Table:
    return Table(**{"created": TIME, "host": HOST, "software": SOFTWARE, "scales": scales or (scale(),), **parts})
