# SPDX-License-Identifier: Apache-2.0
"""Whole numbers among the arguments of a program."""

from __future__ import annotations

from typing import TypeGuard


def is_whole(value: object, least: int, most: int | None = None) -> TypeGuard[int]:
    """Whether a value is a whole number from ``least`` to ``most``. True and False, which are ints, are not."""
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return least <= value and (most is None or value <= most)
