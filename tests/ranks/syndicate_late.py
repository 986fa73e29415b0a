# SPDX-License-Identifier: Apache-2.0
"""Syndicate on ranks that come late to their agreements, again and again, or are far ahead of each other."""

from __future__ import annotations

import random
import time
from typing import Any
from unittest import mock

import torch

import mcr_dl
from mcr_dl.runtime import meetings
from mcr_dl.schedule.syndicate import replanning
from mcr_dl.testing.plans import Planned
from ranks import session
from ranks.syndicate import Program, random_plans_of

PATIENCE, LATE = 0.03, 0.1  # seconds


class Ahead:
    """An iteration of broadcasts by rank 0, which does not wait for the others."""

    def __init__(self) -> None:
        self.rank, self.number = mcr_dl.get_rank(), 0

    def iterate(self, extra: bool = False) -> None:
        self.number += 1
        values = [torch.full((3 + index,), float(self.number if self.rank == 0 else -1)) for index in range(7)]
        for value in values:
            mcr_dl.broadcast(value, 0)
        if extra:
            mcr_dl.broadcast(values[0], 0)
        for value in values:
            assert bool(value.eq(self.number).all()), (self.number, value)


def late(seed: int, iterations: int, ahead: bool) -> list[str]:
    """Many changes of plans of which some ranks have no part; what has happened."""
    session.start()
    equal, own = random.Random(seed), random.Random(f"{seed} {mcr_dl.get_rank()}")
    with (
        mock.patch.object(replanning, "_FAILURES", 10**9),
        mock.patch.object(meetings, "NEXT", PATIENCE / 2),
        Planned(random_plans_of(seed), again=True, rounds=1) as planned,
    ):
        replanner: Any = planned._replanner
        meet = replanner._meet

        def come_late(what: str, value: Any, decide: Any, _patience: float = 0.0) -> Any:
            if own.random() < 0.1:
                time.sleep(own.random() * LATE)
            return meet(what, value, decide, PATIENCE)

        replanner._meet = come_late
        replanner.slower = lambda _window, _held: own.random() < 0.3
        program = Ahead() if ahead else Program()
        for _ in range(iterations):
            program.iterate(extra=equal.random() < 0.01)
    return [event.what for event in planned.events]
