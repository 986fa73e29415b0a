# SPDX-License-Identifier: Apache-2.0
"""Differences between two tuning tables: winners, times, entries of only one table, host and versions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.table import Table as Grid

from mcr_dl.commands.console import Console
from mcr_dl.commands.sizes import short_size_text
from mcr_dl.commands.text import time_text
from mcr_dl.tables.model import Curve, Scale, Subject, Table, Winner
from mcr_dl.tables.winners import Comparison, short, steady

_MOVED = 1.2  # medians differ if their ratio is larger than this, either way

Row = tuple[str, str, str, str]
"""The place, the subject, the value in the first table, the value in the second one."""


def _facts(a: Table, b: Table) -> Iterator[Row]:
    for title, one, two in (("host", a.host, b.host), ("software", a.software, b.software)):
        left, right = asdict(one), asdict(two)
        for name in left:
            if left[name] != right[name]:
                yield "table", f"{title}.{name}", str(left[name]), str(right[name])


def _presence(where: str, kind: str, left: set[str], right: set[str]) -> Iterator[Row]:
    for name in sorted(left ^ right):
        there = name in left
        yield where, f"{kind} {name}", "yes" if there else "-", "-" if there else "yes"


Piece = tuple[int, float, str, str]
"""A range of sizes, from and to, and its owner in each table."""


def _pieces(one: Winner, two: Winner) -> list[Piece]:
    """The ranges in which neither owner changes."""
    starts = sorted({each.start for winner in (one, two) for each in winner.ranges})
    pairs = [(start, one.at(start), two.at(start)) for start in starts]
    changes = [pair for index, pair in enumerate(pairs) if index == 0 or pair[1:] != pairs[index - 1][1:]]
    ends = [*(float(start) for start, _, _ in changes[1:]), math.inf]
    return [(start, end, left, right) for (start, left, right), end in zip(changes, ends, strict=True)]


def _winner_rows(where: str, scales: tuple[Scale, Scale], winners: tuple[Winner, Winner]) -> Iterator[Row]:
    """A row for each range of sizes where another candidate wins, by more than noise and for at least an octave."""
    one, two = (Comparison(scale, winner.subject) for scale, winner in zip(scales, winners, strict=True))

    def differs(piece: Piece) -> bool:
        start, end, left, right = piece
        return not (one.about_equal(right, left, start, end) and two.about_equal(left, right, start, end))

    pieces = _pieces(*(steady(scale, winner) for scale, winner in zip(scales, winners, strict=True)))
    for different, run in groupby(pieces, differs):
        found = list(run)
        if different and not short(found[0][0], found[-1][1]):
            for start, end, left, right in found:
                to = "inf" if math.isinf(end) else short_size_text(int(end))
                yield where, f"winner {short_size_text(start)}-{to}", left, right


def _curve_rows(where: str, one: Curve, two: Curve) -> Iterator[Row]:
    """One row if medians have changed: how many, and the one that changed most."""
    common = [nbytes for nbytes in one.medians if nbytes in two.medians]
    ratios = {nbytes: two.medians[nbytes] / one.medians[nbytes] for nbytes in common}
    moved = {nbytes: max(ratio, 1 / ratio) for nbytes, ratio in ratios.items() if max(ratio, 1 / ratio) > _MOVED}
    if not moved:
        return
    worst = max(moved, key=lambda nbytes: moved[nbytes])
    what = f"median of {one.label}: {len(moved)} of {len(common)} sizes, most at {short_size_text(worst)}"
    right = f"{time_text(two.medians[worst])} (x{ratios[worst]:.2f})"
    yield where, what, time_text(one.medians[worst]), right


def _group(scale: Scale, subject: Subject) -> dict[str, Curve]:
    return {curve.label: curve for curve in scale.all_curves_of(subject)}


def _scale_rows(one: Scale, two: Scale) -> Iterator[Row]:
    subjects = [curve.subject for scale in (one, two) for curve in scale.curves]
    subjects += [winner.subject for scale in (one, two) for winner in scale.winners]
    for subject in dict.fromkeys(subjects):
        where = f"{one.name}, {subject}"
        left, right = _group(one, subject), _group(two, subject)
        winners = one.winner_of(subject), two.winner_of(subject)
        if winners[0] is not None and winners[1] is not None:
            yield from _winner_rows(where, (one, two), (winners[0], winners[1]))
        yield from _presence(where, "curve of", set(left), set(right))
        for candidate in sorted(left.keys() & right.keys()):
            yield from _curve_rows(where, left[candidate], right[candidate])
    excluded = [{f"{each.label} from {each.where}" for each in s.excluded} for s in (one, two)]
    yield from _presence(one.name, "excluded:", *excluded)


def differences(a: Table, b: Table) -> list[Row]:
    """All differences, as rows of location, subject, first value and second value. Times are compared as ratios.

    Medians differ if one is more than 1.2 times the other, winners if another one is more than 2 % faster, for an
    octave of sizes or more; dates and settings are not compared.
    """
    rows = list(_facts(a, b))
    left, right = ({scale.key: scale for scale in table.scales} for table in (a, b))
    names = [{scale.name for scale in side.values()} for side in (left, right)]
    rows += _presence("table", "scale", *names)
    for key in sorted(left.keys() & right.keys()):
        rows += _scale_rows(left[key], right[key])
    return rows


def document(a: Table, b: Table, rows: Sequence[Row]) -> dict[str, Any]:
    """The tables and their differences as JSON."""
    named = [dict(zip(("where", "what", "a", "b"), row, strict=True)) for row in rows]
    return {"a": a.source, "b": b.source, "differences": named}


def show(a: Table, b: Table, rows: Sequence[Row], console: Console) -> None:
    """Print the differences of two tables."""
    grid = Grid(title=f"{len(rows)} differences", title_justify="left")
    for title in ("where", "what", "A", "B"):
        grid.add_column(title, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    console.print(grid if rows else "no differences")
    if rows:
        console.say(f"A: {a.source or 'the first table'}\nB: {b.source or 'the second table'}")
