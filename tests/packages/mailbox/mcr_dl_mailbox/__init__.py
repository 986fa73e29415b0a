# SPDX-License-Identifier: Apache-2.0
"""The backend ``mailbox``: ``mcr_dl.init("mailbox")``."""

from __future__ import annotations

from pathlib import Path


def module_path() -> str:
    """The path of the module, for mcr_dl."""
    return str(Path(__file__).with_name("mailbox.so"))
