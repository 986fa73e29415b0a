# SPDX-License-Identifier: Apache-2.0
"""The plan of a training step's partitions: made from times of all ranks, equal on all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from mcr_dl import _C
from mcr_dl.base import agreement
from mcr_dl.runtime import changes
from mcr_dl.schedule.bytescheduler import credit
from mcr_dl.schedule.bytescheduler.issue import Issuer, Partition

PARTITIONS = (None, *(1 << power for power in range(23, 15, -1)))  # bytes
CREDITS = (None, 4, 2, 1)  # partitions in flight
JOINS = (0, 1 << 17, 1 << 18, 1 << 19, 1 << 21)  # bytes
RECORDED = 3  # training steps whose times count, after the first one
_BUCKETS = (1 << 20, 25 << 20)  # bytes of DistributedDataParallel's first bucket, and of the others
SHORTLIST = 6  # plans with priorities that are worth measuring
GAIN = 0.01  # a plan takes the place of program order, or of a measured one, if it saves more
_MOST_PARTITIONS = 1024  # of a model
_REPETITIONS = 3
_IN_FLIGHT = 4
_NAP = 2e-4  # seconds


class Settings(NamedTuple):
    """The settings of a plan; its order follows from them and the costs of the model."""

    join: int = 0
    partition: int | None = None
    credit: int | None = None
    priorities: bool = True


@dataclass(frozen=True)
class Plan:
    """The order of a step's partitions.

    ``order``: (piece, index), as issued. ``settings``: ``partition``, ``credit``, ``join`` and ``priorities``.
    ``step_time`` and ``program_order``: nanoseconds of a step by simulation, with this plan and with whole gradients in
    program order. ``members``: the gradients of each piece, by the module's order; empty: each is a piece.
    """

    order: tuple[tuple[int, int], ...]
    settings: Settings = field(default_factory=Settings)
    step_time: int | None = None
    program_order: int | None = None
    members: tuple[tuple[int, ...], ...] = ()

    @property
    def partition(self) -> int | None:
        """Bytes of a partition at most; None: without limit."""
        return self.settings.partition

    @property
    def credit(self) -> int | None:
        """Bytes in flight at most; None: without limit."""
        return self.settings.credit

    @property
    def join(self) -> int:
        """Bytes up to which gradients that the forward pass needs one after the other are one piece.

        In program order, those that a bucket must reach.
        """
        return self.settings.join

    @property
    def priorities(self) -> bool:
        """True: the order of the forward pass; False: that of the backward pass."""
        return self.settings.priorities

    def __str__(self) -> str:
        """For the log."""
        limits = [f"{'unlimited' if size is None else f'{size} B'}" for size in (self.partition, self.credit)]
        text = f"partition {limits[0]}, credit {limits[1]}"
        if self.join:
            text += f", {'joined up to' if self.priorities else 'buckets of'} {self.join} B"
        if not self.priorities:
            text += ", program order"
        if self.step_time and self.program_order:
            text += f", {self.step_time / 1e6:.2f} ms a step by simulation"
            text += f", {self.program_order / 1e6:.2f} in program order"
        return text


@dataclass
class Times:
    """One rank's records of some steps: when each piece's gradient is there, and the time of the forward pass."""

    first_use: list[int] = field(default_factory=list)  # layers
    ready: list[list[int]] = field(default_factory=list)  # of each recorded step
    forward: list[list[int]] = field(default_factory=list)  # by layer
    backward: list[int] = field(default_factory=list)

    def add(self, ready: list[int], layers: int, seen: dict[int, int], end: int) -> None:
        """Add a step. ``seen``: when the forward pass came to each layer; ``end``: when it ended."""
        ends = dict(zip(seen, [*list(seen.values())[1:], end], strict=False))
        forward = [0] * layers
        for layer, begin in seen.items():
            forward[layer] = max(ends[layer] - begin, 0)
        self.ready.append(ready)
        self.forward.append(forward)
        self.backward.append(time.perf_counter_ns() - end)

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


def time_transfers(start: Callable[[torch.Tensor], _C.Work], largest: int) -> list[list[int]]:
    """[bytes, ns of an operation that waits for the one before it, ns of one of several in flight] at some sizes.

    A collective over the group. The operations are issued as those of a step.
    """
    sizes = sorted({min(size, max(largest, 4096)) for size in (1 << 12, 1 << 15, 1 << 18, 1 << 20, 1 << 22)})
    rows = []
    for size in sizes:
        issuer, memory = _flight(start, size)
        one, several = [], []
        for _ in range(_REPETITIONS + 1):
            one.append(_duration(issuer, memory, size))
            several.append(_duration(issuer, memory, None))
        rows.append([size, statistics.median_low(one[1:]), statistics.median_low(several[1:])])
    return rows


def time_in_flight(start: Callable[[torch.Tensor], _C.Work], largest: int) -> int:
    """ns of an operation of a MiB, or of the largest gradient, of which several are in flight. A collective."""
    size = min(1 << 20, max(largest, 4096))
    issuer, memory = _flight(start, size)
    return min([_duration(issuer, memory, None) for _ in range(_REPETITIONS)][1:])


def _flight(start: Callable[[torch.Tensor], _C.Work], size: int) -> tuple[Issuer, list[torch.Tensor]]:
    """An issuer, and memory for the operations in flight, each of ``size`` bytes."""

    def begin(partition: Partition) -> _C.Work:
        assert partition.tensor is not None
        return start(partition.tensor)

    return Issuer(begin), [torch.zeros(size // 4, dtype=torch.float32, device="cpu") for _ in range(_IN_FLIGHT)]


def _duration(issuer: Issuer, memory: list[torch.Tensor], limit: int | None) -> int:
    """Of one operation, if all are ready at once."""
    partitions = [Partition(f"transfer {index}", each.nbytes) for index, each in enumerate(memory)]
    begin = time.perf_counter_ns()
    issuer.begin(partitions, limit)
    for partition, each in zip(partitions, memory, strict=True):
        issuer.ready(partition, each)
    issuer.advance()
    while limit is not None and not issuer.idle:  # a step's operations run while this thread computes
        issuer.check()
        time.sleep(_NAP)
    for partition in partitions:
        issuer.wait(partition)
    return (time.perf_counter_ns() - begin) // len(memory)


def _transfer(rows: Sequence[Sequence[int]]) -> credit.Transfer:
    points, latencies, before = [], [], 1
    for size, one, several in rows:
        occupied = max(several, before)  # never less than a smaller size's
        points.append((size, occupied))
        latencies.append((size, max(one - occupied, 0)))
        before = occupied
    return credit.Transfer(tuple(points), tuple(latencies))


def _medians(values: list[Any]) -> dict[str, Any]:
    """Medians over the ranks; the first-use order is rank 0's."""
    agreement.require_equal("ByteScheduler: sizes of gradients", [value["sizes"] for value in values])
    agreed = {"first_use": values[0]["first_use"]}
    for name in ("ready", "forward"):
        agreed[name] = _columns([value[name] for value in values])
    agreed["backward"] = statistics.median_low([value["backward"] for value in values])
    agreed["transfers"] = [_columns(rows) for rows in zip(*(value["transfers"] for value in values), strict=True)]
    return agreed


