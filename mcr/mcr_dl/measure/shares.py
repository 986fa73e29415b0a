# SPDX-License-Identifier: Apache-2.0
"""Computed shares of stripes while candidates are measured: from the times of their parts, as ``auto`` uses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mcr_dl import _C
from mcr_dl.base.operations import dtype_class
from mcr_dl.measure.timing import Control
from mcr_dl.tables.winners import cost_of


class Kind(NamedTuple):
    """The calls that are measured together."""

    operation: str
    dtype: str
    device: str
    async_op: bool


def is_striped(name: str) -> bool:
    """Whether a candidate cuts calls over two backends."""
    candidate = _C.Candidate(name)
    return bool(candidate.parts) and not candidate.hierarchical


def computes(name: str) -> bool:
    """Whether such a candidate computes the backends' shares."""
    return is_striped(name) and not _C.Candidate(name).variant


def parts_of(names: Iterable[str]) -> list[str]:
    """The parts of those among the candidates that compute shares, in one order on all ranks."""
    return sorted({part for name in names if computes(name) for part in _C.Candidate(name).parts})


def give(groups: Iterable[_C.Group], control: Control, kind: Kind, times: Mapping[str, Mapping[int, float]]) -> None:
    """Give groups the times of the parts in µs, by size in bytes. Collective.

    The ranks agree on the costs, which are logarithms: these may differ between hosts.
    """
    points = [(name, size, time) for name, curve in times.items() for size, time in sorted(curve.items())]
    agreed = control.maximum([float(cost_of(time)) for _, _, time in points])
    costs: dict[str, list[tuple[int, int]]] = {}
    for (name, size, _), cost in zip(points, agreed, strict=True):
        costs.setdefault(name, []).append((size, int(cost)))
    calls = (kind.operation, kind.async_op, kind.device, dtype_class(kind.operation, kind.dtype))
    for group in groups:
        group._tune([(*calls, name, curve) for name, curve in costs.items()], True, [], [], [])
