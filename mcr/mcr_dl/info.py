# SPDX-License-Identifier: Apache-2.0
"""``python -m mcr_dl.info``: versions, launcher, MPI and NCCL, tuning table, backends and what each supports."""

from __future__ import annotations

import platform

import torch
from rich.markdown import Markdown
from rich.table import Table

from mcr_dl import _C
from mcr_dl._generate import support_matrix
from mcr_dl.base import launcher
from mcr_dl.commands import arguments
from mcr_dl.commands.console import Console
from mcr_dl.groups import default_group
from mcr_dl.libraries import null, registry
from mcr_dl.libraries.registry import available_backends
from mcr_dl.runtime import state


def _tuning_text(world: _C.Group) -> str:
    knowledge = state.current().knowledge
    candidates = f"; auto chooses from {', '.join(world.candidates)}"
    if knowledge is None or not knowledge.source:
        return f"none: measure one with `mcr-tune --quick`{candidates}"
    return f"{knowledge.source} ({', '.join(scale['name'] for scale in knowledge.scales)}){candidates}"


def _facts(world: _C.Group, status: dict[str, str]) -> Table:
    launch = launcher.detect()
    table = Table(title="MCR-DL", show_header=False, title_justify="left")
    table.add_row("mcr_dl", _C.__version__)
    table.add_row("torch", torch.__version__)
    table.add_row("Python", platform.python_version())
    table.add_row("launcher", f"{launch.launcher}, rank {launch.rank} of {launch.size}")
    for library in registry.DESCRIBED:
        if library.title:
            table.add_row(library.title, library.found(status[library.name]))
    table.add_row("tuning table", _tuning_text(world))
    return table


def _backend_table(status: dict[str, str]) -> Table:
    table = Table(title="Backends", title_justify="left")
    table.add_column("name")
    table.add_column("state")
    for name, text in status.items():
        table.add_row(name, text, style="green" if text.startswith("ok") else "yellow")
    return table


def main() -> None:
    """Print the report; under a launcher, on rank 0 alone. A wrong argument: one line, exit code 2."""
    arguments.Parser(
        prog="python -m mcr_dl.info",
        description="Show versions, launcher, libraries, the tuning table, and which backends support what.",
    ).parse_args()
    console = Console()
    status = available_backends()
    usable = [name for name in registry.automatic("cpu") if status.get(name, "").startswith("ok")]
    default_group.init_process_group(usable or [null.LIBRARY.name])
    world = _C.world()
    if world is not None and world.rank() == 0:
        console.print(_facts(world, status))
        console.print(_backend_table(status))
        console.print(Markdown(support_matrix(world)))
    default_group.destroy_process_group()


if __name__ == "__main__":
    main()
