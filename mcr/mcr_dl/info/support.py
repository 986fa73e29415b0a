# SPDX-License-Identifier: Apache-2.0
"""Which backend has which operation, for which element types and reductions."""

from __future__ import annotations

from typing import Any

from mcr_dl import _C


def _cell(group: _C.Group, backend: str, op: dict[str, Any], dtype: str, vectored: bool) -> str:
    if not op["reduces"]:
        return group._support(backend, op["name"], dtype, "SUM", vectored)
    ways: dict[str, list[str]] = {"native": [], "emulated": []}
    for red in _C.reductions():
        way = group._support(backend, op["name"], dtype, red, vectored)
        if way in ways:
            ways[way].append(red)
    if not ways["emulated"]:
        return "native" if ways["native"] else "-"
    if not ways["native"]:
        return "emulated"
    return f"native; emulated: {' '.join(ways['emulated'])}"


Support = dict[str, dict[str, str]]
"""By element types with equal support, in one string, and by operation: who does it."""


def support(group: _C.Group, backend: str) -> Support:
    """The operations, types and reductions that a backend of the group supports."""
    forms = [(op, vectored) for op in _C.ops() for vectored in ((False, True) if op["vectored"] else (False,))]
    columns: dict[tuple[str, ...], list[str]] = {}
    for dtype in _C.dtypes():
        cells = tuple(_cell(group, backend, op, dtype, vectored) for op, vectored in forms)
        columns.setdefault(cells, []).append(dtype)
    titles = [op["name"] + (" (vectored)" if vectored else "") for op, vectored in forms]
    return {" ".join(dtypes): dict(zip(titles, cells, strict=True)) for cells, dtypes in columns.items()}
