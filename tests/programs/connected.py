# SPDX-License-Identifier: Apache-2.0
"""Ranks that wait for one that stops, or ends with a forked child left: connected.py BACKEND HOW RANK.

HOW is "stop": the rank stops itself, and goes on if it is continued; "fork": it forks a child, and is killed; "kill".
"""

from __future__ import annotations

import os
import signal
import time

import torch
from shrinking import check, run

import mcr_dl as dist


def main(backend: str, how: str, rank: str) -> None:
    """One rank."""
    dist.init_process_group(backend)
    check(None, dist.get_world_size())
    if dist.get_rank() == int(rank):
        if how == "fork" and os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)
    dist.all_reduce(torch.ones(1000), async_op=True).wait()
    check(None, dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
