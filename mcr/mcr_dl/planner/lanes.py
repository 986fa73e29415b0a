# SPDX-License-Identifier: Apache-2.0
"""Lanes: communicators for the motifs of a plan, so that its order cannot make calls of different ranks meet.

Motifs of one lane are always issued in program order. So each of them meets the same motif of the other ranks, even on
a rank that leaves the plan's order. A plan that changes the order of calls needs several lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcr_dl.planner.plans import Place


def assign(order: Sequence[Place], groups: Mapping[int, int], most: int) -> dict[tuple[int, int], int] | None:
    """The lane of each (call, motif) within its group; None if the order needs more than ``most``.

    ``order``: of all motifs in a round, as in ``Plan``; ``groups``: the group of each call. Each motif gets the first
    lane on which it comes after those before it in the round, and before those of the next round.
    """
    lanes: dict[int, list[list[tuple[int, int, int]]]] = {}  # by group: iteration, call, motif on each lane
    found = {}
    for call, motif, ahead in order:
        of_group = lanes.setdefault(groups[call], [[] for _ in range(most)])
        key = (ahead, call, motif)
        for index, lane in enumerate(of_group):
            if not lane or (lane[-1] < key and key < (lane[0][0] + 1, *lane[0][1:])):
                lane.append(key)
                found[call, motif] = index
                break
        else:
            return None
    return found
