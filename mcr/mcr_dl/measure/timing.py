# SPDX-License-Identifier: Apache-2.0
"""Times of several candidates for one call, measured side by side until the results are precise enough.

Rounds are interleaved, so that other load on the machine affects all candidates equally; their number follows the
variance, as in ReproMPI (Hunold, Carpen-Amarie: "Reproducible MPI Benchmarking Is Still Not as Easy as You Think",
2016).
"""

from __future__ import annotations

import gc
import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice, repeat
from time import perf_counter, perf_counter_ns
from typing import Any, Protocol

import torch
import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.libraries import c10d
from mcr_dl.runtime import state

MINIMUM_ROUNDS = 5
_BATCH_US = 200.0
_BATCH_APART_US = 1000.0  # after a barrier, which ranks leave up to 50 µs apart, and on a device, with a final wait
_LEAD_US = 20_000.0  # shorter calls get an untimed one first, which warms the caches
_ALIKE = 2.0  # the largest ratio of a candidate's time to the fastest one's at which both get equal batches
_TRIALS = 3
_LONGEST_BATCH = 4096
_AGREE_SECONDS = 0.1  # rounds between two agreements take about this long
_LEVEL = 0.95
_EXACT = 200  # above this many samples the binomial distribution is taken as normal


class Control(Protocol):
    """How the ranks agree while they measure. Collective."""

    def maximum(self, values: list[float]) -> list[float]:
        """The largest value over all ranks, element by element."""


class Timed(Protocol):
    """An object that can be measured: `call` makes one call, which passes `messages` messages in sequence.

    `meet` synchronizes the ranks before a batch, if ranks may leave a call before others have entered it. It is the
    candidate's own barrier: with one that sleeps, the scheduler would put both ranks on one core for a while.

    `synchronize` waits for the device on which the calls of a batch may still be running; None: they have ended.
    """

    call: Callable[[], object]
    messages: int
    meet: Callable[[], object] | None
    synchronize: Callable[[], object] | None


class TorchControl:
    """Agreement over a separate gloo group, which a broken candidate cannot disturb. All ranks create it together."""

    def __init__(self, group: _C.Group | None = None, limit: timedelta | None = None) -> None:
        """``limit``: for each agreement; by default the group's timeout. Raises RuntimeError if gloo cannot connect."""
        current = state.current()
        members = group or _C.world()
        assert members is not None  # there is one where there is a state
        turn = current.count("bench", members.name())
        store = torch_dist.PrefixStore(f"bench/{members.name()}/{turn}", current.store)
        self._gloo: Any = c10d.GLOO.create(store, members.rank(), members.size(), limit or members.timeout)
        self._rank, self._size = members.rank(), members.size()

    def maximum(self, values: list[float]) -> list[float]:
        """The largest value over all ranks, element by element."""
        tensor = torch.tensor(values, dtype=torch.float64, device="cpu")
        options = torch_dist.AllreduceOptions()
        options.reduceOp = torch_dist.ReduceOp(torch_dist.ReduceOp.MAX)
        self._gloo.allreduce([tensor], options).wait()
        result: list[float] = tensor.tolist()
        return result

    def barrier(self) -> None:
        """Return when all ranks are here."""
        self.maximum([0.0])

    def gathered(self, value: float) -> list[float]:
        """The values of all ranks, in rank order."""
        return self.maximum([value if rank == self._rank else -math.inf for rank in range(self._size)])


@dataclass(frozen=True)
class Statistics:
    """Times in µs over `n` samples; a sample is the mean of a batch of calls on the rank where it took longest.

    `converged`: the confidence interval of the median is as narrow as required.
    """

    n: int
    min_us: float
    median_us: float
    p99_us: float
    calls: int
    converged: bool