@dataclass(frozen=True)
class Costs:
    """The input of the simulation of one model's plans: equal on all ranks, in nanoseconds and bytes.

    ``by_use``: the gradients in the order of the forward pass; ``ready``, ``forward`` and ``sizes`` of each one in that
    order; ``kinds``: gradients of different kinds are never joined.
    """

    by_use: tuple[int, ...]
    ready: tuple[int, ...]
    forward: tuple[int, ...]
    sizes: tuple[int, ...]
    kinds: tuple[str, ...]
    transfer: credit.Transfer
    backward: int = 0

    def runs(self, settings: Settings) -> list[tuple[int, ...]]:
        """Positions in ``by_use`` that are one piece, in a plan with these settings: of one kind, filled from the end.

        With priorities: at most ``join`` bytes, so that those at the start, which are needed first and ready last, are
        short; larger gradients are alone. In program order, as DistributedDataParallel's buckets: full with ``join``
        bytes or more, the first one with 1 MiB.
        """
        runs: list[tuple[int, ...]] = []
        total = 0
        for position in reversed(range(len(self.sizes))):
            size = self.sizes[position]
            full = min(settings.join, _BUCKETS[0]) if not settings.priorities and len(runs) == 1 else settings.join
            fits = total + size <= full if settings.priorities else total < full
            if runs and fits and self.kinds[position] == self.kinds[runs[-1][0]]:
                runs[-1] = (position, *runs[-1])
                total += size
            else:
                runs.append((position,))
                total = size
        return runs[::-1]

    def plan(self, settings: Settings) -> Plan:
        """The plan with these settings, by simulation."""
        found = self.simulated(settings)
        members = tuple(tuple(self.by_use[each] for each in run) for run in self.runs(settings))
        return Plan(found.order, settings, found.end, None, members)

    def simulated(self, settings: Settings) -> credit.Timeline:
        """One iteration with these settings, by simulation; its layers are the runs."""
        layers = [
            credit.Layer(
                max(self.ready[each] for each in run),
                sum(self.forward[each] for each in run),
                sum(self.sizes[each] for each in run),
            )
            for run in self.runs(settings)
        ]
        return credit.simulate(
            layers,
            self.transfer,
            partition=settings.partition,
            credit=settings.credit,
            priorities=settings.priorities,
            backward=self.backward,
        )


