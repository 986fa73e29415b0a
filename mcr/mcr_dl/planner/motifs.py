# SPDX-License-Identifier: Apache-2.0
"""The motif algebra of SYNDICATE (NSDI'23, section 4.2.1 and appendix A.1): smaller calls that together do one call.

An expression is a motif, or motifs in series or in parallel. A rule maps one motif to an expression, so rules compose:
``rewrite`` applies one to every motif of an expression that it fits.

This part of the planner is in Python, and the scheduler and the search are in the core: rules run once for each kind of
call and plan, on a few numbers and without data, never on a call's path; the search evaluates a plan tens of thousands
of times.

Memory: operations on one tensor (``all_reduce``, ``reduce``, ``broadcast``) work in place on one span of elements. The
others have one block for each rank; a rank's own block of an ``all_gather`` is its input, and that of a
``reduce_scatter`` its output. The parts of an ``all_reduce`` work on its tensor, so they need no other memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TypeAlias

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError

_CUTTABLE = [row for row in _C.ops() if row["cuttable"]]
ONE_TENSOR = tuple(row["name"] for row in _CUTTABLE if not row["vectored"])
BLOCKS = tuple(row["name"] for row in _CUTTABLE if row["vectored"])
ROOTED = tuple(row["name"] for row in _CUTTABLE if row["rooted"])

Span: TypeAlias = tuple[int, int]  # [first, behind the last)


@dataclass(frozen=True)
class Motif:
    """An operation of each of some disjoint groups of ranks, at the same time.

    ``groups``: ranks of the call's group. ``spans``: elements; one span, or one for each rank of the single group.
    ``root``: index in each group. ``shifts``: of an ``all_to_all``, rank i sends to the ranks (i + shift) modulo the
    group's size.
    """

    op: str
    groups: tuple[tuple[int, ...], ...]
    spans: tuple[Span, ...]
    root: int | None = None
    shifts: Span | None = None

    @property
    def elements(self) -> int:
        """The elements that it works on: of one rank, in all blocks together."""
        total = sum(end - begin for begin, end in self.spans)
        if self.shifts is None:
            return total
        return total * (self.shifts[1] - self.shifts[0]) // len(self.groups[0])

    def __str__(self) -> str:
        """Operation, elements, and what else makes it differ from the whole call."""
        text = f"{self.op} {self.elements}"
        if self.shifts is not None and self.shifts != (0, len(self.groups[0])):
            text += f" shifts {self.shifts[0]}-{self.shifts[1] - 1}"
        return text + (f" in {len(self.groups)} groups" if len(self.groups) > 1 else "")


@dataclass(frozen=True)
class Serial:
    """Parts of which each begins when the one before it is complete."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Parallel:
    """Parts in any order."""

    parts: tuple[Expression, ...]


Expression: TypeAlias = Motif | Serial | Parallel
Rule: TypeAlias = Callable[[Motif], Expression | None]  # None: it does not fit

# ---- calls as motifs


def call(op: str, count: int, ranks: int, root: int = 0) -> Motif:
    """A whole call as one motif. ``count``: elements of the tensor, or of each rank's block."""
    if op not in ONE_TENSOR + BLOCKS or count < 0 or ranks < 1 or not 0 <= root < ranks:
        message = f"motif: expected one of {', '.join(ONE_TENSOR + BLOCKS)}, a count from 0 on, ranks and one of them"
        raise InvalidArgumentError(f"{message} as root, got {op!r}, {count}, {ranks}, {root}")
    group = (tuple(range(ranks)),)
    if op in ONE_TENSOR:
        return Motif(op, group, ((0, count),), root if op in ROOTED else None)
    spans = tuple((rank * count, (rank + 1) * count) for rank in range(ranks))
    return Motif(op, group, spans, shifts=(0, ranks) if op == "all_to_all" else None)


def cut(span: Span, parts: int) -> tuple[Span, ...]:
    """``parts`` adjacent spans whose lengths differ by one at most; later ones may be empty."""
    begin, end = span
    whole, rest = divmod(end - begin, parts)
    ends = list(accumulate((whole + (part < rest) for part in range(parts)), initial=begin))
    return tuple(pairwise(ends))


# ---- rules


