# SPDX-License-Identifier: Apache-2.0
"""The known name that a wrong one probably means."""

from __future__ import annotations

import difflib
from collections.abc import Mapping


def did_you_mean(got: str, known: Mapping[str, str]) -> str:
    """The known spelling whose key is nearest, as the end of an error; empty if none is near."""
    near = difflib.get_close_matches(got, known, n=1)
    return f"; did you mean {known[near[0]]}?" if near else ""
