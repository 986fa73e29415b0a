# SPDX-License-Identifier: Apache-2.0
"""Ways to make a call, timed in turns."""

from __future__ import annotations

import statistics
from timeit import Timer

_ROUNDS = 21


def medians(timers: dict[str, Timer], calls: int, rounds: int = _ROUNDS) -> dict[str, float]:
    """Median ns per call of each way, over rounds in which each way makes ``calls`` calls."""
    taken: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            taken[name].append(timer.timeit(calls) / calls * 1e9)
    return {name: statistics.median(values) for name, values in taken.items()}