def segment(parts: int) -> Rule:
    """Cut the payload of any motif into at most ``parts`` motifs, which may run in any order; blocks are each cut.

    Source: "segmented all-reduce", "segmented all-to-all".
    """
    _require(parts, 2, "segment: parts")

    def rule(motif: Motif) -> Expression | None:
        count = min(parts, max((end - begin for begin, end in motif.spans), default=0))
        if count < 2:
            return None
        pieces = [cut(span, count) for span in motif.spans]
        return Parallel(tuple(replace(motif, spans=tuple(piece)) for piece in zip(*pieces, strict=True)))

    return rule


def ring(motif: Motif) -> Expression | None:
    """all_reduce = reduce_scatter -> all_gather. Source: "ring all-reduce"."""
    if motif.op != "all_reduce" or len(motif.groups) != 1 or len(motif.groups[0]) < 2:
        return None
    blocks = cut(motif.spans[0], len(motif.groups[0]))
    return Serial((Motif("reduce_scatter", motif.groups, blocks), Motif("all_gather", motif.groups, blocks)))


def tree(fan_in: int) -> Rule:
    """all_reduce = reduces in groups of ``fan_in`` ranks -> all_reduce of their roots, likewise -> broadcasts.

    Source: "tree all-reduce", applied until one root is left.
    """
    _require(fan_in, 2, "tree: fan_in")

    def rule(motif: Motif) -> Expression | None:
        if motif.op != "all_reduce" or len(motif.groups) != 1 or len(motif.groups[0]) < 2:
            return None
        ranks = motif.groups[0]
        groups = [ranks[first : first + fan_in] for first in range(0, len(ranks), fan_in)]
        larger = tuple(group for group in groups if len(group) > 1)
        inner = rule(replace(motif, groups=(tuple(group[0] for group in groups),)))
        down = Motif("reduce", larger, motif.spans, 0)
        up = Motif("broadcast", larger, motif.spans, 0)
        return Serial((down, up) if inner is None else (down, inner, up))

    return rule


def spline(peers: int) -> Rule:
    """Cut an all_to_all into motifs: in motif c, rank i sends to the ``peers`` ranks from i + c * peers on.

    The windows rotate with the rank, so that no rank receives from more than ``peers`` ranks at a time. Source:
    "splined all-to-all".
    """
    _require(peers, 1, "spline: peers")

    def rule(motif: Motif) -> Expression | None:
        if motif.shifts is None or motif.shifts[1] - motif.shifts[0] <= peers:
            return None
        begin, end = motif.shifts
        windows = [(first, min(first + peers, end)) for first in range(begin, end, peers)]
        return Parallel(tuple(replace(motif, shifts=window) for window in windows))

    return rule


def rewrite(expression: Expression, rule: Rule) -> Expression:
    """Apply a rule to every motif of an expression that it fits."""
    if isinstance(expression, Motif):
        found = rule(expression)
        return expression if found is None else found
    return replace(expression, parts=tuple(rewrite(part, rule) for part in expression.parts))


def _require(value: int, least: int, what: str) -> None:
    if value < least:
        raise InvalidArgumentError(f"{what}: expected {least} or more, got {value}")


# ---- what an expression consists of


def steps(expression: Expression) -> list[tuple[Motif, tuple[int, ...]]]:
    """The motifs of an expression, each with the indexes of those that must be complete before it."""
    found: list[tuple[Motif, tuple[int, ...]]] = []

    def add(part: Expression, after: tuple[int, ...]) -> tuple[int, ...]:
        if isinstance(part, Motif):
            found.append((part, after))
            return (len(found) - 1,)
        if isinstance(part, Parallel):
            return tuple(last for each in part.parts for last in add(each, after))
        for each in part.parts:
            after = add(each, after)
        return after

    add(expression, ())
    return found


def in_degree(motif: Motif) -> int:
    """How many ranks send to one rank within the motif, at most: what makes incast."""
    size = max(map(len, motif.groups), default=0)
    if size < 2:
        return 0
    if motif.root is not None:
        return size - 1 if motif.op == "reduce" else 1
    if motif.shifts is None:
        return 1  # a ring
    begin, end = motif.shifts
    return end - begin - (begin == 0)  # at shift 0 each rank is its own receiver
