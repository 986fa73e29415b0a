# SPDX-License-Identifier: Apache-2.0
"""The format of times, candidates and choices in reports."""

from __future__ import annotations

from collections.abc import Iterable

from mcr_dl.commands.sizes import short_size_text
from mcr_dl.tables.model import Scale, Winner
from mcr_dl.tables.winners import steady

# Okabe and Ito's colors, which most color-blind people can distinguish, without their yellow and black.
_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#808080")


def time_text(microseconds: float) -> str:
    """A time with three significant digits: 2.31 µs, 41.2 µs, 1.07 ms."""
    value, unit = microseconds, "µs"
    for larger in ("ms", "s"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def winners_text(scale: Scale, winner: Winner) -> str:
    """The fastest candidates without noise, from 0 bytes, then from the sizes given: mpi, 64K: gloo."""
    return ", ".join(
        f"{short_size_text(each.start)}: {each.candidate}" if each.start else each.candidate
        for each in steady(scale, winner).ranges
    )


def _mixed(colour: str, other: int, share: float) -> str:
    """A colour with a share of white (255) or black (0)."""
    parts = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(part + (other - part) * share):02x}" for part in parts)


def _shade(index: int) -> str:
    """The palette, then the palette lighter, darker, lighter still, and so on."""
    turn, place = divmod(index, len(_PALETTE))
    return _mixed(_PALETTE[place], 255 if turn % 2 else 0, 1 - 2 ** -((turn + 1) // 2))


def colours(names: Iterable[str]) -> dict[str, str]:
    """A different color (``#rrggbb``) for each name; equal sets of names get equal colors."""
    return {name: _shade(index) for index, name in enumerate(sorted(set(names)))}
