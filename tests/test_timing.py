# SPDX-License-Identifier: Apache-2.0
"""How candidates are timed side by side: statistics, batches, the order of rounds, the end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise

import pytest

from mcr_dl.measure import timing


def test_median_interval() -> None:
    """Order statistics of the binomial distribution: the indices are those of any table for the sign test."""
    assert timing.median_interval(range(5)) is None  # 94 % at most
    assert timing.median_interval(range(6)) == (0, 5)
    assert timing.median_interval(range(10)) == (1, 8)
    assert timing.median_interval(range(20)) == (5, 14)
    assert timing.median_interval(range(100)) == (39, 60)
    low, high = timing.median_interval(range(1000)) or (0, 0)  # the normal approximation
    assert (low, high) == pytest.approx((468, 531), abs=1.5)


def test_median_interval_covers() -> None:
    """It holds the true median about 19 times in 20."""
    generator = random.Random(1)
    hits = 0
    for _ in range(2000):
        low, high = timing.median_interval([generator.expovariate(1.0) for _ in range(30)]) or (0, 0)
        hits += low <= 0.6931 <= high
    assert 0.94 < hits / 2000 < 0.99


def test_summarize() -> None:
    """Minimum, median, the 99th percentile, and whether the median has converged."""
    times = timing.summarize([*range(1, 101)], 700, 0.025)
    assert (times.n, times.min_us, times.median_us, times.p99_us, times.calls) == (100, 1, 50.5, 99, 700)
    assert not times.converged
    assert timing.summarize([*range(1, 101)], 700, 0.25).converged
    assert timing.summarize([5.0] * 6, 6, 0.0).converged
    assert not timing.summarize([5.0] * 5, 5, 0.5).converged


def test_quartiles() -> None:
    """The least and the largest value are the ends; one value is all three."""
    assert timing.quartiles([5.0]) == (5.0, 5.0, 5.0)
    assert timing.quartiles([2.0, 1.0]) == (1.25, 1.5, 1.75)
    assert timing.quartiles([4.0, 0.0, 8.0, 2.0, 6.0]) == (2.0, 4.0, 6.0)


class Scripted:
    """A control whose agreed values follow a script: the times of all ranks together, whatever this process took."""

    def __init__(self, elapsed_per_agreement: float, sample: Callable[[int], float]) -> None:
        self.elapsed, self.step, self.sample = 0.0, elapsed_per_agreement, sample
        self.planning, self.drawn = 2, 0

    def maximum(self, values: list[float]) -> list[float]:
        if self.planning:
            self.planning -= 1
            return [300.0 for _ in values]  # long enough for batches of one call, once for each index
        self.elapsed += self.step
        self.drawn += len(values) - 1
        return [self.elapsed, *(self.sample(self.drawn - index) for index in range(len(values) - 1))]


class Recorded:
    """A call that records when it is made."""

    def __init__(self, name: str, log: list[str], apart: bool = False, waits: bool = False) -> None:
        self.messages = 1
        self.meet = (lambda: log.append("meet")) if apart else None
        self.synchronize = (lambda: log.append("synchronize")) if waits else None
        self.call = lambda: log.append(name)


def _measure(control: Scripted, log: list[str], apart: bool = False) -> dict[str, timing.Statistics]:
    calls = {name: Recorded(name, log, apart) for name in "abc"}
    return timing.Sampling(calls, control).extend(10.0)


def test_a_device_is_done_when_the_clock_starts_and_stops() -> None:
    """Each batch is between two waits for the device, without waits between its calls."""
    log: list[str] = []
    calls = {name: Recorded(name, log, waits=True) for name in "ab"}
    timing.Sampling(calls, Scripted(0.01, lambda _: 300.0)).extend(1.0)
    batches = " ".join(log).split("synchronize")
    assert len(batches) % 2 == 1
    assert all(set(inside.split()) in ({"a"}, {"b"}) for inside in batches[1::2])
    assert max(len(inside.split()) for inside in batches[1::2]) > 1


def test_measure_ends_when_all_are_certain() -> None:
    """Long before the budget is spent, but not before five rounds, which are too few to decide."""
    result = _measure(Scripted(0.01, lambda _: 300.0), [])
    assert all(times.converged and times.median_us == 300.0 and times.n == 10 for times in result.values())


def test_measure_ends_when_the_budget_is_spent() -> None:
    """Widely scattered samples never converge; the agreed time ends the measurement, not one rank's clock."""
    result = _measure(Scripted(3.0, lambda index: 100.0 + 500.0 * (index % 2)), [])
    assert all(not times.converged and times.n >= timing.MINIMUM_ROUNDS for times in result.values())
    late = _measure(Scripted(11.0, lambda _: 300.0), [])
    assert all(times.n == timing.MINIMUM_ROUNDS and not times.converged for times in late.values())


def test_measure_interleaves_in_the_same_order_everywhere() -> None:
    """Two ranks with equal agreed values make the same calls in the same order, in shuffled rounds."""
    logs: list[list[str]] = [[], []]
    for log in logs:
        _measure(Scripted(0.01, lambda _: 300.0), log)
    assert logs[0] == logs[1]
    # an untimed call comes before each timed one, so that ranks enter that together
    turns = logs[0][-2 * 3 * 10 :: 2]
    rounds = ["".join(turns[index : index + 3]) for index in range(0, len(turns), 3)]
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert len(set(rounds)) > 1


@pytest.mark.parametrize("count", range(1, 8))
def test_orders_are_balanced(count: int) -> None:
    """Each candidate comes equally often at each position, and equally often directly after each other one."""
    turns = count * (1 + count % 2)
    names = [str(index) for index in range(count)]
    orders = list(islice(timing.balanced_orders(names, random.Random(1)), 2 * turns))
    places = Counter((name, position) for order in orders for position, name in enumerate(order))
    pairs = Counter(pair for order in orders for pair in pairwise(order))
    assert set(places.values()) == {2 * turns // count}
    assert len(places) == count * count
    assert set(pairs.values()) <= {2 * turns // count}
    assert len(pairs) == count * (count - 1)


class Stated:
    """A control by which each candidate takes a time of its own."""

    def __init__(self, *times: float) -> None:
        self.times = times

    def maximum(self, values: list[float]) -> list[float]:
        return [time for time in self.times for _ in range(len(values) // len(self.times))]


def test_candidates_that_compete_have_equal_batches() -> None:
    """A candidate of up to twice the fastest one's time makes as many calls in a batch; a slower one makes fewer."""
    timed = {name: Recorded(name, []) for name in "abc"}
    orders = timing.balanced_orders(list(timed), random.Random(1))
    batches = timing._plan(timed, Stated(60.0, 40.0, 150.0), 2, orders)
    assert [batches[name].calls for name in "abc"] == [5, 5, 2]


def test_calls_that_ranks_leave_apart_begin_with_a_barrier() -> None:
    """Rooted operations: every batch, including those of planning."""
    log: list[str] = []
    result = _measure(Scripted(0.01, lambda _: 1000.0), log, apart=True)
    assert log.count("meet") >= sum(times.n for times in result.values())
    assert all(log[index + 1] != "meet" for index, name in enumerate(log) if name == "meet")
