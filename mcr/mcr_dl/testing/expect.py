# SPDX-License-Identifier: Apache-2.0
"""Expected errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def expect(error: type[Exception], call: Callable[[], Any], *words: str) -> Exception:
    """Check that the call raises exactly this class with a text that has all the words; returns the exception."""
    caught = None
    result = None
    try:
        result = call()
    except error as exception:
        caught = exception
    if caught is None:
        raise AssertionError(f"expected {error.__name__}, returned {result!r}")
    assert type(caught) is error, f"expected {error.__name__}, got {caught!r}"
    for word in words:
        assert word in str(caught), f"{word!r} is not in {caught}"
    return caught