def _first_of_interval(n: int) -> int | None:
    """How many of n sorted samples lie below (and above) the median's 95 % confidence interval; None: n too small."""
    tail = (1 - _LEVEL) / 2
    if n > _EXACT:
        return max(0, math.floor((n - 1.96 * math.sqrt(n)) / 2) - 1)
    below, first = 0.0, None
    for k in range(n // 2):
        below += math.comb(n, k) / 2.0**n
        if below > tail:
            break
        first = k
    return first


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the median by order statistics; None below 6 samples, which are too few."""
    first = _first_of_interval(len(samples))
    if first is None:
        return None
    ordered = sorted(samples)
    return ordered[first], ordered[len(ordered) - 1 - first]


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest sample that is at least as large as this share of them."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile of at least one value, interpolated as NumPy does."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def summarize(samples: Sequence[float], calls: int, confidence: float) -> Statistics:
    """The statistics of samples in µs, taken from `calls` calls; `confidence` is the relative half width of the
    median's confidence interval up to which it counts as converged."""
    ordered = sorted(samples)
    median = statistics.median(ordered)
    interval = median_interval(ordered)
    converged = interval is not None and max(interval[1] - median, median - interval[0]) <= confidence * median
    return Statistics(len(ordered), ordered[0], median, _quantile(ordered, 0.99), calls, converged)


@dataclass(frozen=True)
class _Batch:
    """Calls that are timed together; `lead`: one more call before them, which synchronizes the ranks."""

    calls: int
    lead: bool


def _run(timed: Timed, batch: _Batch) -> float:
    """Time a batch of calls on this rank, until the last one has ended on its device: µs per message."""
    call, synchronize = timed.call, timed.synchronize
    if batch.lead:
        call()
    if timed.meet is not None:
        timed.meet()
    if synchronize is not None:
        synchronize()
    begin = perf_counter_ns()
    for _ in repeat(None, batch.calls):
        call()
    if synchronize is not None:
        synchronize()
    return (perf_counter_ns() - begin) / (1000 * batch.calls * timed.messages)


@contextmanager
def _no_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def balanced_orders(names: Sequence[str], shuffle: random.Random) -> Iterator[list[str]]:
    """Endless orders of candidates, each of which leaves caches and cores in a state of its own to the next one.

    In each run of n orders (2n if the number of names n is odd) each name comes once (twice) at each position, and once
    (twice) directly after each other one: the squares of Williams, "Experimental Designs Balanced for the Estimation of
    Residual Effects of Treatments", 1949.
    """
    count = len(names)
    zigzag = [(index + 1) // 2 if index % 2 else count - index // 2 for index in range(count)]
    rows = [[(each + shift) % count for each in zigzag] for shift in range(count)]
    if count % 2:
        rows += [row[::-1] for row in rows]
    while True:
        labels = shuffle.sample(names, count)
        shuffle.shuffle(rows)
        for row in rows:
            yield [labels[index] for index in row]


def _rounds(
    timed: Mapping[str, Timed], batches: Mapping[str, _Batch], rounds: int, orders: Iterator[list[str]]
) -> dict[str, list[float]]:
    """This rank's samples of some rounds, each in the next order, which is equal on all ranks."""
    local: dict[str, list[float]] = {name: [] for name in timed}
    for order in islice(orders, rounds):
        for name in order:
            local[name].append(_run(timed[name], batches[name]))
    return local


def _plan(timed: Mapping[str, Timed], control: Control, trials: int, orders: Iterator[list[str]]) -> dict[str, _Batch]:
    """Batches, equal on all ranks, that last long enough for the clock and for ranks that start at different times.

    Also warms up. The best of the trials counts: one disturbance must not make the batches too short. Candidates that
    may be equally fast get batches of equal length, because the first call of a batch can cost more than later calls.
    """
    batches = dict.fromkeys(timed, _Batch(2, True))
    for share in (0.25, 1.0):
        local = _rounds(timed, batches, trials, orders)
        agreed = control.maximum([value for values in local.values() for value in values])
        taken = {
            name: max(1e-3, min(agreed[index * trials : (index + 1) * trials]) * each.messages)
            for index, (name, each) in enumerate(timed.items())
        }
        fastest = min(taken.values())
        for name, each in timed.items():
            target = share * (_BATCH_APART_US if each.meet or each.synchronize else _BATCH_US)
            time = fastest if taken[name] <= _ALIKE * fastest else taken[name]
            calls = min(_LONGEST_BATCH, max(1, math.ceil(target / time)))
            batches[name] = _Batch(calls, taken[name] < _LEAD_US)
    return batches


class Sampling:
    """Samples of all candidates for one call, taken in one or several visits. Collective: every rank makes the same
    calls with the same names and numbers, and all decisions follow from values that `control` has made equal.

    Several visits with other work in between keep a temporary slowdown of the machine from affecting all samples of a
    point.
    """

    def __init__(
        self, prepared: Mapping[str, Timed], control: Control, confidence: float = 0.025, trials: int = _TRIALS
    ) -> None:
        self._prepared, self._control, self._confidence, self._trials = dict(prepared), control, confidence, trials
        self._orders = balanced_orders(list(prepared), random.Random(0))
        self._samples: dict[str, list[float]] = {name: [] for name in prepared}
        self._batches: dict[str, _Batch] = {}
        self._done = 0  # rounds

    def statistics(self) -> dict[str, Statistics]:
        """The statistics of all samples so far."""
        return {
            name: summarize(samples, self._done * self._batches[name].calls, self._confidence)
            for name, samples in self._samples.items()
        }

    def extend(self, budget_seconds: float, minimum_rounds: int = MINIMUM_ROUNDS) -> dict[str, Statistics]:
        """Take samples in interleaved rounds; returns the statistics of all samples.

        It ends when the 95 % confidence interval of each median lies within `confidence` (relative) of the median, or
        after `budget_seconds`, but not before `minimum_rounds`.
        """
        if not self._prepared:
            return {}
        begin, done, rounds = perf_counter(), 0, minimum_rounds
        with _no_collection():
            if not self._batches:
                self._batches = _plan(self._prepared, self._control, self._trials, self._orders)
            while True:
                elapsed = self._round(rounds, begin)
                done += rounds
                result = self.statistics()
                left = budget_seconds - elapsed
                if left <= 0 or all(statistics.converged for statistics in result.values()):
                    return result
                per_round = elapsed / done
                rounds = max(1, min(done, int(_AGREE_SECONDS / per_round), int(left / per_round)))

    def _round(self, rounds: int, begin: float) -> float:
        """Run some rounds; returns the time since `begin` on the slowest rank."""
        local = _rounds(self._prepared, self._batches, rounds, self._orders)
        flat = [value for values in local.values() for value in values]
        elapsed, *agreed = self._control.maximum([perf_counter() - begin, *flat])
        for index, values in enumerate(self._samples.values()):
            values.extend(agreed[index * rounds : (index + 1) * rounds])
        self._done += rounds
        return elapsed
