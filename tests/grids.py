# SPDX-License-Identifier: Apache-2.0
"""Topologies for tests: their documents and files."""

from __future__ import annotations

import json
from pathlib import Path
from string import ascii_lowercase
from typing import Any


def document(*dimensions: int | dict[str, Any], **more: Any) -> dict[str, Any]:
    """A topology whose dimensions, a, b, ..., have these sizes; or each of them is a whole row, with its name."""
    rows = [
        {"name": name, "size": each} if isinstance(each, int) else each
        for name, each in zip(ascii_lowercase, dimensions, strict=False)
    ]
    return {"format": "mcr-dl topology", "version": 1, "dimensions": rows, **more}


def write(path: Path, *dimensions: int | dict[str, Any], **more: Any) -> str:
    """Write that document to a file; returns its name."""
    path.write_text(json.dumps(document(*dimensions, **more)))
    return str(path)
