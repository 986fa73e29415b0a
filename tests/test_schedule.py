# SPDX-License-Identifier: Apache-2.0
"""Simulated orders are optimal where theory says so; plans, and how training steps compare them."""

from __future__ import annotations

import copy
import itertools
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.schedule.bytescheduler import bayesian, checks, credit, kept, planning, turns
from mcr_dl.schedule.bytescheduler.credit import Layer, Transfer, simulate
from mcr_dl.schedule.bytescheduler.gradients import Parameter, guarded, pieces_of
from mcr_dl.schedule.bytescheduler.planning import Settings
from mcr_dl.testing.orders import best, best_of_whole, ready_times
from ranks import schedule_loops

UNIT = Transfer(((1, 1),))

# ---- simulation


def test_small_models() -> None:
    """All 512 models of three layers whose times are 1 or 2, and 729 whose times are 1 to 3 (SOSP'19, section 3).

    ``bench/bytescheduler.py`` does all 19,683 whose times are 1, 2 or 3.
    """
    for few in itertools.product((1, 2), repeat=9):
        _check_optimal(few)
    for few in itertools.product((1, 2, 3), repeat=6):
        _check_optimal((*few, few[0], few[3], 4 - few[5]))


def _check_optimal(times: tuple[int, ...]) -> None:
    forward, backward, nbytes = times[:3], times[3:6], times[6:]
    ready = ready_times(backward)
    layers = [Layer(*each) for each in zip(ready, forward, nbytes, strict=True)]
    assert simulate(layers, UNIT, partition=1, credit=1).end == best(ready, nbytes, forward), times


def test_whole_gradients_are_not_optimal() -> None:
    """Without partitions, a large gradient delays one that is needed earlier."""
    ready, nbytes, forward = [3, 2, 1], (1, 3, 1), (3, 1, 1)
    layers = [Layer(*each) for each in zip(ready, forward, nbytes, strict=True)]
    assert (simulate(layers, UNIT, credit=1).end, best_of_whole(ready, nbytes, forward)) == (11, 9)


def test_credit() -> None:
    """Partitions in flight are not overtaken; the credit is never exceeded, but one partition always goes."""
    layers = [Layer(10, 1, 4), Layer(0, 1, 16)]
    limited = simulate(layers, UNIT, partition=4, credit=4)
    assert limited.order == ((1, 0), (1, 1), (1, 2), (0, 0), (1, 3))
    assert limited.complete == (16, 20)
    unlimited = simulate(layers, UNIT, partition=4)
    assert unlimited.order == ((1, 0), (1, 1), (1, 2), (1, 3), (0, 0))
    assert simulate(layers, UNIT, partition=16, credit=1).order == ((1, 0), (0, 0))


def test_latency() -> None:
    """A credit of one partition pays the latency of each; more credit hides it."""
    layers, transfer = [Layer(0, 1, 40)], Transfer(((10, 10),), ((10, 5),))
    assert simulate(layers, transfer, partition=10, credit=10).end == 61
    assert simulate(layers, transfer, partition=10, credit=20).end == 46


def test_cost_of_a_transfer() -> None:
    """Between measured sizes a time is interpolated, above the largest it grows in proportion."""
    transfer = Transfer(((100, 10), (200, 30)))
    assert [transfer.occupation(size) for size in (1, 100, 150, 200, 400)] == [10, 10, 20, 30, 60]
    assert transfer.latency(400) == 0
    transfer = Transfer(((100, 10),), ((100, 10), (200, 30)))
    assert [transfer.latency(size) for size in (1, 100, 150, 200, 400)] == [10, 10, 20, 30, 60]


def test_partitions_complete_in_order() -> None:
    """A small partition behind a large one, which takes longer to complete, waits for it."""
    layers = [Layer(1, 0, 1), Layer(0, 0, 4)]
    assert simulate(layers, Transfer(((1, 1),), ((1, 0), (2, 0), (4, 10)))).complete == (14, 14)


def test_cut() -> None:
    """Nothing is lost or empty."""
    assert credit.cut(10, 4) == [4, 4, 2]
    assert credit.cut(8, 4) == [4, 4]
    assert credit.cut(3, 4) == credit.cut(3, None) == [3]
    assert credit.cut(0, 4) == []


# ---- plans


