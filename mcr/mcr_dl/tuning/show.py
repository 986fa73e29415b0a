# SPDX-License-Identifier: Apache-2.0
"""A tuning table in the terminal: Table II of the MCR-DL paper (IPDPS 2023) for each operation."""

from __future__ import annotations

from typing import Any

from rich.table import Table as Grid
from rich.text import Text

from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.commands.console import Console
from mcr_dl.commands.sizes import short_size_text
from mcr_dl.commands.text import colours, time_text
from mcr_dl.tables import codecs
from mcr_dl.tables.choice import costs_of
from mcr_dl.tables.model import Scale, Subject, Table, content
from mcr_dl.tables.winners import steady


def select(table: Table, names: list[str] | None) -> list[Subject]:
    """The table's subjects, restricted to these operations (None: all).

    InvalidArgumentError lists the measured operations if one of the names is not among them.
    """
    known = list(dict.fromkeys(each.operation for each in table.subjects))
    for name in names or ():
        if not known:
            raise InvalidArgumentError("operation: the table has no measurements: make them with mcr-tune")
        if name not in known:
            raise InvalidArgumentError(f"operation: expected one of the table's ({', '.join(known)}), got {name!r}")
    return [each for each in table.subjects if names is None or each.operation in names]


def _sizes(table: Table, subject: Subject) -> list[int]:
    """All sizes that were measured or where the winner changes by more than noise."""
    sizes: set[int] = set()
    for scale in table.scales:
        sizes.update(*(curve.medians for curve in scale.curves_of(subject)))
        winner = scale.winner_of(subject)
        if winner is not None:
            sizes.update(each.start for each in steady(scale, winner).ranges[1:])
    return sorted(sizes) or [0]


def _cell(scale: Scale, subject: Subject, nbytes: int, colour: dict[str, str]) -> Text:
    winner = scale.winner_of(subject)
    if winner is None:
        return Text("-")
    name = steady(scale, winner).at(nbytes)
    curves = {curve.candidate: curve for curve in scale.curves_of(subject)}
    medians = curves[name].medians if name in curves else {}
    time = time_text(medians[nbytes]) if nbytes in medians else ""
    widest = max(map(len, colour))
    return Text(f"{name:{widest}}", style=f"bold {colour[name]}").append(f"{time:>9}", style="not bold default")


def _grid(table: Table, subject: Subject) -> Grid:
    dtypes = dict.fromkeys(curve.dtype for scale in table.scales for curve in scale.curves_of(subject))
    form = ", asynchronous" if subject.async_op else ""
    measured = f", measured with {', '.join(dtypes)}" if dtypes else ""
    grid = Grid(title=f"{subject.operation} ({subject.dtype_class}{form}{measured})", title_justify="left")
    grid.add_column("bytes", justify="right")
    for scale in table.scales:
        grid.add_column(scale.name)
    colour = colours(table.candidates)
    for nbytes in _sizes(table, subject):
        cells = [_cell(scale, subject, nbytes, colour) for scale in table.scales]
        grid.add_row(short_size_text(nbytes), *cells)
    return grid


def _facts(table: Table) -> list[tuple[str, str]]:
    host, software = table.host, table.software
    devices = "".join(f", {name}" for name in host.accelerators)
    versions = {"mcr_dl": software.mcr_dl, "torch": software.torch, "Python": software.python, **software.backends}
    rows = [
        ("table", table.source or "not in a file"),
        ("created", table.created),
        ("host", f"{host.cpu}, {host.cores} cores, {host.memory_gib} GiB{devices}, {host.system} ({host.fingerprint})"),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("settings", ", ".join(f"{name} {value}" for name, value in table.settings.items()) or "-"),
    ]
    rows += [("measured", f"{scale.name}: {scale.measured}") for scale in table.scales]
    return rows


def _codecs(table: Table, names: list[str] | None) -> list[tuple[str, str]]:
    """The sizes from which on a codec was measured to be cheaper than none."""
    return [
        ("codecs", f"{scale.name}: {operation} on {candidate}: " + ", ".join(_steps(ranges)))
        for scale in table.scales
        for operation, candidate, ranges in codecs.ranges_of(costs_of(scale))
        if names is None or operation in names
    ]


def _steps(ranges: codecs.Ranges) -> list[str]:
    return [name if start == 0 else f"from {short_size_text(start)}: {name}" for start, name in ranges]


def _excluded(table: Table, names: list[str] | None) -> list[tuple[str, str]]:
    return [
        ("excluded", f"{scale.name}: {each.label} from {each.where}: {each.reason}")
        for scale in table.scales
        for each in scale.excluded
        if names is None or each.operation in names
    ]


def document(table: Table, operation: str | None = None) -> dict[str, Any]:
    """The table as JSON, in its file's own form, restricted to ``operation`` as ``show`` is."""
    names = None if operation is None else [operation]
    select(table, names)
    whole = content(table)
    for scale in whole["scales"]:
        for part in ("curves", "winners", "excluded", "trials"):
            if part in scale:  # few scales have trials
                scale[part] = [row for row in scale[part] if names is None or row["operation"] in names]
    return {"file": table.source, **whole}


def show(table: Table, console: Console, operation: str | None = None) -> None:
    """Print the table: its machine, then for each operation the winners, by size and scale, and their medians.

    ``operation`` restricts it to one; InvalidArgumentError lists the existing ones if it is not among them.
    """
    names = None if operation is None else [operation]
    subjects = select(table, names)
    facts = Grid(show_header=False, box=None, padding=(0, 2, 0, 0))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, text in _facts(table) + _codecs(table, names) + _excluded(table, names):
        facts.add_row(name, text, style="yellow" if name == "excluded" else None)
    console.print(facts)
    for each in subjects:
        console.print()
        console.print_whole(_grid(table, each), 80)
