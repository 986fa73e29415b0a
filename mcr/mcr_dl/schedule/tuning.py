# SPDX-License-Identifier: Apache-2.0
"""Compares plans by the times of training steps, while the job trains; all ranks use the same plan in each step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from mcr_dl.schedule import planning
from mcr_dl.schedule.planning import Plan

DROPPED, TURN = 2, 6  # steps at the start of a turn that do not count, and steps that do

Turns = Generator[Plan, float, Plan]
"""Yields the plan of each turn, gets its nanoseconds a step, and returns the plan to keep."""

Agree = Callable[[list[int]], list[int]]
"""From the times on this rank to those of the slowest rank, equal on all ranks."""


@dataclass
class Trial:
    """One plan and its measured turns: nanoseconds a step on this rank."""

    plan: Plan
    turns: list[float] = field(default_factory=list)


def shortlist(plans: Sequence[Plan], trials: list[Trial], agree: Agree) -> Turns:
    """Plans take turns; after each round the slower half leaves, until one is left.

    The last program order stays unless the last other plan saves more than ``planning.GAIN``.
    """
    trials += [Trial(plan) for plan in plans]
    left = list(trials)
    while len(left) > 1:
        for trial in left:
            trial.turns.append((yield trial.plan))
        mine = [round(statistics.median(trial.turns)) for trial in left]
        times = dict(zip(map(id, left), agree(mine), strict=True))
        left.sort(key=lambda trial: times[id(trial)])
        if len(left) == 2 and times[id(left[0])] > times[id(left[1])] * (1 - planning.GAIN):
            left.sort(key=lambda trial: trial.plan.priorities)
        left = left[: len(left) // 2]
    return left[0].plan


def slowest(values: list[list[int]]) -> list[int]:
    """The times of all ranks' slowest, from the times on each rank."""
    return [max(column) for column in zip(*values, strict=True)]


class Tuner:
    """Counts steps, and says when the next plan's turn begins.

    Every rank calls ``step_ended`` after every step, so all change plans after the same one.
    """

    def __init__(self, turns: Turns, dropped: int = DROPPED, counted: int = TURN) -> None:
        self.plan = next(turns)
        self.done = False
        self._turns = turns
        self._lengths = dropped, counted
        self._steps = 0
        self._begin = 0

    def step_ended(self) -> bool:
        """Whether the turn is over; then all updates are to be made, and ``advance`` called."""
        dropped, counted = self._lengths
        self._steps += 1
        if self._steps == dropped:
            self._begin = time.perf_counter_ns()
        return self._steps == dropped + counted

    def advance(self) -> None:
        """Set ``plan`` to the next turn's, or to the one to keep; then ``done`` is set, too."""
        took = (time.perf_counter_ns() - self._begin) / self._lengths[1]
        self._steps = 0
        try:
            self.plan = self._turns.send(took)
        except StopIteration as end:
            self.plan, self.done = end.value, True
