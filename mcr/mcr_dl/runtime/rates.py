# SPDX-License-Identifier: Apache-2.0
"""The rates of a topology's dimensions, as plans of collectives need them: given with the topology, or measured."""

from __future__ import annotations

from time import perf_counter_ns
from typing import NamedTuple

import torch

from mcr_dl import _C

_SIZES = (16 << 10, 2 << 20)  # bytes of one rank's input
_ROUNDS = 6
_PS_PER_NS = 1000
_NS_PER_S = 10**9


class Row(NamedTuple):
    """A dimension of a network as the core's planner reads it, in whole numbers (``networks.Dimension.row``)."""

    kind: str
    size: int
    bandwidth: int  # bytes per second of one rank in one direction
    latency: int  # picoseconds
    links: int


def measure(group: _C.Group, candidate: str) -> list[int]:
    """The times in ns of a reduce_scatter of each of two sizes on a line; a collective over the line."""
    size, found = group.size(), []
    for nbytes in _SIZES:
        given = torch.zeros(nbytes // 4 // size * size)
        taken = torch.empty(given.numel() // size)
        times = []
        for _ in range(_ROUNDS + 1):  # the first one connects and warms up
            begin = perf_counter_ns()
            _C.reduce_scatter_tensor(taken, given, torch.distributed.ReduceOp.SUM, group, False, backend=candidate)
            times.append(perf_counter_ns() - begin)
        found.append(min(times[1:]))
    return found


def row(size: int, bandwidth: int, latency: int, times: list[list[int]]) -> Row:
    """A dimension from its bandwidth (bytes/s) and latency (ns), where they are not 0, else from times of all ranks.

    An operation is one step, which sends (size - 1) / size of the data: two measured sizes tell no more.
    """
    small, large = (max(1, *column) for column in zip(*times, strict=True))
    sent = (_SIZES[1] - _SIZES[0]) * (size - 1) // size
    measured = sent * _NS_PER_S // max(1, large - small)
    return Row("fully_connected", size, bandwidth or max(1, measured), (latency or small) * _PS_PER_NS, 1)
