# SPDX-License-Identifier: Apache-2.0
"""Ranks that take processes for lost ones: growing.py BACKENDS LOST MODE, with ranks as "1,2".

A rank that is named in LOST ends. MODE is "shrink", for survivors that shrink first, or "grow". With the variable
GROWING_REJOIN the process takes the place of its rank. It says how: "yes"; "without": it lacks the backend; or when it
ends: "waiting": before the others look, "inside": before they have agreed, "connecting": when it has left its address,
"again": as soon as they have taken it. A rank prints its new rank and the backends of each group.
"""

from __future__ import annotations

import math
import os
import time
from datetime import timedelta

import pytest
import torch
from shrinking import check, die, run

import mcr_dl as dist
from mcr_dl.groups import applicants, survivors
from mcr_dl.libraries import registry
from mcr_dl.runtime import handles, state, watched_store
from mcr_dl.watch import _watch

LIMIT = timedelta(seconds=float(os.environ.get("GROWING_LIMIT", "1800")))
REJOIN = os.environ.get("GROWING_REJOIN", "")


def refuse(name: str) -> str:
    """An installation that lacks the library."""
    raise dist.BackendUnavailableError(f"no {name} here")


def further(group: object) -> None:
    """A new group, objects, a split and the order of later calls, on all ranks."""
    world = dist.get_world_size(group)
    check(dist.new_group(backend=dist.get_backends(group)), world)
    told: list[object] = [None] * world
    dist.all_gather_object(told, ("rank", dist.get_rank()), group=group)
    assert sorted(told) == [("rank", rank) for rank in range(world)], told
    parts = [[place for place in range(world) if place % 2 == which] for which in (0, 1)]
    check(dist.split_group(group, parts), world)
    with pytest.raises(dist.PeerLostError, match="lost rank"):
        dist.all_reduce(torch.ones(1))
    for _ in range(3):
        assert dist.grow(group, LIMIT) is group
    dist.barrier(group=group)
    current = state.current()
    name = handles.core_group(group).name()
    attempt, number = current.of(name).last_idle_grow.rsplit("-", 1)  # each one deletes what the last has left
    for key in ("outcome", dist.get_rank()):
        left = [current.store.check([f"survivors/{attempt}-{int(number) - back}/left/{key}"]) for back in range(3)]
        assert left == [True, False, False], left
    assert math.prod(dist.topology().shape) == world
    for make in (dist.grow, dist.shrink):  # all ranks of the default group are there again, but not all processes
        check(make(None, LIMIT), world)


def complete(group: object, size: int) -> bool:
    """Make a step, as after each call of grow(). Returns whether the group has this size, and no rank is lost."""
    try:
        dist.all_reduce(torch.ones(1), group=group)
    except dist.PeerLostError as error:
        print(f"lost: {error}", flush=True)
        return False
    return dist.get_world_size(group) == size


def main(backends: str, lost_ranks: str, mode: str) -> None:
    """One rank."""
    lost = [int(rank) for rank in lost_ranks.split(",")]
    if REJOIN:
        if REJOIN == "waiting":
            applicants.poll = die
        if REJOIN == "connecting":
            watched_store.WatchedStore.wait = die  # type: ignore[method-assign]
        if REJOIN == "without":
            registry.load = refuse  # type: ignore[assignment]
        if REJOIN == "inside":
            survivors._Steps._conclude = die  # type: ignore[method-assign]
        group = dist.rejoin(os.environ.get("GROWING_URL"), LIMIT)
        if REJOIN == "again":
            die()
        world = dist.get_world_size()
    else:
        dist.init_process_group(None if backends == "auto" else backends.split(","))
        group, world = dist.group.WORLD, dist.get_world_size()
        assert dist.grow(group) is group
        check(group, world)
        if dist.get_rank() in lost and "GROWING_RAISE" in os.environ:
            raise ValueError("bad batch")
        if dist.get_rank() in lost:
            die()
        try:
            dist.all_reduce(torch.ones(1000), group=group, async_op=True).wait()
        except dist.PeerLostError as error:
            print(f"lost: {error}", flush=True)
        if mode == "shrink":
            group = dist.shrink(group, LIMIT)
            check(group, world)
    while not complete(group, world):
        try:
            group = dist.grow(group, LIMIT)
        except dist.BackendUnavailableError as error:
            print(f"refused: {error}; the job has {','.join(state.current().backends)}", flush=True)
        time.sleep(0.02)
    check(group, world)
    print(f"job {state.current().job}", flush=True)
    print(f"in detail: {_watch._current is not None and _watch._current.detail is not None}", flush=True)
    further(group)
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
