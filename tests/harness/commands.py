# SPDX-License-Identifier: Apache-2.0
"""Commands that run in the process of a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest


def refused(main: Callable[[list[str]], object], words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The error that a command prints for these words; it prints nothing else, and ends with exit code 2."""
    try:
        code = main(list(words))
    except SystemExit as end:
        code = end.code
    out, error = capsys.readouterr()
    assert (code, out) == (2, ""), error
    return error
