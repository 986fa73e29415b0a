# SPDX-License-Identifier: Apache-2.0
"""Times as the core compares them, and the choices that follow from measured curves."""

from __future__ import annotations

import math

from mcr_dl import _C
from mcr_dl.tables.model import Range, Scale, Winner

_UNIT = 65536


def cost_of(microseconds: float) -> int:
    """A time as the core compares it: log2 of nanoseconds in 1/65536 (src/choose/curve.h)."""
    return round(math.log2(max(microseconds, 0.001) * 1000) * _UNIT)


def winners_of(scale: Scale) -> tuple[Winner, ...]:
    """The choices of `auto` by size, computed by the code that chooses. Excludes codecs, as they change results."""
    winners = []
    plain = [curve for curve in scale.curves if not curve.codec]
    for subject in dict.fromkeys(curve.subject for curve in plain):
        compared = scale.curves_of(subject)
        points = [[(sample.bytes, cost_of(scale.time_of(sample))) for sample in curve.samples] for curve in compared]
        ranges = [Range(start, compared[index].candidate) for start, index in _C.cheapest(points)]
        operation, types, async_op = subject
        winners.append(Winner(operation, types, tuple(ranges), async_op))
    return tuple(winners)
