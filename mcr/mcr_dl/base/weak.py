# SPDX-License-Identifier: Apache-2.0
"""Callbacks that do not keep their objects alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")


def weakly(method: Callable[P, object]) -> Callable[P, None]:
    """Make a function that calls the method as long as something else keeps the method's object."""
    handle = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        found = handle()
        if found is not None:
            found(*args, **kwargs)

    return call
