# SPDX-License-Identifier: Apache-2.0
"""Computed shares of stripes while candidates are measured: from the times of their parts, as ``auto`` uses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mcr_dl import _C
from mcr_dl.base.operations import dtype_class
from mcr_dl.measure.timing import Control
from mcr_dl.runtime import state
from mcr_dl.tables.winners import cost_of


class Kind(NamedTuple):
    """The calls that are measured together."""

    operation: str
    dtype: str
    device: str
    async_op: bool


def is_striped(name: str) -> bool:
    """Whether a candidate cuts calls over two backends."""
    candidate = _C.CandidateName(name)
    return bool(candidate.parts) and not candidate.hierarchical


def computes(name: str) -> bool:
    """Whether such a candidate computes the backends' shares."""
    return is_striped(name) and not _C.CandidateName(name).variant


def parts_of(names: Iterable[str]) -> list[str]:
    """The parts of those among the candidates that compute shares, in one order on all ranks."""
    return sorted({part for name in names if computes(name) for part in _C.CandidateName(name).parts})


class Shares:
    """The costs of parts that were measured so far, from which the stripes of a group compute their shares.

    So do those of the dimensions of its hierarchies, whose own times are not known: as in programs, the nearest decide.
    """

    def __init__(self, groups: Iterable[_C.Group], control: Control) -> None:
        self._groups = {each: None for group in groups for each in state.current().with_shadows(group)}
        self._control = control
        self._costs: dict[tuple[Kind, str], list[tuple[int, int]]] = {}

    def give(self, kind: Kind, times: Mapping[str, Mapping[int, float]]) -> None:
        """Add the times of parts in µs, by size in bytes. Collective.

        The ranks agree on the costs, which are logarithms: these may differ between hosts.
        """
        points = [(name, size, time) for name, curve in times.items() for size, time in sorted(curve.items())]
        agreed = self._control.maximum([float(cost_of(time)) for _, _, time in points])
        self._costs.update({(kind, name): [] for name in times})
        for (name, size, _), cost in zip(points, agreed, strict=True):
            self._costs[kind, name].append((size, int(cost)))
        costs = [
            (each.operation, each.async_op, each.device, dtype_class(each.operation, each.dtype), name, curve)
            for (each, name), curve in self._costs.items()
        ]
        for group in self._groups:
            group._tune(costs, True, [], [], [])