def _costs(layers: list[Layer], kinds: str = "") -> planning.Costs:
    columns = zip(*[(layer.ready, layer.forward, layer.nbytes) for layer in layers], strict=True)
    ready, forward, sizes = (tuple(column) for column in columns)
    by_use = tuple(range(len(layers)))
    return planning.Costs(by_use, ready, forward, sizes, tuple(kinds or "f" * len(layers)), UNIT)


MIB = 1 << 20
LARGE_LAST = [Layer(30 * MIB, 30 * MIB, MIB), Layer(20 * MIB, 30 * MIB, MIB), Layer(MIB, MIB, 64 * MIB)]


def test_joined_gradients() -> None:
    """Runs of the forward pass, filled from the end; large gradients and those of other types are apart."""
    small = [Layer(0, 0, size) for size in (3, 4, 4, 20, 5, 5, 5)]
    assert _costs(small).runs(Settings(10)) == [(0,), (1, 2), (3,), (4,), (5, 6)]
    assert _costs(small).runs(Settings(0)) == [(index,) for index in range(7)]
    assert _costs(small, "fffffgf").runs(Settings(10)) == [(0,), (1, 2), (3,), (4,), (5,), (6,)]


def test_buckets() -> None:
    """Of program order: full when they hold so many bytes, as DistributedDataParallel's; the first one is small."""
    small = [Layer(0, 0, size) for size in (3, 4, 4, 20, 5, 5, 5)]
    assert _costs(small).runs(Settings(10, priorities=False)) == [(0, 1, 2), (3, 4), (5, 6)]
    assert _costs(small).runs(Settings(0, priorities=False)) == [(index,) for index in range(7)]
    assert _costs(small, "fffffgf").runs(Settings(10, priorities=False)) == [(0, 1, 2), (3, 4), (5,), (6,)]
    large = [Layer(0, 0, size << 19) for size in (30, 10, 1, 1)]
    assert _costs(large).runs(Settings(25 << 20, priorities=False)) == [(0, 1), (2, 3)]
    assert _costs(large).plan(Settings(25 << 20, priorities=False)).members == ((0, 1), (2, 3))


def test_joined_gradients_are_ready_with_the_last_one() -> None:
    """And are needed by the first layer of the run."""
    plan = _costs([Layer(9, 1, 2), Layer(3, 1, 2), Layer(1, 5, 2)]).plan(Settings(4))
    assert plan.members == ((0,), (1, 2))
    assert plan.order == ((1, 0), (0, 0))
    assert plan.step_time == 11 + 1 + 1 + 5


def test_program_order_stays_without_gain() -> None:
    """One layer has no order to choose, so only whole gradients in program order are left."""
    plans = planning.make(_costs([Layer(5, 5, 100)]), ("auto", "auto"))
    assert [(plan.partition, plan.credit, plan.priorities) for plan in plans] == [(None, None, False)]
    assert plans[0].step_time == plans[0].program_order


def test_plans_worth_measuring() -> None:
    """The large last layer must not delay the first one; program order is measured, too; no plan comes twice."""
    plans = planning.make(_costs(LARGE_LAST), ("auto", "auto"))
    assert plans[0].priorities
    assert plans[0].step_time is not None
    assert plans[0].step_time < 0.9 * (plans[0].program_order or 0)
    assert any(not plan.priorities for plan in plans)
    assert len({(plan.order, plan.members, plan.credit) for plan in plans}) == len(plans) > 4


def test_the_preferred_plan_is_first() -> None:
    """Also if others are equal to it."""
    for layers in (LARGE_LAST, [Layer(5, 5, 100)], [Layer(index, 1, 200_000) for index in range(20, 0, -1)]):
        plans = planning.make(_costs(layers), ("auto", "auto"))
        best = min(plan.step_time or 0 for plan in plans)
        assert (plans[0].step_time or 0) * (1 - planning.GAIN) <= best


@pytest.mark.parametrize("limits", [(MIB, 2 * MIB), (MIB, "auto"), ("auto", None)])
def test_given_limits_stay(limits: tuple[Any, Any]) -> None:
    """Only what is "auto" is chosen."""
    for plan in planning.make(_costs(LARGE_LAST), limits):
        assert plan.priorities
        assert limits[0] in ("auto", plan.partition)
        assert limits[1] in ("auto", plan.credit)


# ---- measured plans


def _turns(given: turns.Turns, times: Callable[[planning.Plan], int]) -> tuple[planning.Plan, list[planning.Plan]]:
    """The plan that is kept on one rank, and the plans of all turns."""
    taken, turn = [], next(given)
    while True:
        taken.append(turn.plan)
        try:
            turn = given.send(times(turn.plan))
        except StopIteration as end:
            return end.value, taken


