# SPDX-License-Identifier: Apache-2.0
"""Lists with a number for each rank as a few blocks: what all ranks read should not grow with their number."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby


def numbered(values: Iterable[Hashable]) -> list[int]:
    """A number for each value, equal for equal ones, in the order in which they first occur."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def pack(numbers: Iterable[int]) -> list[list[int]]:
    """Blocks of (first number, how many numbers that follow each other, how often each)."""
    blocks: list[list[int]] = []
    for number, run in groupby(numbers):
        times = len(list(run))
        if blocks and number == blocks[-1][0] + blocks[-1][1] and times == blocks[-1][2]:
            blocks[-1][1] += 1
        else:
            blocks.append([int(number), 1, times])
    return blocks


def unpack(blocks: Iterable[Sequence[int]]) -> list[int]:
    """The numbers that were packed."""
    return [first + index for first, count, times in blocks for index in range(count) for _ in range(times)]
