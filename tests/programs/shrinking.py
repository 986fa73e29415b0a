# SPDX-License-Identifier: Apache-2.0
"""Ranks that go on without lost ones: shrinking.py BACKENDS LOSSES, with backends as "mpi,gloo".

LOSSES names the ranks that end at each stage, as "1/3": rank 1, and after the first shrink rank 3. "2!" ends inside
shrink(), before the ranks have agreed, "2*" when it has left its address for the new group, "2-" and "2+" before and
after it connects to the others by MPI, "2?" does not call it, "2~" calls it after the others' timeout, and they call it
again, "2^" has not noticed the loss and calls grow() first. "2b" ends while the others are in a blocking call. A
survivor prints its new rank and the backends of each group.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch

import mcr_dl as dist
from mcr_dl.groups import libraries_after_loss, survivors
from mcr_dl.runtime import communicators, state, watched_store
from mcr_dl.testing.expect import expect

LIMIT = timedelta(seconds=float(os.environ.get("SHRINKING_LIMIT", "1800")))
REPORTED = 3


def die(*_: object, **__: object) -> None:
    """End at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def check(group: object, world: int) -> None:
    """Each kind of call on the group: blocking on each backend, asynchronous, between two ranks."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    ranks = dist.get_process_group_ranks(group)
    for backend in dist.get_backends(group):
        x = torch.full((1000,), float(dist.get_rank()))
        dist.all_reduce(backend, x, group=group)
        assert x[0] == sum(ranks), (backend, x[0], ranks)
    parts = torch.empty(size)
    dist.all_gather_into_tensor(parts, torch.tensor([float(rank)]), group=group, async_op=True).wait()
    assert parts.tolist() == list(range(size))
    if size > 1 and rank == 0:
        dist.send(torch.tensor([5.0]), dst=ranks[-1], group=group)
    if size > 1 and rank == size - 1:
        dist.recv(x[:1], src=ranks[0], group=group)
        assert x[0] == 5
    dist.barrier(group=group)
    print(f"group of {size} of {world}: rank {rank}, {','.join(dist.get_backends(group))}", flush=True)


def leave(former: dist.ProcessGroup | None) -> None:
    """Destroy a group that has lost ranks; nothing is left of it, and of the libraries that shrink() has tried."""
    if former is not dist.group.WORLD:
        dist.destroy_process_group(former)
        expect(dist.NotInitializedError, lambda: dist.topology(former), "destroyed")
    current = state.current()
    assert set(current.belongings) <= set(current.groups)
    assert not [name for name in current.counts if name.endswith("/mpi")]


def run(program: Callable[..., None]) -> None:
    """Run a program on the command line's arguments, and report an error of mcr_dl by the exit code."""
    try:
        program(*sys.argv[1:])
    except dist.McrError as error:
        print(f"REPORTED {type(error).__name__}: {error}", flush=True)
        sys.exit(REPORTED)


def main(backends: str, losses: str) -> None:
    """One rank."""
    dist.init_process_group(backends.split(","))
    me, world = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    check(group, world)
    for stage in losses.split("/"):
        lost = stage.split(",")
        if {str(me), f"{me}b"} & set(lost):
            die()
        if f"{me}?" in lost:
            time.sleep(LIMIT.total_seconds() * 3)
            return
        if f"{me}!" in lost:
            survivors._Steps._conclude = die  # type: ignore[method-assign]
        elif f"{me}*" in lost:
            watched_store.WatchedStore.wait = die  # type: ignore[method-assign]
        elif f"{me}-" in lost:
            communicators._unless_lost = die  # type: ignore[assignment]
        elif f"{me}+" in lost:
            libraries_after_loss._exchange = die
        elif f"{me}^" in lost:
            try:
                dist.grow(group, LIMIT)
                raise AssertionError("grow() has ended well while other ranks were in shrink()")
            except dist.PeerLostError as error:
                print(f"lost: {error}", flush=True)
        elif not any(each.endswith(("!", "*", "-", "+")) for each in lost):
            try:
                if any(each.endswith("b") for each in lost):
                    dist.all_reduce(torch.ones(1000), group=group)
                works = [dist.all_reduce(torch.ones(1000), group=group, async_op=True) for _ in range(3)]
                for work in works:
                    work.wait()
                raise AssertionError("a call without lost ranks has ended well")
            except dist.PeerLostError as error:
                print(f"lost: {error}", flush=True)
        late = any(each.endswith("~") for each in lost)
        if f"{me}~" in lost:
            time.sleep(LIMIT.total_seconds() * 3)
        former = group
        try:
            group = dist.shrink(group, LIMIT)
        except dist.CollectiveTimeoutError:
            if not late:
                raise
            group = dist.shrink(group, LIMIT * 30)
        check(group, world)
        leave(former)
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