def _shortlist(plans: list[planning.Plan]) -> turns.Turns:
    return turns.shortlist(plans, [], lambda times: times)


def test_shortlist_keeps_the_fastest() -> None:
    """The slower half leaves after each round, but not the fastest program order."""
    plans = planning.make(_costs(LARGE_LAST), ("auto", "auto"))
    found, taken = _turns(_shortlist(plans), lambda plan: 1000 - 50 * plans.index(plan))
    assert found is plans[-1]
    rounds = len(plans).bit_length() - 1
    counts = {index: sum(each is plan for each in taken) for index, plan in enumerate(plans)}
    assert counts.pop(max(index for index, plan in enumerate(plans) if not plan.priorities)) == rounds
    assert [*counts.values()] == sorted(counts.values())
    assert (counts[0], counts[len(plans) - 1]) == (1, rounds)


def test_shortlist_keeps_program_order_without_gain() -> None:
    """A gain of less than one percent is none."""
    plans = planning.make(_costs(LARGE_LAST), ("auto", "auto"))
    order = next(plan for plan in plans if not plan.priorities)
    for time, expected in ((995, order), (980, plans[0])):
        found, _ = _turns(_shortlist([order, plans[0]]), lambda plan, time=time: 1000 if plan is order else time)  # type: ignore[misc]
        assert found is expected


@pytest.mark.parametrize("count", [2, 3, 4, 9])
def test_shortlist_of_many_keeps_program_order_without_gain(count: int) -> None:
    """Also where the faster half of the plans has none."""
    costs = _costs(LARGE_LAST)
    order = costs.plan(Settings(priorities=False))
    others = [costs.plan(Settings(0, MIB << index, MIB << index)) for index in range(count - 1)]
    for time, kept_order in ((998, True), (980, False)):
        times = {id(plan): time for plan in others}
        found, _ = _turns(_shortlist([*others, order]), lambda plan, times=times: times.get(id(plan), 1000))  # type: ignore[misc]
        assert (found is order) == kept_order


def test_times_of_the_slowest_rank() -> None:
    """Decide, for each plan."""
    assert turns.slowest([[1, 9, 3], [4, 5, 6]]) == [4, 9, 6]


def test_a_tuner_measures_the_counted_steps_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of two turns, in ns; the first two of each do not count."""
    plans = planning.make(_costs(LARGE_LAST), ("auto", "auto"))[:2]
    steps = [100, 90, 5, 7, 6, 50, 40, 9, 8, 10]
    clock = itertools.accumulate(steps)
    monkeypatch.setattr(turns, "time", SimpleNamespace(perf_counter_ns=lambda: next(clock)))
    took = []

    def given() -> turns.Turns:
        for plan in plans:
            took.append((yield turns.Turn(plan, dropped=2, counted=3)))
        return plans[0]

    tuner = turns.Tuner(given())
    used = []
    for _ in steps:
        used.append(tuner.plan)
        if tuner.step_ended():
            tuner.advance()
    assert (took, used) == ([6, 9], [plans[0]] * 5 + [plans[1]] * 5)
    assert tuner.done
    assert tuner.plan is plans[0]


def test_search_finds_better_settings() -> None:
    """Twice the partition costs 10 % more, twice the partitions in flight 5 %; rank 0 proposes, others follow."""
    costs, proposed = _costs(LARGE_LAST), []

    def time(plan: planning.Plan) -> int:
        if plan.partition is None or plan.credit is None:
            return 2_000_000
        away = math.log2(plan.partition / 700_000)
        return round(1e6 * (1 + 0.1 * away**2 + 0.05 * math.log2(plan.credit / plan.partition)))

    def share(value: Any) -> Any:
        proposed.append(value)
        return value

    trials: list[turns.Trial] = []
    start = costs.plan(Settings(0, 65536, 65536))
    probes = bayesian.probes(costs.plan, share, leads=True)
    whole = turns.searched(_shortlist([start]), probes, trials, lambda times: times)
    found, taken = _turns(whole, time)
    assert time(found) < 1.06e6 < time(start)
    assert len(proposed) == bayesian.RANDOM + bayesian.GUIDED == len(taken) - 1 == len(trials) - 1
    given = iter(proposed)
    followed = bayesian.probes(costs.plan, lambda value: next(given) if value is None else None, leads=False)
    assert _plans(followed, time) == taken[1:]


def _plans(probes: turns.Probes, time: Callable[[planning.Plan], int]) -> list[planning.Plan]:
    found, plan = [], probes.send(None)
    while plan is not None:
        found.append(plan)
        plan = probes.send(time(plan))
    return found


def test_search_without_gain_changes_nothing() -> None:
    """The shortlist's plan stays unless a probe saves one percent."""
    costs = _costs(LARGE_LAST)
    start = costs.plan(Settings(0, 65536, 65536))
    probes = bayesian.probes(costs.plan, lambda value: value, leads=True, random=2, guided=0)
    found, _ = _turns(turns.searched(_shortlist([start]), probes, [], lambda times: times), lambda _: 1000)
    assert found is start


