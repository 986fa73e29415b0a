# SPDX-License-Identifier: Apache-2.0
"""``python -m mcr_dl.info``: versions, launcher, MPI and NCCL, tuning table, backends and what each supports."""

from __future__ import annotations

import platform

import torch
from rich.markdown import Markdown
from rich.table import Table

from mcr_dl import _C, _groups, _launch, _mpi_library, _nccl_library, _runtime
from mcr_dl._backends import available_backends
from mcr_dl._console import Console
from mcr_dl._generate import support_matrix
from mcr_dl.bench import _arguments as arguments


def _mpi_text() -> str:
    try:
        library = _mpi_library.find()
    except _mpi_library.MpiLibraryError as error:
        return f"none: {error}"
    return f"{library.family}, {library.path} ({library.how})"


def _nccl_text(state: str) -> str:
    """The library, its version and the functions that it lacks, from the backend's state."""
    try:
        library = _nccl_library.find()
    except _nccl_library.NcclLibraryError as error:
        return f"none: {error}"
    return f"{library.path} ({library.how}); {state.partition(': ')[2]}"


def _tuning_text(world: _C.Group) -> str:
    knowledge = _runtime.state().knowledge
    candidates = f"; auto chooses from {', '.join(world.candidates)}"
    if knowledge is None or not knowledge.source:
        return f"none: measure one with `mcr-tune --quick`{candidates}"
    return f"{knowledge.source} ({', '.join(scale['name'] for scale in knowledge.scales)}){candidates}"


def _facts(world: _C.Group, status: dict[str, str]) -> Table:
    launch = _launch.detect()
    table = Table(title="MCR-DL", show_header=False, title_justify="left")
    table.add_row("mcr_dl", _C.__version__)
    table.add_row("torch", torch.__version__)
    table.add_row("Python", platform.python_version())
    table.add_row("launcher", f"{launch.launcher}, rank {launch.rank} of {launch.size}")
    table.add_row("MPI library", _mpi_text())
    table.add_row("NCCL library", _nccl_text(status["nccl"]))
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
    usable = [name for name in ("mpi", "gloo") if status.get(name, "").startswith("ok")]
    _runtime.init_process_group(usable or ["null"])
    world = _C.world()
    if world is not None and world.rank() == 0:
        console.print(_facts(world, status))
        console.print(_backend_table(status))
        console.print(Markdown(support_matrix(world)))
    _groups.destroy_process_group()


if __name__ == "__main__":
    main()
