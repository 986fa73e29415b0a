# SPDX-License-Identifier: Apache-2.0
"""ByteScheduler's costs of a model: the records of one rank, and what all ranks make of theirs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.schedule.bytescheduler import credit, planning
from mcr_dl.schedule.bytescheduler.planning import Costs, Settings, Times


def _recorded(monkeypatch: pytest.MonkeyPatch) -> Times:
    """Two steps of three layers, of which the last one has no forward pass of its own."""
    times = Times(first_use=[1, 0])
    for stretch, ends in ((1, 700), (2, 1500)):
        monkeypatch.setattr(planning, "time", SimpleNamespace(perf_counter_ns=lambda ends=ends: ends))
        seen = {1: 100, 0: 100 + 60 * stretch}
        times.add([40 * stretch, 30 * stretch, 20, 10], 3, seen, 100 + 100 * stretch)
    return times


def test_times_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's forward pass ends where the next one begins, and the backward pass begins where the last one ends."""
    times = _recorded(monkeypatch)
    assert times.forward == [[40, 60, 0], [80, 120, 0]]
    assert times.backward == [700 - 200, 1500 - 300]
    assert times.medians() == {"first_use": [1, 0], "ready": [40, 30, 20, 10], "forward": [40, 60, 0], "backward": 500}
    assert Times().medians()["backward"] == 0


def _agreed(monkeypatch: pytest.MonkeyPatch, others: list[dict[str, Any]]) -> Costs:
    """The costs if the other ranks' values differ from this rank's as given."""

    def agree(_group: Any, _what: str, mine: Any, decide: Any) -> Any:
        return decide([mine, *({**mine, **other} for other in others)])

    times = _recorded(monkeypatch)
    monkeypatch.setattr(planning.changes, "agree", agree)
    transfers = [[100, 9, 5], [200, 7, 4], [400, 30, 10]]
    group: Any = None
    return planning.costs(group, times, transfers, [[0], [1, 2], [3]], [8, 16, 24, 32], ["f", "f", "g", "f"])


def test_costs_are_medians_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of use is rank 0's; a layer that the forward pass does not come to is needed at its start."""
    others = [
        {"first_use": [0, 1], "ready": [50, 60, 70, 80], "forward": [41, 50, 0], "backward": 600},
        {"ready": [60, 20, 75, 5], "forward": [42, 70, 0], "backward": 700},
    ]
    found = _agreed(monkeypatch, others)
    assert found.by_use == (3, 1, 2, 0)
    assert found.sizes == (32, 16, 24, 8)
    assert found.kinds == ("f", "f", "g", "f")
    assert found.ready == (10, 30, 70, 50)
    assert found.forward == (0, 0, 60, 41)  # of a layer's gradients the last one has its time
    assert found.backward == 600


def test_a_larger_transfer_never_takes_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    transfer = _agreed(monkeypatch, []).transfer
    assert transfer.points == ((100, 5), (200, 5), (400, 10))
    assert transfer.latencies == ((100, 4), (200, 2), (400, 20))


def test_ranks_with_other_gradients_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"sizes of gradients: expected the same on all ranks, got .* on rank 2"
    ):
        _agreed(monkeypatch, [{}, {"sizes": [8, 16, 24, 33]}])


def test_the_forward_pass_begins_after_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all gradients are there before its end."""
    found = _agreed(monkeypatch, [])
    assert max(found.ready) + 60 < found.backward
    assert found.plan(Settings()).step_time == found.backward + sum(found.forward)


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (100, [4096]),
        (20_000, [4096, 20_000]),
        (1 << 18, [4096, 1 << 15, 1 << 18]),
        (1 << 30, [1 << 12, 1 << 15, 1 << 18, 1 << 20, 1 << 22]),
    ],
)
def test_sizes_of_transfers(monkeypatch: pytest.MonkeyPatch, largest: int, sizes: list[int]) -> None:
    """Up to the largest gradient; medians without the first repetition, of operations one by one and in flight."""
    measured: list[tuple[int, int | None]] = []
    one, several = [1, 7, 5, 9], [1, 30, 10, 20]

    def duration(_issuer: Any, memory: list[torch.Tensor], limit: int | None) -> int:
        measured.append((memory[0].nbytes, limit))
        times = several if limit is None else one
        return times[(len(measured) - 1) // 2 % len(times)]

    monkeypatch.setattr(planning, "_duration", duration)
    start: Any = None
    assert planning.time_transfers(start, largest) == [[size, 7, 20] for size in sizes]
    assert measured == [(size, limit) for size in sizes for _ in one for limit in (size, None)]


def _in_flight(plan: planning.Plan) -> int | None:
    whole = plan.partition is None or plan.credit is None or len(plan.order) == len(plan.members)
    return None if whole else (plan.credit or 0) // (plan.partition or 1)


@pytest.mark.parametrize("count", [1, 3, 12, 40])
@pytest.mark.parametrize("size", [3_000, 300_000, 9_000_000])
def test_plans_that_are_measured_differ(count: int, size: int) -> None:
    """By 1.4 times the operations or, for two plans alike, by the partitions in flight."""
    layers, step = range(count), 50_000
    curve = credit.Transfer(((1000, 5_000), (10_000_000, 4_000_000)), ((1000, 9_000), (10_000_000, 20_000)))
    ready = tuple(step * (count - layer) for layer in layers)
    known = Costs(
        (*layers,), ready, (step,) * count, tuple(size * (1 + layer % 5) for layer in layers), ("f",) * count, curve
    )
    plans = [plan for plan in planning.make(known, ("auto", "auto")) if plan.priorities]
    assert len(plans) <= planning.SHORTLIST
    for plan in plans:
        alike = [each for each in plans if 1 / 1.4 < len(each.order) / len(plan.order) < 1.4]
        assert len({_in_flight(each) for each in alike}) == len(alike) <= 3, [str(each) for each in alike]
    assert len({(plan.order, plan.members, plan.credit) for plan in plans}) == len(plans)
