# SPDX-License-Identifier: Apache-2.0
"""The best order of transfers by trying all of them: what ``mcr_dl.schedule`` simulates is compared with it.

Layers are numbered by their first use in the forward pass; ``ready`` is when each gradient is there, ``nbytes`` how
many units of time its transfer takes, ``forward`` the duration of each layer. All are small integers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache


def ready_times(backward: Sequence[int]) -> list[int]:
    """When each gradient is there: the backward pass begins with the last layer."""
    return [sum(backward[index:]) for index in range(len(backward))]


def best(ready: Sequence[int], nbytes: tuple[int, ...], forward: Sequence[int]) -> int:
    """The earliest end of the forward pass over all orders of unit transfers, with and without pauses."""
    tails = [sum(forward[index:]) for index in range(len(forward))]

    @cache
    def latest(now: int, left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        ends = []
        for index, count in enumerate(left):
            if count and ready[index] <= now:
                after = (*left[:index], count - 1, *left[index + 1 :])
                ends.append(max(latest(now + 1, after), now + 1 + tails[index] if count == 1 else 0))
        if any(count and ready[index] > now for index, count in enumerate(left)):
            ends.append(latest(now + 1, left))
        return min(ends)

    return max(max(ready) + tails[0], latest(0, nbytes))


def best_of_whole(ready: Sequence[int], nbytes: Sequence[int], forward: Sequence[int]) -> int:
    """The earliest end of the forward pass over all orders of whole gradients."""
    ends = []
    for order in itertools.permutations(range(len(nbytes))):
        now, end = 0, max(ready) + sum(forward)
        for index in order:
            now = max(now, ready[index]) + nbytes[index]
            end = max(end, now + sum(forward[index:]))
        ends.append(end)
    return min(ends)
