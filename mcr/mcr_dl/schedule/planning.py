# SPDX-License-Identifier: Apache-2.0
"""The plan of a training step's partitions: made from times of all ranks, equal on all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mcr_dl import _C
from mcr_dl.base import agreement
from mcr_dl.runtime import changes
from mcr_dl.schedule import credit

PARTITIONS = (
    None,
    *(1 << power for power in range(23, 15, -1)),
)  # bytes; of equal ones the first, largest one is taken
CREDITS = (None, 8, 4, 2, 1)  # partitions in flight
RECORDED = 3  # training steps whose times count, after the first one
_REPETITIONS = 3
_IN_FLIGHT = 4


@dataclass(frozen=True)
class Plan:
    """The order of a step's partitions.

    ``order``: (piece, index), as issued. ``partition`` and ``credit``: bytes; None: without limit. ``step_time`` and
    ``program_order``: nanoseconds of a step by simulation, with this plan and with whole gradients in program order.
    ``gathers``: the pieces in the order of their all_gather, where that is an operation of its own.
    """

    order: tuple[tuple[int, int], ...]
    partition: int | None = None
    credit: int | None = None
    step_time: int | None = None
    program_order: int | None = None
    gathers: tuple[int, ...] = ()

    def __str__(self) -> str:
        """For the log."""
        limits = [f"{'unlimited' if size is None else f'{size} B'}" for size in (self.partition, self.credit)]
        times = ""
        if self.step_time and self.program_order:
            times = (
                f", {self.step_time / 1e6:.2f} ms a step by simulation, {self.program_order / 1e6:.2f} in program order"
            )
        return f"partition {limits[0]}, credit {limits[1]}{times}"


@dataclass
class Times:
    """What one rank records in some steps: when each piece's gradient is there, and what the forward pass takes."""

    pieces: int
    first_use: list[int] = field(default_factory=list)  # layers
    ready: list[list[int]] = field(default_factory=list)  # of each recorded step
    forward: list[list[int]] = field(default_factory=list)  # by layer
    backward: list[int] = field(default_factory=list)

    def medians(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "first_use": self.first_use,
            "ready": _columns(self.ready),
            "forward": _columns(self.forward),
            "backward": statistics.median_low(self.backward or [0]),
        }


def _columns(rows: Sequence[Sequence[int]]) -> list[int]:
    return [statistics.median_low(column) for column in zip(*rows, strict=True)]


def time_transfers(reduce: Callable[[torch.Tensor], _C.Work], largest: int) -> list[list[int]]:
    """[bytes, ns of one operation, ns of several in flight] at some sizes; a collective over the group."""
    sizes = sorted({min(size, max(largest, 4096)) for size in (1 << 12, 1 << 15, 1 << 18, 1 << 20, 1 << 22)})
    rows = []
    for size in sizes:
        memory = [torch.zeros(size // 4) for _ in range(_IN_FLIGHT)]
        one, several = [], []
        for _ in range(_REPETITIONS + 1):
            one.append(_time(reduce, memory[:1]))
            several.append(_time(reduce, memory))
        rows.append([size, statistics.median_low(one[1:]), statistics.median_low(several[1:])])
    return rows


def _time(reduce: Callable[[torch.Tensor], _C.Work], tensors: list[torch.Tensor]) -> int:
    start = time.perf_counter_ns()
    for work in [reduce(tensor) for tensor in tensors]:
        work.wait()
    return time.perf_counter_ns() - start


def _transfer(rows: Sequence[Sequence[int]]) -> credit.Transfer:
    points, latencies, before = [], [], 1
    for size, one, several in rows:
        occupied = max((several - one) // (_IN_FLIGHT - 1), before)  # never less than a smaller size's
        points.append((size, occupied))
        latencies.append(max(one - occupied, 0))
        before = occupied
    return credit.Transfer(tuple(points), statistics.median_low(latencies))


def _medians(values: list[Any]) -> dict[str, Any]:
    """Medians over the ranks; the first-use order is rank 0's."""
    agreement.require_equal("ByteScheduler: sizes of gradients", [value["sizes"] for value in values])
    agreed = {"first_use": values[0]["first_use"]}
    for name in ("ready", "forward"):
        agreed[name] = _columns([value[name] for value in values])
    agreed["backward"] = statistics.median_low([value["backward"] for value in values])
    agreed["transfers"] = [_columns(rows) for rows in zip(*(value["transfers"] for value in values), strict=True)]
    return agreed


def make(
    group: _C.Group,
    times: Times,
    transfers: list[list[int]],
    layers: Sequence[Sequence[int]],
    sizes: Sequence[int],
    limits: tuple[int | str | None, int | str | None],
    halves: bool = False,
) -> Plan:
    """The plan of all ranks: a collective over the group, after equal collectives.

    ``layers``: the pieces of each layer; ``sizes``: bytes of each piece. ``limits``: partition and credit in bytes,
    None for no limit, or "auto" for the one with the shortest simulated step. ``halves``: each partition is reduced by
    reduce_scatter as soon as it is ready, and by all_gather in the order of the forward pass.
    """
    mine = {**times.medians(), "transfers": transfers, "sizes": list(sizes)}
    agreed = changes.agree(group, "ByteScheduler", mine, _medians)
    unseen = [layer for layer in range(len(layers)) if layer not in agreed["first_use"]]
    by_use: list[int] = []
    durations: list[int] = []
    for layer in [*unseen, *agreed["first_use"]]:  # layers without a forward pass of their own are needed at its start
        by_use += layers[layer]
        durations += [0] * (len(layers[layer]) - 1) + [agreed["forward"][layer]]
    simulated = [
        credit.Layer(agreed["ready"][piece], duration, sizes[piece])
        for piece, duration in zip(by_use, durations, strict=True)
    ]
    if halves:
        size, window = (None if limit == "auto" else limit for limit in limits)
        partition, in_flight = (None if limit is None else int(limit) for limit in (size, window))
        plain = credit.simulate(
            simulated, _transfer(agreed["transfers"]), partition=partition, credit=in_flight, priorities=False
        )
        as_ready = tuple((by_use[layer], index) for layer, index in plain.order)
        return Plan(as_ready, partition, in_flight, gathers=tuple(by_use))
    found = _settings(simulated, _transfer(agreed["transfers"]), agreed["backward"], limits)
    order = tuple((by_use[layer], index) for layer, index in found.timeline.order)
    return Plan(order, found.partition, found.credit, found.timeline.end, found.program_order)


def _settings(
    layers: list[credit.Layer],
    transfer: credit.Transfer,
    backward: int,
    limits: tuple[int | str | None, int | str | None],
) -> credit.Choice:
    partition, bytes_in_flight = limits
    if partition == "auto" and bytes_in_flight == "auto":
        return credit.choose(layers, transfer, partitions=PARTITIONS, credits_in_partitions=CREDITS, backward=backward)
    plain = credit.simulate(layers, transfer, priorities=False, backward=backward)
    best: credit.Choice | None = None
    for size in PARTITIONS if partition == "auto" else (partition,):
        choices = [None if each is None or size is None else each * int(size) for each in CREDITS]
        for limit in choices if bytes_in_flight == "auto" else [bytes_in_flight]:
            cut = None if size is None else int(size)
            window = None if limit is None else int(limit)
            found = credit.simulate(layers, transfer, partition=cut, credit=window, backward=backward)
            if best is None or found.end < best.timeline.end:
                best = credit.Choice(cut, window, found, plain.end)
    assert best is not None
    return best
