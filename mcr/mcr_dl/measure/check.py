# SPDX-License-Identifier: Apache-2.0
"""Checks at the start of a job that calls take about as long as the tuning table says."""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

import torch
from torch.distributed import ReduceOp

from mcr_dl import _C
from mcr_dl.tables.winners import microseconds_of

_SIZES = (4 << 10, 1 << 20)
_BATCHES = 10
_BATCH_SECONDS = 0.001  # by the table
_MOST_CALLS = 100  # in a batch
_FACTOR = 2.0


class Deviation(NamedTuple):
    """An all_reduce whose time differs from the table's by more than a factor of two."""

    nbytes: int
    candidate: str
    measured_us: float
    expected_us: float

    @property
    def faster(self) -> bool:
        """Whether the call takes less time than the table says."""
        return self.measured_us < self.expected_us

    def __str__(self) -> str:
        return (
            f"all_reduce of {self.nbytes} bytes on {self.candidate} takes {self.measured_us:.1f} us, expected about "
            f"{self.expected_us:.1f} us"
        )


def deviations(world: _C.Group, group: _C.Group) -> list[Deviation]:
    """The calls compared, if all of them are more than twice as slow, or as fast, as measured; else none. Collective.

    One slow size alone says little: another program may have had the core for a moment.

    Makes a few calls on ``group``, which has the ranks and backends of ``world``. The result is equal on all ranks: the
    table and thus the candidates and calls are, and the largest time over the ranks counts.
    """
    found: list[Deviation] = []
    compared = 0
    for nbytes in _SIZES:
        choice = world._explain("all_reduce", nbytes, "float32", "SUM", "cpu")
        name = choice["chosen"]
        cost = choice["candidates"].get(name)
        if cost is None:
            continue
        compared += 1
        expected = microseconds_of(cost)
        calls = min(int(_BATCH_SECONDS * 1e6 / expected) + 1, _MOST_CALLS)
        slowest = torch.tensor([_least(group, name, nbytes, calls)], dtype=torch.float64, device="cpu")
        _C.all_reduce(slowest, op=ReduceOp.MAX, group=group, backend=name)
        measured = slowest.item()
        if not 1 / _FACTOR <= measured / expected <= _FACTOR:
            found.append(Deviation(nbytes, name, measured, expected))
    return found if len(found) == compared and len({each.faster for each in found}) == 1 else []


def _least(group: _C.Group, candidate: str, nbytes: int, calls: int) -> float:
    """The time of a call in µs, as the shortest mean of a batch, which other load on the machine changes least."""
    tensor = torch.zeros(nbytes // 4, dtype=torch.float32, device="cpu")
    means = []
    for _ in range(_BATCHES):
        begin = perf_counter()
        for _ in range(calls):
            _C.all_reduce(tensor, group=group, backend=candidate)
        means.append((perf_counter() - begin) / calls)
    return min(means) * 1e6
