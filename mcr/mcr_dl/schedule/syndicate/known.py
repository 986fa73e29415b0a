# SPDX-License-Identifier: Apache-2.0
"""Iterations of one kind as Syndicate knows them: their plans, and the times of these."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mcr_dl.base import documents
from mcr_dl.schedule.syndicate import execution

KEPT = 6  # iterations that are looked at, and repetitions from which they are found
CHECK = 5  # iterations between two decisions of rank 0, at least
_MOST_CHECK = 200  # at most, so that the digests of orders are still there
_CHECK_TIME = 20_000_000  # ns between two decisions


class Phase(Enum):
    """The state of the ranks, equal on all of them."""

    WATCHING = "watching"
    TRYING = "trying"
    STEADY = "steady"
    OFF = "off"


@dataclass(frozen=True)
class Event:
    """Something that has changed. ``before`` and ``after``: ms of an iteration without and with the plan.

    ``what``: "planned" (simulated times), "kept" or "dropped" (measured times), "none" (no plan is better), "left" (the
    program made or marked another call), "slower" (a new plan is made), or "failed" (the ranks have no common plan).
    """

    iteration: int
    what: str
    before: float = 0.0
    after: float = 0.0


class Turn(NamedTuple):
    """A turn of a plan: its name, "" for none, and the times of its iterations on this rank in ms."""

    name: str
    times: tuple[float, ...]


@dataclass
class Settings:
    """As the arguments of ``Syndicate``."""

    budget: float
    lanes: int
    tries: int
    rounds: int
    promising: float
    gain: float
    seed: int


@dataclass
class Known:
    """The plans for iterations of one kind: plans that are worth a try, or the one that stays. Equal on all ranks."""

    plans: list[execution.Document]
    time: int  # ns of an iteration
    chosen: bool = False
    turns: list[int] = field(default_factory=list)  # ns of an iteration in each turn so far, on the slowest rank

    def digest(self) -> str:
        """A digest of all that must be equal on all ranks."""
        return documents.hash_of({"plans": self.plans, "state": [self.time, self.chosen, self.turns]})

    @property
    def tried(self) -> list[execution.Document | None]:
        """The plans that take turns, and program order, which does too."""
        return [*self.plans, None]

    def choose(self, rounds: int, gain: float) -> tuple[bool, int, int] | None:
        """After the last turn: whether a plan stays, and the times of program order and of the fastest plan.

        The fastest one stays if it saves the share ``gain`` of the time of program order.
        """
        tried = len(self.tried)
        if len(self.turns) < rounds * tried:
            return None
        *planned, plain = [statistics.median_low(self.turns[index::tried]) for index in range(tried)]
        fastest = min(planned)
        stays = fastest <= plain * (1 - gain)
        self.plans = [self.plans[planned.index(fastest)]] if stays else []
        self.time = fastest if stays else plain
        self.chosen, self.turns = True, []
        return stays, plain, fastest

    @property
    def check(self) -> int:
        """Iterations between two decisions of rank 0."""
        return min(max(CHECK, -(-_CHECK_TIME // max(1, self.time))), _MOST_CHECK)
