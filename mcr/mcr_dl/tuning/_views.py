# SPDX-License-Identifier: Apache-2.0
"""``mcr-tune show | plot | diff``: shows, draws and compares tuning tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.commands import arguments
from mcr_dl.commands.console import Console
from mcr_dl.tables import table as tables
from mcr_dl.tables.host import host
from mcr_dl.tables.table import Table
from mcr_dl.tuning import diff, plot, show

NAMES = ("show", "plot", "diff")


def _view_parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(prog="mcr-tune")
    views = parser.add_subparsers(dest="view", required=True, metavar="COMMAND", parser_class=arguments.Parser)

    def view(name: str, text: str) -> argparse.ArgumentParser:
        added = views.add_parser(name, help=text, description=text)
        if name in ("show", "plot"):
            added.add_argument("--table", metavar="FILE", help="the table (this machine's in the user's cache)")
        return added

    view("show", "Who wins, by operation, message size and scale.").add_argument("operation", nargs="?")
    drawn = view("plot", "Draw the cost curves with their crossings.")
    drawn.add_argument("file", metavar="FILE.png", type=arguments.checked(arguments.plot))
    drawn.add_argument("--ops", type=arguments.checked(arguments.operation_names), metavar="LIST")
    drawn.add_argument(
        "-n", type=arguments.checked(arguments.count(1)), metavar="RANKS", help="which scale (the largest)"
    )
    compared = view("diff", "What differs between two tables.")
    compared.add_argument("a", metavar="A")
    compared.add_argument("b", metavar="B")
    return parser


def _read(path: str | None) -> Table:
    if path is not None:
        return tables.read(path)
    own = tables.default_path(host())
    if not own.exists():
        raise InvalidArgumentError(f"there is no table of this machine ({own}); measure one with mcr-tune --quick")
    return tables.read(own)


def run(argv: Sequence[str]) -> int:
    """Show, draw or compare; returns the exit code."""
    given = _view_parser().parse_args(argv)
    console = Console()
    if given.view == "show":
        show.show(_read(given.table), console, given.operation)
    elif given.view == "plot":
        table = _read(given.table)
        plot.plot(table, given.file, given.ops, table.scale(ranks=given.n))
        console.say(f"wrote {given.file}")
    else:
        return 1 if diff.diff(tables.read(given.a), tables.read(given.b), console) else 0
    return 0
