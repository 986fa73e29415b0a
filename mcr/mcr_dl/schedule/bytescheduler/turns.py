# SPDX-License-Identifier: Apache-2.0
"""Compares plans by the times of training steps, while the job trains; all ranks use the same plan in each step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from mcr_dl.schedule.bytescheduler import planning
from mcr_dl.schedule.bytescheduler.planning import Plan

DROPPED, COUNTED = 2, 6  # steps of a turn in the shortlist
PROBE_DROPPED, PROBE_COUNTED = 5, 20  # steps of a probe of the search


class Turn(NamedTuple):
    """Training steps with one plan; the first ones do not count."""

    plan: Plan
    dropped: int = DROPPED
    counted: int = COUNTED


Turns = Generator[Turn, int, Plan]
"""Yields turns, gets the median nanoseconds of a turn's steps, and returns the plan to keep."""

Agree = Callable[[list[int]], list[int]]
"""From the times on this rank to those of the slowest rank, equal on all ranks."""


@dataclass(eq=False)
class Trial:
    """One plan and its measured turns: nanoseconds a step on this rank."""

    plan: Plan
    turns: list[int] = field(default_factory=list)


def shortlist(plans: Sequence[Plan], trials: list[Trial], agree: Agree) -> Turns:
    """Plans take turns; after each round the slower half leaves, until one is left.

    The fastest program order remains to the end, and stays unless another plan saves more than ``planning.GAIN``.
    """
    left = [Trial(plan) for plan in plans]
    trials += left
    while len(left) > 1:
        for trial in left:
            trial.turns.append((yield Turn(trial.plan)))
        agreed = agree([round(statistics.median(trial.turns)) for trial in left])
        times = dict(zip(map(id, left), agreed, strict=True))
        left.sort(key=lambda trial: times[id(trial)])
        order = next((trial for trial in left if not trial.plan.priorities), None)
        left = left[: len(left) // 2]
        if order is None or order in left:
            continue
        if len(left) > 1 or times[id(left[0])] > times[id(order)] * (1 - planning.GAIN):
            left[-1] = order
    return left[0].plan


def searched(first: Turns, probes: Probes, trials: list[Trial], agree: Agree) -> Turns:
    """The plan that ``first`` returns, unless one of the probes saves more than ``planning.GAIN``."""
    best = yield from first

    def measured(plan: Plan) -> Generator[Turn, int, int]:
        took = yield Turn(plan, PROBE_DROPPED, PROBE_COUNTED)
        trials.append(Trial(plan, [took]))
        return agree([took])[0]

    time_of_best = yield from measured(best)
    tried: list[tuple[int, Plan]] = []
    plan = probes.send(None)
    while plan is not None:
        took = yield from measured(plan)
        tried.append((took, plan))
        plan = probes.send(took)
    if not tried:
        return best
    took, plan = min(tried, key=lambda each: each[0])
    return plan if took < time_of_best * (1 - planning.GAIN) else best


Probes = Generator[Plan | None, int | None, None]
"""Yields plans to measure and gets their nanoseconds a step; None ends the search."""


def slowest(values: list[list[int]]) -> list[int]:
    """The times of all ranks' slowest, from the times on each rank."""
    return [max(column) for column in zip(*values, strict=True)]


class Tuner:
    """Counts steps, and says when the next plan's turn begins.

    Every rank calls ``step_ended`` after every step, so all change plans after the same one.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._turn = next(turns)
        self._ends: list[int] = []
        self.plan = self._turn.plan
        self.done = False

    def step_ended(self) -> bool:
        """Whether the turn is over; then all updates are to be made, and ``advance`` called."""
        self._ends.append(time.perf_counter_ns())
        return len(self._ends) == self._turn.dropped + self._turn.counted

    def advance(self) -> None:
        """Set ``plan`` to the next turn's, or to the one to keep; then ``done`` is set, too."""
        ends = self._ends[self._turn.dropped - 1 :]
        self._ends = []
        try:
            self._turn = self._turns.send(statistics.median_low(b - a for a, b in pairwise(ends)))
            self.plan = self._turn.plan
        except StopIteration as end:
            self.plan, self.done = end.value, True
