# SPDX-License-Identifier: Apache-2.0
"""Pieces of the reports in docs/results."""

from __future__ import annotations

import textwrap


def size_text(nbytes: int) -> str:
    """4 B, 64 KiB, 16 MiB."""
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes // scale} {unit}"
    return f"{nbytes} B"


def paragraph(text: str) -> list[str]:
    """The lines of a paragraph, at most 120 columns wide, and an empty one."""
    return [*textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False), ""]


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table whose first column holds text and whose other columns hold numbers."""
    align = ["---"] + ["---:"] * (len(header) - 1)
    return ["| " + " | ".join(cells) + " |" for cells in (header, align, *rows)] + [""]
