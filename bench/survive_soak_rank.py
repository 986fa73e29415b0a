# SPDX-License-Identifier: Apache-2.0
"""A rank of survive_soak.py: it checks random calls until the time is over, with whatever ranks are left.

Prints each change of its group, and the number of checked calls at its end. With the variable SOAK_REJOIN, the process
takes the place of a lost rank. Rank 0 ends the job after SIGUSR1.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import Any

import torch

import mcr_dl as dist

GROW_EVERY = 20  # steps


def tell(*words: object) -> None:
    """Print at once."""
    print(*words, flush=True)


def common(group: Any, values: list[int]) -> list[int]:
    """The largest of each value over the group's ranks."""
    x = torch.tensor(values)
    dist.all_reduce(x, dist.ReduceOp.MAX, group=group)
    return [int(value) for value in x]


def check(group: Any, step: int) -> int:
    """One call of each kind on each backend, with sizes that follow from the step. Returns their number."""
    draw, calls = random.Random(step), 0
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    for backend in dist.get_backends(group):
        count = draw.choice([1, 100, 10_000, 300_000])
        x = torch.full((count,), float(rank + step % 7))
        work = dist.all_reduce(x, group=group, backend=backend, async_op=draw.random() < 0.5)
        if work is not None:
            work.wait()
        assert x.eq(sum(range(size)) + size * (step % 7)).all(), (backend, step, x)
        parts = torch.empty(size * count)
        dist.all_gather_into_tensor(parts, torch.full((count,), float(rank)), group=group, backend=backend)
        assert parts.view(size, count).eq(torch.arange(size)[:, None]).all(), (backend, step, parts)
        calls += 2
    return calls


def leave(group: Any) -> None:
    """Free a group that has been replaced; the default group stays."""
    if group is not dist.group.WORLD:
        dist.destroy_process_group(group)


def main(pause: float) -> None:
    """One rank."""
    ended: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: ended.append(number))
    tell("READY")
    fresh = "SOAK_REJOIN" in os.environ
    group: dist.ProcessGroup | None
    if fresh:
        group, step, changed = dist.rejoin(), 0, True
    else:
        dist.init_process_group(["shm", "gloo"])
        group, step, changed = dist.group.WORLD, 1, False
    calls, stop = 0, 0
    while not stop:
        try:
            if changed:
                (step,), changed = common(group, [step]), False
                tell(f"GROUP of {dist.get_world_size(group)} at step {step}")
            if step % GROW_EVERY == 0 and not fresh:
                former, group = group, dist.grow(group)
                changed = group is not former
                if changed:
                    leave(former)
                    fresh = True  # the new processes go on behind grow()
                    continue
            fresh = False
            most, least, stop = common(group, [step, -step, len(ended)])
            assert most == -least == step, (most, -least, step)
            calls += check(group, step)
            step += 1
            time.sleep(pause)
        except dist.PeerLostError:
            former, group, changed = group, dist.shrink(group), True
            leave(former)
    tell(f"CHECKED {calls}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(float(sys.argv[1]))
