# SPDX-License-Identifier: Apache-2.0
"""Ranks that wait for one that stops, or ends with a forked child left: connected.py BACKEND HOW RANK.

HOW is "stop": the rank stops itself, and goes on if it is continued; "fork": it forks a child, and is killed; "kill".
"cut": a rank of which the network is cut for a while, which the others go on without.
"""

from __future__ import annotations

import os
import signal
import time

import torch
from shrinking import check, run

import mcr_dl as dist


def go_on() -> None:
    """Wait until a rank is lost, and for six seconds, in which the network comes back. Go on with what is left."""
    lost = False
    while not lost:
        time.sleep(0.1)
        try:
            dist.all_reduce(torch.ones(1000), async_op=True).wait()
        except dist.PeerLostError as error:
            print(f"lost: {error}", flush=True)
            lost = True
    time.sleep(6)
    check(dist.shrink(), dist.get_world_size())


def main(backend: str, how: str, rank: str) -> None:
    """One rank."""
    dist.init_process_group(backend)
    check(None, dist.get_world_size())
    if how == "cut":
        go_on()
        time.sleep(5)  # the store is rank 0's, and the one that was cut off may be late
        os._exit(0)
    if dist.get_rank() == int(rank):
        if how == "fork":
            child = os.fork()
            if child == 0:
                time.sleep(600)
                os._exit(0)
            print(f"child {child}.", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)
    dist.all_reduce(torch.ones(1000), async_op=True).wait()
    check(None, dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
