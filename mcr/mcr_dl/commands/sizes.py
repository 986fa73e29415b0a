# SPDX-License-Identifier: Apache-2.0
"""Sizes in bytes as people write them: 4, 64K, 1M, 2G, in powers of 1024."""

from __future__ import annotations

import re

from mcr_dl.base.errors import InvalidArgumentError

_END = 2**63
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes of "4", "64K", "1.5M", "16MiB"; InvalidArgumentError for anything else."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]?)(?:i?B)?\s*", text, re.IGNORECASE | re.ASCII)
    size = float(match[1]) * _UNITS[match[2].upper()] if match else 0
    if not 1 <= size < _END:
        message = f"size: expected bytes as in 4, 64K, 1M or 2G, got {text.strip()!r}"
        raise InvalidArgumentError(message)
    return round(size)


def size_text(nbytes: int) -> str:
    """4, 64K, 16M; a size that is no multiple of a unit stays as it is."""
    for unit, scale in reversed(_UNITS.items()):
        if nbytes >= scale and nbytes % scale == 0:
            return f"{nbytes // scale}{unit}"
    return str(nbytes)


def short_size_text(nbytes: int) -> str:
    """Bytes with a unit and at most three digits: 4, 1K, 12.8K, 977K."""
    unit = max((name for name in _UNITS if nbytes >= 0.976 * _UNITS[name]), default="", key=lambda name: _UNITS[name])
    return f"{nbytes / _UNITS[unit]:.3g}{unit}"
