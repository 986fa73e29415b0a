# SPDX-License-Identifier: Apache-2.0
"""``mcr-tune show | plot | diff | import | export``: what was measured, for people and for other libraries."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from mcr_dl import _backends, _documents
from mcr_dl._errors import InvalidArgumentError
from mcr_dl.bench import _arguments as arguments
from mcr_dl.tuning import diff, formats, plot, show
from mcr_dl.tuning import table as tables
from mcr_dl.tuning._exchange import LARGEST
from mcr_dl.tuning.host import host
from mcr_dl.tuning.table import Table

NAMES = ("show", "plot", "diff", "import", "export")


def _view_parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(prog="mcr-tune")
    views = parser.add_subparsers(dest="view", required=True, parser_class=arguments.Parser)

    def view(name: str, text: str) -> argparse.ArgumentParser:
        added = views.add_parser(name, help=text, description=text)
        if name in ("show", "plot", "export"):
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
    taken = view("import", "Rules for MCR_DL_TUNE from another library's tuning file.")
    taken.add_argument("file", metavar="FILE")
    given = view("export", "The winners as another library's tuning file.")
    for each in (taken, given):
        each.add_argument("--format", required=True, choices=formats.names())
    return parser


def _read(path: str | None) -> Table:
    if path is not None:
        return tables.read(path)
    own = tables.default_path(host())
    if not own.exists():
        raise InvalidArgumentError(f"there is no table of this machine ({own}); measure one with mcr-tune --quick")
    return tables.read(own)


def _known_candidates() -> list[str]:
    """Backends, and the variants that this machine's table has: rules with others would be refused at init."""
    own = tables.default_path(host())
    return [*_backends.known_names(), *(tables.read(own).candidates if own.exists() else ())]


def run(argv: Sequence[str]) -> int:
    """Show or convert; returns the exit code."""
    given = _view_parser().parse_args(argv)
    console = Console()
    if given.view == "show":
        show.show(_read(given.table), console, given.operation)
    elif given.view == "plot":
        table = _read(given.table)
        plot.plot(table, given.file, given.ops, table.scale(ranks=given.n))
        console.print(f"wrote {given.file}", highlight=False, soft_wrap=True)
    elif given.view == "diff":
        return 1 if diff.diff(tables.read(given.a), tables.read(given.b), console) else 0
    else:
        if given.view == "import":
            taken = _documents.read_text(given.file, given.file, limit=LARGEST, pipes=True)
            text, report = formats.import_rules(taken, given.format, _known_candidates())
        else:
            text, report = formats.export_rules(_read(given.table), given.format)
        print(text)
        for line in report:
            print(f"mcr-tune: {line}", file=sys.stderr)
    return 0
