# SPDX-License-Identifier: Apache-2.0
"""Chooses a candidate for each operation: rehearses the communication of a training step without its computation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import permutations, product
from statistics import median
from typing import Any

import torch

import mcr_dl as dist
from mcr_dl.examples.comm import Comm
from mcr_dl.measure.shares import is_striped

Mix = Mapping[str, str]  # candidates by kind of operation
Rehearsal = Callable[[Comm], None]


def name_of(mix: Mix) -> str:
    """A mix as text."""
    return " + ".join(f"{kind} on {candidate}" for kind, candidate in mix.items())


def whole(kinds: Sequence[str], backends: Sequence[str]) -> list[dict[str, str]]:
    """All assignments that put each kind as a whole on one backend."""
    return [dict(zip(kinds, names, strict=True)) for names in product(backends, repeat=len(kinds))]


def uses_several(mix: Mix) -> bool:
    """Whether the mix has more than one backend."""
    return len(set(mix.values())) > 1 or any(map(is_striped, mix.values()))


def measure(
    rehearse: Rehearsal, mixes: Sequence[Mix], groups: Mapping[str, Any], *, rounds: int = 3, repeats: int = 3
) -> list[float]:
    """Seconds of a step's communication on the slowest rank, for each mix: the lowest of the rounds' medians. Equal on
    all ranks.

    Args:
        rehearse: makes the calls of one step, with its waits.
        mixes: the mixes to try; they take turns.
        groups: by kind of operation.
        rounds, repeats: how often; each repetition begins with a barrier.
    """
    comms = [Comm(mix, groups=groups) for mix in mixes]
    times: list[list[float]] = [[] for _ in mixes]
    for comm in comms:  # a library's first messages make its connections
        rehearse(comm)
    for _ in range(rounds):
        for comm, kept in zip(comms, times, strict=True):
            kept.append(median(slowest_seconds(partial(rehearse, comm)) for _ in range(repeats)))
    return [min(kept) for kept in times]


def slowest_seconds(run: Callable[[], object], group: Any = None) -> float:
    """Seconds that ``run`` takes on the group's slowest rank, after a barrier; equal on all its ranks."""
    dist.barrier(group)
    start = time.perf_counter()
    run()
    took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX, group=group, codec="none")
    return float(took)


def with_stripes(backends: Sequence[str]) -> list[str]:
    """The backends of groups for any mix of these: with stripes over all pairs of them."""
    return [*backends, *(f"stripe({first},{second})" for first, second in permutations(backends, 2))]


def striped(kinds: Sequence[str], backends: Sequence[str], seconds: Mapping[str, float]) -> list[dict[str, str]]:
    """Mixes in which the messages of some kinds are cut over two backends in proportion to their speeds.

    Args:
        kinds: the kinds of operations.
        backends: the two backends.
        seconds: by backend, the time of the step's communication on it alone.
    """
    first, second = sorted(backends, key=lambda name: seconds[name])
    share = seconds[second] / (seconds[first] + seconds[second])
    # The faster one may slow down more, or less, than its time alone suggests.
    shares = (share, (share + 0.5) / 2, (share + 1) / 2)
    cut, *others = (f"stripe({first},{second},{min(99, round(100 * part))})" for part in shares)
    ways = [way for way in product((cut, *backends), repeat=len(kinds)) if cut in way]
    ways += [(other,) * len(kinds) for other in others]
    return [dict(zip(kinds, way, strict=True)) for way in ways]