def costs(
    group: _C.Group,
    times: Times,
    transfers: list[list[int]],
    layers: Sequence[Sequence[int]],
    sizes: Sequence[int],
    kinds: Sequence[str],
) -> Costs:
    """The costs of all ranks: a collective over the group, after equal collectives.

    ``layers``: the gradients of each layer; ``sizes`` and ``kinds`` of each gradient.
    """
    mine = {**times.medians(), "transfers": transfers, "sizes": list(sizes)}
    agreed = changes.agree(group, "ByteScheduler", mine, _medians)
    unseen = [layer for layer in range(len(layers)) if layer not in agreed["first_use"]]
    by_use: list[int] = []
    forward: list[int] = []
    for layer in [*unseen, *agreed["first_use"]]:  # layers without a forward pass of their own are needed at its start
        by_use += layers[layer]
        forward += [0] * (len(layers[layer]) - 1) + [agreed["forward"][layer]]
    return Costs(
        tuple(by_use),
        tuple(agreed["ready"][each] for each in by_use),
        tuple(forward),
        tuple(sizes[each] for each in by_use),
        tuple(kinds[each] for each in by_use),
        _transfer(agreed["transfers"]),
        agreed["backward"],
    )


def make(known: Costs, limits: tuple[int | str | None, int | str | None], halves: bool = False) -> list[Plan]:
    """Plans that are worth measuring, the one that simulation prefers first; the same list on all ranks.

    ``limits``: partition and credit in bytes, None for no limit, or "auto" for what simulation prefers. ``halves``:
    each partition is reduced by reduce_scatter as soon as it is ready, and by all_gather in the order of the forward
    pass; "auto" stands for None there.
    """
    partition, window = limits
    in_order = _earliest([known.plan(Settings(join, priorities=False)) for join in JOINS])
    if halves:
        size, most = (None if limit in (None, "auto") else int(limit) for limit in limits)
        plain = known.plan(Settings(in_order.join, size, most, priorities=False))
        return [replace(plain, step_time=None)]
    plans = [
        known.plan(Settings(join, size, each))
        for join in JOINS
        for size in _partitions(partition, sum(known.sizes))
        for each in _credits(size, window)
    ]
    found = _different(sorted(plans, key=_time))
    if partition == window == "auto":
        slow = _time(found[0]) >= _time(in_order) * (1 - GAIN)
        others = [in_order, *(known.plan(Settings(join, priorities=False)) for join in _BUCKETS)]
        found = [*others, *found] if slow else [found[0], *others, *found[1:]]
    distinct: dict[Any, Plan] = {}
    for each in found:
        distinct.setdefault((each.order, each.members, each.credit), each)
    whole = known.plan(Settings(priorities=False)).step_time
    return [replace(each, program_order=whole) for each in distinct.values()]


def _different(plans: Sequence[Plan]) -> list[Plan]:
    """The first plans whose numbers of operations differ by 1.4 times, or two alike with other credits."""
    found: list[Plan] = []
    for plan in plans:
        count = len(plan.order)
        alike = [each for each in found if len(each.order) < 1.4 * count < 1.96 * len(each.order)]
        if len(found) < SHORTLIST and (not alike or (len(alike) == 1 and _in_flight(alike[0]) != _in_flight(plan))):
            found.append(plan)
    return found


def _in_flight(plan: Plan) -> int | None:
    """Partitions in flight; None: no limit."""
    if plan.partition is None or plan.credit is None or len(plan.order) <= len(plan.members):
        return None
    return plan.credit // plan.partition


def _partitions(given: int | str | None, total: int) -> list[int | None]:
    if given == "auto":
        return [size for size in PARTITIONS if size is None or size * _MOST_PARTITIONS >= total]
    return [None if given is None else int(given)]


def _credits(partition: int | None, given: int | str | None) -> list[int | None]:
    if given == "auto":
        return [None] if partition is None else [each and each * partition for each in CREDITS]
    return [None if given is None else int(given)]


def _time(plan: Plan) -> int:
    assert plan.step_time is not None
    return plan.step_time


def _earliest(plans: Sequence[Plan]) -> Plan:
    return min(plans, key=_time)  # of equal ones the first
