# SPDX-License-Identifier: Apache-2.0
"""ByteScheduler's costs of a model: the records of one rank, and what all ranks make of theirs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.schedule.bytescheduler import planning
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
