# SPDX-License-Identifier: Apache-2.0
"""``mcr-info``: versions, launcher, MPI and NCCL, tuning table, backends and what each supports."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from typing import Any

import torch
from rich.table import Table

from mcr_dl import _C
from mcr_dl.base import launcher, variables
from mcr_dl.base.errors import BackendUnavailableError, InvalidArgumentError
from mcr_dl.commands import arguments
from mcr_dl.commands.console import Console
from mcr_dl.groups import default_group, environment, lifecycle
from mcr_dl.info.support import support
from mcr_dl.libraries import null, registry
from mcr_dl.libraries.registry import available_backends
from mcr_dl.runtime import startup, state, topologies
from mcr_dl.tables import choice, rules


def _tuning_text(world: _C.Group) -> str:
    knowledge = state.current().knowledge
    candidates = f"; auto chooses from {', '.join(world.candidates)}"
    if not knowledge.source:
        off = os.environ.get(choice.VARIABLE) == "none"
        advice = f"{choice.VARIABLE} turns it off" if off else "measure one with `mcr-tune --quick`"
        return f"none: {advice}{candidates}"
    return f"{knowledge.source} ({', '.join(scale['name'] for scale in knowledge.scales)}){candidates}"


def _start(*, again: bool = False) -> dict[str, str]:
    """Start the backends that all ranks can use: those of this process may not exist on other hosts, or connect none.

    Returns rows of the report. If there are no such backends, one has the error, which all ranks get; then a backend
    that every process has starts. Rules and the topology may be for a job with other backends or more ranks.

    ``again``: the topology is left out already.
    """
    variables.leave_out_passes()
    text = os.environ.pop(rules.VARIABLE, "")
    rows = {"rules": text} if text else {}
    try:
        lifecycle.start("auto", automatic=startup.Automatic("cpu"))
    except BackendUnavailableError as error:
        lifecycle.start(null.LIBRARY.name)
        return {"start": str(error), **rows}
    except InvalidArgumentError as error:
        if again or "topology" not in str(error):
            raise
        # On all ranks, whether or not they have a topology: the error is one that they have agreed on.
        os.environ.pop(topologies.VARIABLE, None)
        return {"topology": f"not used: {error}", **_start(again=True), **rows}
    return rows


def _facts(world: _C.Group, status: dict[str, str], started: dict[str, str]) -> dict[str, str]:
    launch = launcher.detect()
    libraries = {one.title: one.found(status[one.name]) for one in registry.DESCRIBED if one.title}
    return {
        "mcr_dl": _C.__version__,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "launcher": f"{launch.launcher}, rank {launch.rank} of {launch.size}",
        **started,
        **libraries,
        "tuning table": _tuning_text(world),
    }


def _backend_table(status: dict[str, str]) -> Table:
    table = Table(title="Backends", title_justify="left")
    table.add_column("name")
    table.add_column("state", overflow="fold")
    for name, text in status.items():
        table.add_row(name, text, style="green" if text.startswith("ok") else "yellow")
    return table


def _support_table(world: _C.Group, backend: str) -> Table:
    """Operations down, element types with equal support across."""
    table = Table(title=f"Support: {backend}", title_justify="left")
    table.add_column("operation", no_wrap=True)
    found = support(world, backend)
    for dtypes in found:
        table.add_column(dtypes.replace(" ", "\n"), no_wrap=True)
    for operation in next(iter(found.values())):
        table.add_row(operation, *(ways[operation] for ways in found.values()))
    return table


def _report(world: _C.Group, status: dict[str, str], started: dict[str, str], *, whole: bool) -> None:
    console = Console()
    facts = Table(title="MCR-DL", show_header=False, title_justify="left")
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name, text in _facts(world, status, started).items():
        facts.add_row(name, text)
    console.print(facts)
    console.print(_backend_table(status))
    for backend in world.backends if whole else ():
        console.print_whole(_support_table(world, backend), 120)
    if not whole:
        console.say("mcr-info --support shows which backend has which operation, for which types.")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    text = "Show versions, launcher, libraries, the tuning table, and which backends work or why they do not."
    result = arguments.command("mcr-info", text)
    result.add_argument(
        "--support", action="store_true", help="also which backend has which operation, for which types"
    )
    arguments.add_json(result)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; under a launcher, on rank 0 alone. Exit code 2: bad input."""
    given = parser().parse_args(argv)
    return arguments.exit_code("mcr-info", lambda: _run(given))


def _run(given: argparse.Namespace) -> int:
    environment.require(passes=False)
    status = available_backends()
    started = _start()
    world = _C.world()
    assert world is not None
    if world.rank() == 0 and not arguments.write_json(given.json, lambda: _document(world, status, started)):
        _report(world, status, started, whole=given.support)
    default_group.destroy_process_group()
    return 0


def _document(world: _C.Group, status: dict[str, str], started: dict[str, str]) -> dict[str, Any]:
    found = {backend: support(world, backend) for backend in world.backends}
    facts = _facts(world, status, started)
    return {"facts": facts, "backends": status, "candidates": list(world.candidates), "support": found}
