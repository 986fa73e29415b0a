# SPDX-License-Identifier: Apache-2.0
"""Waits of tests for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 20.0  # seconds; more means that nothing happens


def await_true(condition: Callable[[], bool], what: str = "") -> None:
    """Wait until the condition holds; AssertionError with the event's name (``what``) if that takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not seen within {PATIENCE:.0f} s: {what}"
        time.sleep(0.01)
