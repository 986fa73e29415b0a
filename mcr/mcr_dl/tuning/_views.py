# SPDX-License-Identifier: Apache-2.0
"""``mcr-tune show | plot | diff | simulate``: shows, draws and compares tuning tables, and simulates networks."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.commands import arguments
from mcr_dl.commands.console import Console
from mcr_dl.tables import table as tables
from mcr_dl.tables.choice import VARIABLE
from mcr_dl.tables.host import host
from mcr_dl.tables.model import Table
from mcr_dl.tables.winners import computed
from mcr_dl.tuning import diff, plot, show, simulate


def add(parser: argparse.ArgumentParser) -> None:
    """Add the commands, whose name is then ``view``; None: no command."""
    views = parser.add_subparsers(dest="view", metavar="[COMMAND]", parser_class=arguments.Parser)

    def view(name: str, text: str) -> argparse.ArgumentParser:
        added = views.add_parser(name, help=text, description=text)
        if name in ("show", "plot"):
            text = "the table (default: this machine's in the user's cache)"
            added.add_argument("--table", metavar="FILE", help=text)
        if name in ("show", "diff"):
            arguments.add_json(added)
        return added

    shown = view("show", "Show the fastest candidate by operation, size and scale.")
    shown.add_argument("operation", nargs="?", help="only this operation (default: all)")
    drawn = view("plot", "Draw the cost curves with their crossings.")
    picture, text = arguments.checked(arguments.plot), "where the picture goes"
    drawn.add_argument("file", nargs="?", metavar="FILE.png", type=picture, help=f"{text} (or -o)")
    drawn.add_argument("-o", "--output", metavar="FILE.png", type=picture, help=text)
    names, text = arguments.checked(arguments.operation_names), "operations to draw (default: all)"
    drawn.add_argument("--ops", type=names, metavar="LIST", help=text)
    count, text = arguments.checked(arguments.count(1)), "draw the measurements for this number of ranks"
    drawn.add_argument("-n", type=count, metavar="RANKS", help=f"{text} (default: the largest)")
    compared = view("diff", "Show the differences between two tables.")
    compared.add_argument("a", metavar="A", help="the first table")
    compared.add_argument("b", metavar="B", help="the second table")
    simulate.add(view(simulate.NAME, "Simulate the time of a collective on a network of several dimensions."))


def _read(path: str | Path) -> Table:
    """The table as programs use it; says on stderr if it was edited."""
    table = tables.read(path)
    for line in tables.edited(table):
        print(f"mcr-tune: {line}", file=sys.stderr)
    return computed(table)


def _read_own(path: str | None) -> Table:
    """The named table, or this machine's in the cache; says on stderr if programs use another one."""
    if path is not None:
        return _read(path)
    named = os.environ.get(VARIABLE, "")
    if named == "none":
        print(f"mcr-tune: {VARIABLE} is none: programs use no table", file=sys.stderr)
    elif named:
        print(f"mcr-tune: {VARIABLE} names {named}, which programs use; --table {named} shows it", file=sys.stderr)
    own = tables.default_path(host())
    if not own.exists():
        raise InvalidArgumentError(f"there is no table of this machine ({own}); measure one with mcr-tune --quick")
    return _read(own)


def _refuse_file(operation: str | None) -> None:
    """Raise InvalidArgumentError for the name of a file where the name of an operation is expected."""
    if operation is None or not ("." in operation or os.sep in operation):
        return
    usage = "mcr-tune show --table FILE"
    if Path(operation).is_file():
        message = f"operation: expected a name such as all_reduce, got a file: {usage.replace('FILE', operation)}"
    else:
        message = (
            f"operation: expected a name such as all_reduce, got {operation!r}; if a table is meant, there is no such "
            f"file, and {usage} shows one"
        )
    raise InvalidArgumentError(message)


def run(given: argparse.Namespace) -> int:
    """Show, draw, compare or simulate; returns the exit code."""
    console = Console()
    if given.view == "show":
        _refuse_file(given.operation)
        table = _read_own(given.table)
        if not arguments.write_json(given.json, lambda: show.document(table, given.operation)):
            show.show(table, console, given.operation)
    elif given.view == "plot":
        file = given.output or given.file
        if file is None or (given.output and given.file):
            raise InvalidArgumentError("expected one picture, FILE.png or -o FILE.png")
        table = _read_own(given.table)
        plot.plot(table, file, given.ops, table.scale(ranks=given.n))
        console.say(f"wrote {file}")
    elif given.view == simulate.NAME:
        return simulate.run(given)
    else:
        a, b = _read(given.a), _read(given.b)
        rows = diff.differences(a, b)
        if not arguments.write_json(given.json, lambda: diff.document(a, b, rows)):
            diff.show(a, b, rows, console)
        return 1 if rows else 0
    return 0
