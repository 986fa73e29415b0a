# SPDX-License-Identifier: Apache-2.0
"""Warnings, which show the program's line, and lines on the standard error."""

from __future__ import annotations

import contextlib
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


def say(text: str) -> None:
    """Print a line on the standard error, unless that is closed, or a pipe that no process reads."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{text}\n")  # at once: lines of several ranks stay apart
            sys.stderr.flush()
