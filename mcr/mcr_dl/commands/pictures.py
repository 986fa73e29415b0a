# SPDX-License-Identifier: Apache-2.0
"""The style of the pictures of all commands."""

from __future__ import annotations

from typing import Any

INK = "#333333"


def style(font_size: float) -> dict[Any, Any]:  # matplotlib's type names each of its settings
    """Settings for ``matplotlib.rc_context``: ink instead of black, axes without a frame."""
    return {
        "font.size": font_size,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "text.color": INK,
        "text.parse_math": False,  # names of users and libraries may have dollar signs
        "xtick.color": INK,
        "ytick.color": INK,
    }
