# SPDX-License-Identifier: Apache-2.0
"""The input and the expected output of each operation on each rank, in elements of the message that it moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from mcr_dl.base.errors import UnsupportedError


class Segment(NamedTuple):
    """A piece of an output: elements of the message of rank `source` from `start` on; None: of a reduction.

    The reduction covers all ranks, or ranks 0 to `last`.
    """

    source: int | None
    start: int
    length: int
    last: int | None = None


@dataclass(frozen=True)
class Layout:
    """One rank's part. The output consists of its segments; `offset` locates the smaller tensor in the larger one."""

    input: int | None = None  # elements; None: no such tensor, or (if there is an output) one tensor is both
    output: int | None = None
    expected: tuple[Segment, ...] = ()
    input_counts: list[int] = field(default_factory=list)
    output_counts: list[int] = field(default_factory=list)
    offset: int | None = None
    peer: int | None = None


def split(total: int, parts: int) -> list[int]:
    """Split as evenly as possible, larger parts first."""
    size, larger = divmod(total, parts)
    return [size + (index < larger) for index in range(parts)]


class _Part:
    """The part of one rank. Each operation of the op table has one method."""

    def __init__(self, count: int, rank: int, ranks: int, root: int) -> None:
        self.count, self.rank, self.ranks, self.root = count, rank, ranks, root
        self.counts = split(count, ranks)
        self.starts = [0, *accumulate(self.counts)][:-1]
        self.own, self.start = self.counts[rank], self.starts[rank]

    def _one_tensor(self, *expected: Segment) -> Layout:
        return Layout(output=self.count, expected=expected)

    def broadcast(self) -> Layout:
        return self._one_tensor(Segment(self.root, 0, self.count))

    def all_reduce(self) -> Layout:
        return self._one_tensor(Segment(None, 0, self.count))

    def reduce(self) -> Layout:
        return self.all_reduce() if self.rank == self.root else self._one_tensor()

    def all_gather(self) -> Layout:
        # each rank's message is its own block
        segments = tuple(Segment(rank, 0, count) for rank, count in enumerate(self.counts))
        return Layout(self.own, self.count, segments, output_counts=self.counts, offset=self.start)

    def gather(self) -> Layout:
        return self.all_gather() if self.rank == self.root else Layout(self.own, output_counts=self.counts)

    def reduce_scatter(self) -> Layout:
        segment = Segment(None, self.start, self.own)
        return Layout(self.count, self.own, (segment,), input_counts=self.counts, offset=self.start)

    def scatter(self) -> Layout:
        segment = Segment(self.root, self.start, self.own)
        here = self.rank == self.root
        return Layout(
            self.count if here else None,
            self.own,
            (segment,),
            input_counts=self.counts,
            offset=self.start if here else None,
        )

    def _row(self, rank: int) -> list[int]:
        """The elements that a rank sends to each rank; rotated, so that all ranks also receive equally much."""
        return [self.counts[(other - rank) % self.ranks] for other in range(self.ranks)]

    def all_to_all(self) -> Layout:
        rows = [self._row(rank) for rank in range(self.ranks)]
        segments = tuple(Segment(rank, sum(row[: self.rank]), row[self.rank]) for rank, row in enumerate(rows))
        received = [row[self.rank] for row in rows]
        return Layout(self.count, self.count, segments, input_counts=rows[self.rank], output_counts=received, offset=0)

    def barrier(self) -> Layout:
        return Layout()

    def send(self) -> Layout:
        """Rank 0 and the root, or rank 1 if that is rank 0, send to each other; the others have nothing to do."""
        pair = (0, self.root or 1)
        if self.rank not in pair:
            return Layout()
        other = pair[1] if self.rank == 0 else 0
        return Layout(self.count, self.count, (Segment(other, 0, self.count),), peer=other)


def layout(op: str, count: int, rank: int, ranks: int, root: int) -> Layout:
    """The part of group rank `rank` in an operation of the op table on a message of `count` elements."""
    method: Callable[[], Layout] | None = getattr(_Part(count, rank, ranks, root), op, None)
    if method is None:
        message = f"{op} cannot be measured yet: expected a method {op} of _Part in {__name__}, got none"
        raise UnsupportedError(message)
    return method()
