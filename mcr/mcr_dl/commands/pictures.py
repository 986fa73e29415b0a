# SPDX-License-Identifier: Apache-2.0
"""The style of the pictures of all commands, and their files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from mcr_dl.base.documents import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def save_figure(figure: Figure, path: str | os.PathLike[str], **settings: Any) -> None:
    """Write a figure to a file, whose suffix determines the format, with ``settings`` of matplotlib's ``savefig``.

    Raises OSError, which names the file, if it cannot be written.
    """
    with writing(path):
        figure.savefig(path, **settings)
