# SPDX-License-Identifier: Apache-2.0
"""Whether iterations that follow a plan have become slower than they were, so that another plan may be faster."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WINDOWS = 3  # in a row in which iterations are slower, before there is a new plan
SLOWER = 0.05  # by how much of their first time they take longer then
WORTH = 0.25  # the time lost in these windows, relative to that of making a plan, from which a new one is made


@dataclass
class Slowdown:
    """Compares windows of iterations with the first one. Used by rank 0 alone, which decides for all ranks.

    Iterations are slower if they take longer, or if the plan's order holds communication back for longer: other
    calls are ready, and the first one in the order has not been made yet. Times are in ns.
    """

    time: float = 0.0  # of an iteration in the first window
    held: float = 0.0  # for how long the order held communication back in it
    windows: int = 0  # in a row that were slower, up to the last one
    loss: float = 0.0  # in these

    def add(self, times: Sequence[int], held: int) -> None:
        """The times of the next window's iterations, and for how long the order held communication back in all."""
        time, mean = statistics.median(times), held / len(times)
        if not self.time:
            self.time, self.held = time, mean
        longer = max(time - self.time, mean - self.held)
        slower = longer > SLOWER * self.time
        self.windows = self.windows + 1 if slower else 0
        self.loss = self.loss + len(times) * longer if slower else 0.0

    def calls_for_a_plan(self, price: float) -> bool:
        """Whether another plan is worth the time of making it."""
        return self.windows >= WINDOWS and self.loss >= WORTH * price
