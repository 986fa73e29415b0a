# SPDX-License-Identifier: Apache-2.0
"""What the exchange with other libraries' tuning files has in common: rules that come in, choices that go out."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from mcr_dl import _C, _documents
from mcr_dl.tuning._text import size_text
from mcr_dl.tuning.table import Scale, Table, Winner

RULES = "MCR_DL_TUNE"
_NO_SIZE = 1 << 63  # from here on there are no messages
LARGEST = 4 * _documents.MIB
"""Bytes of another library's tuning file, at most."""


@dataclass(frozen=True)
class Rule:
    """A rule of ``MCR_DL_TUNE``: sizes from ``start`` up to, without, ``end`` bytes (None: all above)."""

    operation: str
    start: int
    end: int | None
    candidate: str

    def __str__(self) -> str:
        if self.start == 0 and self.end is None:
            return f"{self.operation}:*:{self.candidate}"
        end = "inf" if self.end is None else size_text(self.end, largest="G").lower()
        return f"{self.operation}:{size_text(self.start, largest='G').lower()}-{end}:{self.candidate}"


@dataclass
class Report:
    """What could not be carried over, one line for each field."""

    target: str
    lines: list[str] = field(default_factory=list)

    def lost(self, where: str, what: str, why: str = "") -> None:
        """Note a field that has no counterpart."""
        self.say(f"{where}: {what} has no counterpart in {self.target}" + (f": {why}" if why else ""))

    def say(self, line: str) -> None:
        """Note anything else, once."""
        if line not in self.lines:
            self.lines.append(line)


def candidate_of(backend: str, parts: list[str], known: Collection[str] | None, where: str, report: Report) -> str:
    """``backend:part-part`` of as many of the parts as make a known candidate (None: all of them do)."""
    for count in range(len(parts), -1, -1):
        name = f"{backend}:{'-'.join(parts[:count])}" if count else backend
        if known is None or name in known or not count:
            for part in parts[count:]:
                report.lost(where, repr(part), f"{backend} has no such variant here")
            return name
    raise AssertionError("unreachable: no parts are always a candidate")


def rules_text(rules: list[Rule], report: Report) -> str:
    """The rules as a value for ``MCR_DL_TUNE``, where the last one that fits a call counts.

    The name of an operation stands for its vectored form too. So the rules of vectored forms come last.
    """
    rules = [replace(rule, end=None) if rule.end is not None and rule.end >= _NO_SIZE else rule for rule in rules]
    for rule in rules:
        if rule.start >= _NO_SIZE or (rule.end is not None and rule.end <= rule.start):
            report.say(f"{rule}: no size is in this range, the rule is left out")
    rules = [rule for rule in rules if rule.start < (_NO_SIZE if rule.end is None else rule.end)]
    known = _C.operations()
    for name in dict.fromkeys(rule.operation for rule in rules):
        if f"{name}v" in known:
            report.say(f"the rules for {name} hold for {name}v too")
    vectored = {name for name in known if name.endswith("v") and name[:-1] in known}
    return "#".join(str(rule) for rule in sorted(rules, key=lambda rule: rule.operation in vectored))


@dataclass(frozen=True)
class Choice:
    """A range that a variant of the wanted backend wins: from ``start`` up to, without, ``end`` bytes (None: all)."""

    scale: Scale
    operation: str
    start: int
    end: int | None
    variant: str

    @property
    def where(self) -> str:
        """For people: scale, operation and range."""
        return _where(self.scale, self.operation, self.start, self.end)


def _where(scale: Scale, operation: str, start: int, end: int | None) -> str:
    return f"{scale.name}, {operation}, {size_text(start)}-{'inf' if end is None else size_text(end)}"


def _one_class(scale: Scale, operation: str, dtype_class: str, report: Report) -> Winner:
    """The winner to export of an operation: other formats know no element types."""
    winners = [each for each in scale.winners if each.operation == operation]
    chosen = next((each for each in winners if each.dtype_class == dtype_class), winners[0])
    if chosen.dtype_class not in (dtype_class, "any"):
        report.say(
            f"{scale.name}, {operation}: no winners for {dtype_class}, those for {chosen.dtype_class} are exported"
        )
    for other in winners:
        if other.ranges != chosen.ranges:
            why = f"{chosen.dtype_class}'s winners are exported, and differ"
            report.lost(f"{scale.name}, {operation}", f"the element types {other.dtype_class}", why)
    return chosen


def choices(
    table: Table, backend: str, dtype_class: str, name_of: Callable[[str], str | None], report: Report
) -> list[Choice]:
    """The ranges that the backend wins, of operations that have a name there; the others are reported."""
    found = []
    for scale in table.scales:
        for operation in dict.fromkeys(winner.operation for winner in scale.winners):
            winner = _one_class(scale, operation, dtype_class, report)
            ends = [*(each.start for each in winner.ranges[1:]), None]
            for each, end in zip(winner.ranges, ends, strict=True):
                owner, _, variant = each.candidate.partition(":")
                where = _where(scale, operation, each.start, end)
                if owner != backend:
                    report.lost(where, each.candidate)
                elif name_of(operation) is None:
                    report.lost(where, operation)
                else:
                    found.append(Choice(scale, operation, each.start, end, variant))
    return found
