# SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation that are made from tables: the support matrix and the environment variables."""

from __future__ import annotations

import textwrap

from mcr_dl import _C
from mcr_dl.base import variables
from mcr_dl.info.support import support


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
