# SPDX-License-Identifier: Apache-2.0
"""Syndicate with given plans: any forms, candidates and orders, also such as no search would find."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mcr_dl.planner import lanes, motifs, options
from mcr_dl.planner.plans import Place
from mcr_dl.schedule import Syndicate
from mcr_dl.schedule.syndicate.execution import Document
from mcr_dl.schedule.syndicate.iteration import Iteration
from mcr_dl.schedule.syndicate.known import Settings
from mcr_dl.schedule.syndicate.replanning import Replanner

Make = Callable[[Iteration, int], list[Document]]
"""Makes the plans of an iteration, with at most so many lanes."""


class _Given(Replanner):
    """Its plans stay, regardless of their times; unless ``again``, they never change."""

    def __init__(self, settings: Settings, make: Make, again: bool) -> None:
        super().__init__(replace(settings, gain=-1e9))
        self._make_plans, self._again = make, again

    def search(self, iteration: Iteration, times: list[int], costs: Any) -> dict[str, Any]:
        """The given plans."""
        del times, costs
        return {"plans": self._make_plans(iteration, self.settings.lanes), "before": 2, "after": 1}

    def slower(self, window: list[int], held: int) -> bool:
        """As it is measured, or never."""
        return super().slower(window, held) and self._again


class Planned(Syndicate):
    """With plans that ``make`` makes on rank 0, which stay; with ``again``, until iterations become slower."""

    def __init__(self, make: Make, *, again: bool = False, rounds: int = 2) -> None:
        self.replanner = lambda settings: _Given(settings, make, again)
        super().__init__(rounds=rounds)


def random_plan(
    iteration: Iteration,
    rng: random.Random,
    most: int,
    *,
    left_out: float = 0.1,
    may: Callable[[int, int], bool] | None = None,
) -> Document:
    """A random plan, with at most ``most`` lanes.

    ``left_out``: the share of calls that stay as they are. ``may``: whether the order may put a call behind a later
    one; without it, any order, in which some calls are one iteration ahead.
    """
    calls = _drawn(iteration, rng, left_out)
    order = [(call, motif, 0) for call, row in enumerate(calls) if row for motif in range(len(row[1]))]
    found = None
    while found is None:
        wanted = _shuffled(order, rng, may)
        if may is None:
            wanted = [
                (call, motif, rng.randrange(2) if motif == 0 and calls[call][0] == "whole" else 0)
                for call, motif, _ in wanted
            ]
        found = lanes.assign(wanted, dict(enumerate(iteration.of_call)), most)
    for (call, motif), lane in sorted(found.items()):
        calls[call][2].append(lane)
        assert len(calls[call][2]) == motif + 1
    return {"name": "random", "calls": calls, "order": [list(place) for place in wanted]}


def _drawn(iteration: Iteration, rng: random.Random, left_out: float) -> list[Any]:
    """Any form and candidates for each call; None for those that stay as they are."""
    calls: list[Any] = []
    for index in range(len(iteration.calls)):
        call = iteration.planned(index)
        if call is None or rng.random() < left_out:
            calls.append(None)
            continue
        name, form = rng.choice(list(options.expressions(call)))
        channels = iteration.channels(iteration.of_call[index])
        calls.append([name, [rng.choice(channels) for _ in motifs.steps(form)], []])
    return calls


def _shuffled(order: list[Place], rng: random.Random, may: Callable[[int, int], bool] | None) -> list[Place]:
    """An order in which neighbours have changed places, motifs of one call never."""
    order = list(order)
    for _ in range(rng.randrange(2 * len(order) + 1) if len(order) > 1 else 0):
        at = rng.randrange(len(order) - 1)
        one, other = order[at][0], order[at + 1][0]
        if one > other or (one < other and (may is None or may(one, other))):
            order[at], order[at + 1] = order[at + 1], order[at]
    return order
