# SPDX-License-Identifier: Apache-2.0
"""Pieces of the reports in docs/results."""

from __future__ import annotations

import textwrap

from mcr_dl.commands import sizes


def size_text(nbytes: int) -> str:
    """4 B, 64 KiB, 16 MiB; a larger size that is no multiple of a unit is rounded: 1.43 MiB."""
    text = sizes.size_text(nbytes)
    if text.isdecimal() and nbytes >= 1 << 10:
        text = sizes.short_size_text(nbytes)
    return f"{text} B" if text.isdecimal() else f"{text[:-1]} {text[-1]}iB"


def paragraph(text: str) -> list[str]:
    """The lines of a paragraph, at most 120 columns wide, and an empty one."""
    return [*textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False), ""]


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table whose first column holds text and whose other columns hold numbers."""
    align = ["---"] + ["---:"] * (len(header) - 1)
    return ["| " + " | ".join(cells) + " |" for cells in (header, align, *rows)] + [""]
