# SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation that are made from tables: the support matrix and the environment variables."""

from __future__ import annotations

import textwrap
from typing import Any

from mcr_dl import _C
from mcr_dl.base import variables


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


def support_matrix(group: _C.Group) -> str:
    """The support matrix of the group's backends, as Markdown."""
    reductions = "; ".join(
        f"{kind}: {' '.join(red for red in _C.reductions() if _C.reduction_defined(kind, red))}"
        for kind in ("int32", "float32", "bool", "complex64")
    )
    text = (
        "Generated from the table of operations (`src/base/ops.h`) by `make generate`; "
        "`mcr-info --support` prints it for this machine. It covers "
        "the backends for host memory; [NCCL](nccl.md#operations-and-element-types) has a page of its own. *native*: "
        "the library does it. *emulated*: MCR-DL does it with sends, receives and a local combination. *native; "
        "emulated: MIN MAX*: MIN and MAX are emulated, the other reductions are native. AVG counts as "
        "native where it is the library's SUM and a division. Cells cover the reductions that are defined for the "
        f"element type (for example {reductions}); floating-point types also take PREMUL_SUM, a SUM with a factor."
    )
    lines = ["# Support matrix", "", *textwrap.wrap(text, 120, break_on_hyphens=False)]
    for backend in group.backends:
        lines += ["", f"## {backend}", ""]
        found = support(group, backend)
        lines.append(f"| operation | {' | '.join(found)} |")
        lines.append("| --- |" + " --- |" * len(found))
        for title in next(iter(found.values())):
            lines.append(f"| {title} | {' | '.join(ways[title] for ways in found.values())} |")
    return "\n".join(lines) + "\n"


def environment() -> str:
    """The page of the environment variables, as Markdown."""
    lines = [
        "# Environment variables",
        "",
        "Set these variables before the program starts. MCR-DL reads most of them when the runtime starts. It reads",
        "those of groups, such as `MCR_DL_UNIFORM`, whenever a group is made, and `MCR_DL_DEEPSPEED` when DeepSpeed is",
        "imported and when it makes its backend. Rank 0 warns of any other variable whose name begins with",
        f"`{variables.PREFIX}`, and suggests the nearest name of this list. `make generate` makes this page from",
        "`mcr/mcr_dl/base/variables.py`.",
        "",
        "| variable | meaning | |",
        "| --- | --- | --- |",
        *(f"| `{each.name}` | {each.meaning} | [more]({each.page}) |" for each in variables.VARIABLES),
        "",
        "Variables of other projects that MCR-DL reads or sets:",
        "",
        "| variable | meaning |",
        "| --- | --- |",
        *(f"| {names} | {meaning} |" for names, meaning in variables.OTHERS),
    ]
    return "\n".join(lines) + "\n"
