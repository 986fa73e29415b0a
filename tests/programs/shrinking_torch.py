# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.shrink_group on the backend "mcr": shrinking_torch.py LOST EXCLUDED, with ranks as "1,2"."""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist
from shrinking import run

import mcr_dl


def main(lost: str, excluded: str) -> None:
    """One rank."""
    dist.init_process_group("mcr", pg_options=mcr_dl.Options(backends=["shm", "gloo"]))
    me, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(size)))
    x = torch.ones(1000)
    dist.all_reduce(x, group=group)
    assert x[0] == size
    if str(me) in lost.split(","):
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(x, group=group)
    except mcr_dl.PeerLostError as error:
        print(f"lost: {error}", flush=True)
    try:
        dist.shrink_group([int(excluded[0])])
        raise AssertionError("the default group has been shrunk")
    except (mcr_dl.InvalidArgumentError, RuntimeError) as error:
        print(f"default: {error}", flush=True)
    group = dist.shrink_group([int(rank) for rank in excluded.split(",")], group=group)
    left = [rank for rank in range(size) if str(rank) not in excluded.split(",")]
    x.fill_(me)
    dist.all_reduce(x, group=group)
    assert x[0] == sum(left), (x[0], left)
    dist.all_reduce(x, group=group, async_op=True).wait()
    print(f"group of {dist.get_world_size(group)}: rank {dist.get_rank(group)}, {dist.get_backend(group)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
