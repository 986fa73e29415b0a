# SPDX-License-Identifier: Apache-2.0
"""The tables' results on codecs: for which calls compression was measured to be cheaper than none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mcr_dl import _C
from mcr_dl.tables.winners import microseconds_of

if TYPE_CHECKING:
    from mcr_dl.tables.choice import Knowledge

OPERATIONS = tuple(row["name"] for row in _C.ops() if row["compressible"] and not row["rooted"] and not row["peer"])
"""The operations that are measured with codecs: all ranks have equal parts. Vectored forms use their curves too."""
DTYPE = "float32"
"""Measured in place of all types that a codec takes."""
SMALLEST = 64 << 10
"""Bytes of the smallest call that is measured with codecs."""

_CLASSES = ("any", _C.dtype_class(DTYPE))

Points = list[tuple[int, int]]
Ranges = list[tuple[int, str]]


def ranges_of(costs: dict[str, Any], accepted: Sequence[str] | None = None) -> list[tuple[str, str, Ranges]]:
    """Operation, candidate, and the sizes from which it uses each codec ("none": no codec).

    ``costs`` is a scale of ``Knowledge``; ``accepted`` names the codecs to compare, by default all that were measured.
    A variant is compared with the codecs of its backend: variants are not measured with their own codecs. Only
    candidates with a measured codec are listed. The code that chooses backends decides, on whole numbers alone.
    """
    found = []
    for operation, types, candidate, points in costs["curves"]:
        coded = _coded(costs, operation, candidate, accepted) if types in _CLASSES else []
        if coded:
            curves = [("none", points), *coded]
            chosen = [(start, *curves[index]) for start, index in _C.cheapest([each for _, each in curves])]
            found.append((operation, candidate, _where_measured(chosen)))
    return found


def _where_measured(chosen: list[tuple[int, str, Points]]) -> Ranges:
    """Restrict codecs to measured sizes: calls smaller than a codec's smallest measurement do not use it."""
    ranges: Ranges = []
    ends = [*(start for start, _, _ in chosen[1:]), None]
    for (start, name, points), end in zip(chosen, ends, strict=True):
        first = start if name == "none" else max(start, points[0][0])
        steps = [(start, "none"), (first, name)] if first > start else [(start, name)]
        for place, each in steps:
            if (end is None or place < end) and (not ranges or ranges[-1][1] != each):
                ranges.append((place, each))
    return ranges


def _coded(
    costs: dict[str, Any], operation: str, candidate: str, accepted: Sequence[str] | None
) -> list[tuple[str, Points]]:
    """Codecs with their curves, in the order of ``accepted``: the first of equally cheap ones is used."""
    backend = _C.CandidateName(candidate).backend
    known = {
        codec: points
        for named, types, whose, codec, points in costs["codecs"]
        if (named, whose) == (operation, backend) and named in OPERATIONS and types in _CLASSES
    }
    return [(name, known[name]) for name in (known if accepted is None else accepted) if name in known]


def measured(knowledge: Knowledge, ranks: list[int], accepted: Sequence[str]) -> list[tuple[str, str, Ranges]]:
    """``ranges_of`` for a group of global ranks; equal on all of them. Empty without a measured table."""
    costs = _costs(knowledge, ranks)
    return [] if costs is None else ranges_of(costs, accepted)


def _costs(knowledge: Knowledge, ranks: list[int]) -> dict[str, Any] | None:
    return None if len(ranks) < 2 else knowledge.scale_for(knowledge.shape(ranks), "cpu")


def predicted(
    knowledge: Knowledge, ranks: list[int], operation: str, candidate: str, codec: str, nbytes: int
) -> tuple[float, float] | None:
    """Microseconds of a group's call without and with the codec; None where they were not measured."""
    costs = _costs(knowledge, ranks)
    if costs is None:
        return None
    plain = [row[-1] for row in costs["curves"] if (row[0], row[2]) == (operation, candidate) and row[1] in _CLASSES]
    coded = [points for _, points in _coded(costs, operation, candidate, [codec])]
    if not plain or not coded:
        return None
    without, within = (microseconds_of(_C.cost_at(each[0], nbytes)) for each in (plain, coded))
    return without, within
