# SPDX-License-Identifier: Apache-2.0
"""The rates of a topology's dimensions, as plans of collectives need them: given with the topology, or measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import NamedTuple

import torch

from mcr_dl import _C

_SIZES = (16 << 10, 2 << 20)  # bytes of one rank's input
_ROUNDS = 6
_CLEARLY = 1.2  # an all_to_all is used if it is so many times as fast
_PS_PER_NS = 1000
_NS_PER_S = 10**9
_NOISE = 16  # the bytes of the large size count for this part of its time at least


class Row(NamedTuple):
    """A dimension of a network as the core's planner reads it, in whole numbers (``networks.Dimension.row``)."""

    kind: str
    size: int
    bandwidth: int  # bytes per second of one rank in one direction
    latency: int  # picoseconds
    links: int


class Rates(NamedTuple):
    """The ranks' agreement on a dimension. ``exchanges``: a reduce_scatter is faster made by an all_to_all."""

    row: Row
    exchanges: bool


Times = list[list[list[int]]]
"""The times of one rank in ns, by size, operation (reduce_scatter, all_to_all, all_gather) and round."""


def measure(line: _C.Group, candidate: str, barrier: Callable[[], object]) -> Times:
    """The times of this rank's calls on its line.

    A collective over all lines of the dimension: ``barrier``, over all of them, precedes each call, so that
    lines that share a network share it here too.
    """
    size, found = line.size(), []
    for nbytes in _SIZES:
        whole = torch.zeros(nbytes // 4 // size * size, dtype=torch.float32, device="cpu")
        other, part = torch.zeros_like(whole), whole[: whole.numel() // size].clone()
        calls: list[Callable[[], object]] = [
            partial(_C.reduce_scatter_tensor, part, whole, group=line, backend=candidate),
            partial(_C.all_to_all_single, other, whole, group=line, backend=candidate),
            partial(_C.all_gather_into_tensor, whole, part, group=line, backend=candidate),
        ]
        found.append([[_time(call, barrier) for _ in range(_ROUNDS)] for call in calls])
    return found


def _time(call: Callable[[], object], barrier: Callable[[], object]) -> int:
    barrier()
    begin = perf_counter_ns()
    call()
    return perf_counter_ns() - begin


def _slowest_node(ranks: Sequence[list[int]], nodes: Sequence[int]) -> int:
    # The ranks of a node share its networks, so the slowest of them counts in each round.
    slowest: dict[int, list[int]] = {}
    for node, rounds in zip(nodes, ranks, strict=True):
        slowest[node] = [*map(max, rounds, slowest.get(node, rounds))]
    return max(1, *(min(rounds) for rounds in slowest.values()))


def agreed(size: int, bandwidth: int, latency: int, times: Sequence[Times], nodes: Sequence[int]) -> Rates:
    """A dimension's rates: its bandwidth (bytes/s) and latency (ns), where they are not 0, else from all ranks' times.

    If both are given, nothing is measured, so plans and results do not depend on times.

    ``nodes`` has each rank's node. The fastest round of each node counts, and of all nodes the slowest.

    An operation counts as one step, which sends (size - 1) / size of the data. A reduce_scatter and an all_gather
    count alike: the mean of their times.
    """
    if bandwidth and latency:
        return Rates(_row(size, bandwidth, latency * _PS_PER_NS), exchanges=False)
    small, large = (
        [_slowest_node(ranks, nodes) for ranks in zip(*of_size, strict=True)] for of_size in zip(*times, strict=True)
    )
    exchanges = large[1] * _CLEARLY < large[0]
    before, after = ((each[1 if exchanges else 0] + each[2]) // 2 for each in (small, large))
    first, sent = _SIZES[0] * (size - 1) // size, (_SIZES[1] - _SIZES[0]) * (size - 1) // size
    rate = bandwidth or max(1, sent * _NS_PER_S // max(1, after - before, after // _NOISE))
    rest = latency * _PS_PER_NS or max(0, before * _PS_PER_NS - first * _NS_PER_S * _PS_PER_NS // rate)
    return Rates(_row(size, rate, rest), exchanges)


def _row(size: int, bandwidth: int, latency: int) -> Row:
    most = _C.themis_limits()
    return Row("fully_connected", size, min(bandwidth, most["bandwidth"]), min(latency, most["latency"]), 1)
