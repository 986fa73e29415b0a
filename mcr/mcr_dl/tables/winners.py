# SPDX-License-Identifier: Apache-2.0
"""Times as the core compares them, the choices that follow from measured curves, and these choices without noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from mcr_dl import _C
from mcr_dl.tables.model import Curve, Range, Scale, Subject, Table, Winner

_UNIT = 65536
_NOISE = round(math.log2(1.02) * _UNIT)


def cost_of(microseconds: float) -> int:
    """A time as the core compares it: log2 of nanoseconds in 1/65536 (src/choose/curve.h)."""
    return round(math.log2(max(microseconds, 0.001) * 1000) * _UNIT)


def microseconds_of(cost: int) -> float:
    """The time of ``cost_of`` in microseconds."""
    return 2 ** (cost / _UNIT) / 1000


def _points(scale: Scale, curve: Curve) -> list[tuple[int, int]]:
    return [(sample.bytes, cost_of(scale.time_of(sample))) for sample in curve.samples]


def winners_of(scale: Scale) -> tuple[Winner, ...]:
    """The choices of `auto` by size, computed by the code that chooses. Excludes codecs, as they change results."""
    winners = []
    plain = [curve for curve in scale.curves if not curve.codec]
    for subject in dict.fromkeys(curve.subject for curve in plain):
        compared = scale.curves_of(subject)
        points = [_points(scale, curve) for curve in compared]
        ranges = [Range(start, compared[index].candidate) for start, index in _C.cheapest(points)]
        operation, types, async_op = subject
        winners.append(Winner(operation, types, tuple(ranges), async_op))
    return tuple(winners)


def computed(table: Table) -> Table:
    """The table with the winners that programs compute from its curves, whatever its file says."""
    return replace(table, scales=tuple(replace(scale, winners=winners_of(scale)) for scale in table.scales))


class Comparison:
    """The curves of one subject, to tell differences from noise."""

    def __init__(self, scale: Scale, subject: Subject) -> None:
        self._curves = {curve.candidate: _points(scale, curve) for curve in scale.curves_of(subject)}
        self._sizes = {size for curve in self._curves.values() for size, _ in curve}

    def about_equal(self, candidate: str, owner: str, start: int, end: float) -> bool:
        """Whether the times of two candidates are at most 2 % apart, at all measured sizes of a range and at its ends.

        Candidates without curves equal only themselves.
        """
        if candidate == owner:
            return True
        if candidate not in self._curves or owner not in self._curves:
            return False
        sizes = [start, *(size for size in self._sizes if start < size < end)]
        sizes += [] if math.isinf(end) else [int(end) - 1]
        one, other = self._curves[candidate], self._curves[owner]
        return all(abs(_C.cost_at(one, size) - _C.cost_at(other, size)) <= _NOISE for size in sizes)


def steady(scale: Scale, winner: Winner) -> Winner:
    """The winners of a subject without noise, for people; `auto` uses the curves themselves.

    Neighboring ranges become one if the times of one of their owners are at most 2 % from the winner's in all of them.
    A range shorter than an octave between two ranges of one other owner becomes a part of these.
    """
    compared = Comparison(scale, winner.subject)
    owners = list(dict.fromkeys(each.candidate for each in winner.ranges))
    ranges: list[Range] = []
    good: list[str] = []  # owners that are as good as the winner since the start of the latest range
    for each, end in zip(winner.ranges, ends_of(winner.ranges), strict=True):
        equal = [name for name in owners if compared.about_equal(name, each.candidate, each.start, end)]
        still = [name for name in good if name in equal]
        good = still or equal
        if still:
            kept = ranges.pop()
            ranges.append(kept if kept.candidate in still else Range(kept.start, still[0]))
        else:
            ranges.append(each)
    return replace(winner, ranges=tuple(_without_short(_joined(ranges))))


def ends_of(ranges: Sequence[Range]) -> list[float]:
    """The ends of these ranges; that of the last is infinite."""
    return [*(float(each.start) for each in ranges[1:]), math.inf]


def short(start: int, end: float) -> bool:
    """Whether a range of sizes is shorter than an octave."""
    return end < 2 * start


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """Ranges whose neighbors have other owners."""
    return [*ranges[:1], *(each for before, each in pairwise(ranges) if each.candidate != before.candidate)]


def _without_short(ranges: list[Range]) -> list[Range]:
    """Without short ranges between two of one other owner."""
    for place in range(1, len(ranges) - 1):
        before, each, after = ranges[place - 1 : place + 2]
        if before.candidate == after.candidate and short(each.start, after.start):
            return _without_short(ranges[:place] + ranges[place + 2 :])
    return ranges
