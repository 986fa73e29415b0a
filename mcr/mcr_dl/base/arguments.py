# SPDX-License-Identifier: Apache-2.0
"""Checks of the types of arguments that many functions take."""

from __future__ import annotations

import operator
from typing import Any

from mcr_dl.base.errors import InvalidTypeError


def whole(name: str, value: Any) -> int:
    """The number in an argument, such as an int or one of NumPy's. Raises InvalidTypeError if it is none."""
    try:
        return operator.index(value)
    except TypeError:
        message = f"{name}: expected a whole number, got {value!r}"
        raise InvalidTypeError(message) from None
