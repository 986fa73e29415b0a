# SPDX-License-Identifier: Apache-2.0
"""Warnings that show the program's line."""

from __future__ import annotations

import os
import sys
import warnings

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def warn(text: str) -> None:
    """Warn, with the line of the nearest caller outside this package."""
    level, frame = 1, sys._getframe()
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)