@pytest.mark.parametrize("proposed", [0, 2])
def test_search_that_fails(proposed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On rank 0, after some proposals: all ranks get None, and end the search with the plans so far."""
    costs, shared, settings = _costs(LARGE_LAST), [], bayesian._settings

    def fails_later(point: dict[str, float]) -> Settings:
        if len(shared) == proposed:
            raise RuntimeError("no proposal")
        return settings(point)

    def share(value: Any) -> Any:
        shared.append(value)
        return value

    monkeypatch.setattr(bayesian, "_settings", fails_later)
    start = costs.plan(Settings(0, 65536, 65536))
    probes = bayesian.probes(costs.plan, share, leads=True)
    trials: list[turns.Trial] = []
    found, _ = _turns(turns.searched(_shortlist([start]), probes, trials, lambda times: times), lambda _: 1000)
    assert found is start
    assert len(trials) == 1 + proposed
    assert [value is None for value in shared] == [False] * proposed + [True]


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of kept settings."""
    file = tmp_path / "schedules" / "machine.json"
    monkeypatch.setattr(kept, "path", lambda: file)
    return file


SETTINGS = Settings(1 << 19, 1 << 20)
ENTRY = {**SETTINGS._asdict(), "tuning": "shortlist"}


def test_kept_settings(cached: Path) -> None:
    """A search's settings serve any tuning, a shortlist's only the shortlist; the oldest entries leave."""
    assert kept.load("model", "shortlist") is None
    kept.store("model", SETTINGS, "shortlist")
    assert kept.load("model", "shortlist") == SETTINGS
    assert kept.load("model", "bayesian") is None
    found = Settings(credit=1 << 20)
    kept.store("model", found, "bayesian")
    assert kept.load("model", "shortlist") == kept.load("model", "bayesian") == found
    for index in range(kept.MOST):
        kept.store(f"other {index}", SETTINGS, "shortlist")
    assert kept.load("model", "shortlist") is None
    assert kept.load("other 0", "shortlist") == SETTINGS
    assert cached.stat().st_size < 100_000


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format": "mcr-dl schedules", "version": 2, "schedules": {}}',
        '{"format": "mcr-dl schedules", "version": 1, "schedules": {"model": {"join": "a"}}}',
        json.dumps(
            {
                "format": "mcr-dl schedules",
                "version": 1,
                "schedules": {"model": {**ENTRY, "partition": 1025}},  # no whole elements
            }
        ),
    ],
)
def test_broken_settings(cached: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Are reported, not used, and replaced."""
    cached.parent.mkdir()
    cached.write_text(text)
    assert kept.load("model", "shortlist") is None
    assert str(cached) in caplog.text
    kept.store("model", SETTINGS, "shortlist")
    assert kept.load("model", "shortlist") == SETTINGS


def test_one_broken_entry(cached: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Is reported and dropped; the others stay."""
    kept.store("other", SETTINGS, "shortlist")
    document = json.loads(cached.read_text())
    document["schedules"]["model"] = {**ENTRY, "partition": 1025}
    cached.write_text(json.dumps(document))
    assert kept.load("model", "shortlist") is None
    assert "schedules.model" in caplog.text
    kept.store("model", SETTINGS, "shortlist")
    assert kept.load("model", "shortlist") == kept.load("other", "shortlist") == SETTINGS


def test_whole_numbers_of_settings(cached: Path) -> None:
    """Also if another program has written the file."""
    kept.store("model", SETTINGS, "shortlist")
    document = json.loads(cached.read_text())
    document["schedules"]["model"] |= {"join": 2.0, "partition": 2048.0, "credit": None}
    cached.write_text(json.dumps(document))
    found = kept.load("model", "shortlist")
    assert found is not None
    assert [repr(each) for each in (found.join, found.partition, found.credit)] == ["2", "2048", "None"]


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("point", [(17.3, 1.37), (16.0, 0.01), (22.9, 2.99)])
def test_settings_of_a_search_are_kept(point: tuple[float, float]) -> None:
    """Wherever the search finds them."""
    partition, credit = point
    found = bayesian._settings({"partition": partition, "credit": credit, "join": 15.3})
    kept.store("model", found, "bayesian")
    assert kept.load("model", "bayesian") == found


def test_settings_that_cannot_be_written(cached: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Are lost, which the log says."""
    cached.parent.write_text("no folder")
    caplog.set_level("INFO", "mcr_dl")
    kept.store("model", SETTINGS, "shortlist")
    assert "the settings are not kept" in caplog.text


def test_turns_end_on_the_same_step() -> None:
    """Counting decides when plans change, and not time."""
    plans = planning.make(_costs(LARGE_LAST), ("auto", "auto"))[:2]
    tuner, ends = turns.Tuner(_shortlist(plans)), []
    for step in range(1, 40):
        if tuner.step_ended():
            ends.append(step)
            tuner.advance()
        if tuner.done:
            break
    turn = turns.DROPPED + turns.COUNTED
    assert ends == [turn, 2 * turn]
    assert tuner.plan in plans


# ---- models


def test_pieces() -> None:
    """Small gradients of one module are in one piece; a shared weight belongs to its first module."""
    model = schedule_loops.network()
    layers, owned = pieces_of(model)
    names = [[[each.name for each in piece.parameters] for piece in layer] for layer in layers]
    assert names[:2] == [[["scale"]], [["first.weight", "first.bias"]]]
    assert names[2] == [["inner.0.weight"], ["inner.0.bias"]]
    assert names[4] == [["side.weight"], ["side.unused"]]
    assert [each.index for layer in layers for piece in layer for each in piece.parameters] == [*range(13)]
    assert owned[model.tied] == owned[model.inner[0]]
    assert sum(piece.nbytes for layer in layers for piece in layer) == 4 * sum(
        value.numel() for value in model.parameters()
    )


def test_a_write_without_a_wait_is_noticed() -> None:
    """A write into a gradient whose memory is part of one tensor with another's is not the other's."""
    whole = torch.ones(6)
    first, second = (Parameter(name, nn.Parameter(torch.zeros(3))) for name in ("first", "second"))
    first.take(whole[:3], lambda: None)
    second.take(whole[3:], lambda: None)
    whole.mul_(2)
    assert not first.changed
    assert first.guard is not None
    with torch._C.DisableTorchFunctionSubclass():  # as a TorchScript function
        first.guard.clamp_(0, 1)
    assert (first.changed, second.changed) == (True, False)


def test_a_use_of_a_gradient_waits() -> None:
    """Functions, methods, properties and lists of tensors."""
    calls: list[int] = []
    gradient = torch.ones(3)
    guard = guarded(gradient, lambda: calls.append(1))
    uses = (
        lambda: guard + 1,
        guard.norm,
        lambda: guard.grad_fn,
        lambda: torch._foreach_norm([torch.ones(1), guard]),
        lambda: torch.stack(tensors=[guard]),
        lambda: copy.deepcopy(guard),
        lambda: pickle.dumps(guard),
        guard.trigger_wait,  # by mcr_dl's operations
    )
    for count, use in enumerate(uses, start=1):
        use()
        assert len(calls) == count
    assert type(copy.deepcopy(guard)) is type(pickle.loads(pickle.dumps(guard))) is torch.Tensor
    value = nn.Parameter(torch.zeros(3))
    value.grad = guard
    assert value.grad is guard
    guard.mul_(2)
    assert torch.equal(gradient, torch.full((3,), 2.0))


@pytest.mark.parametrize("value", [True, 0, 512, -1, "all", 1e6])
def test_wrong_limits(value: Any) -> None:
    """One error that names the argument and what it may be."""
    with pytest.raises(InvalidArgumentError, match="partition: expected at least 1024 bytes, None or 'auto'"):
        checks.limit("partition", value)


def test_plan_in_the_log() -> None:
    """Limits and what was simulated."""
    text = str(planning.Plan(((0, 0),), Settings(partition=4096), 2_500_000, 3_000_000))
    assert text == "partition 4096 B, credit unlimited, 2.50 ms a step by simulation, 3.00 in program order"
