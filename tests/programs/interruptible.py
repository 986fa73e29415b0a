# SPDX-License-Identifier: Apache-2.0
"""Blocking collectives of MPI that raise while they wait: interruptible.py lost|abort|interrupt|differ NAME VALUE.

Rank 2 never makes the call. It is killed, the other ranks abort the group from another thread, or get SIGINT. Or rank 1
alone sets a variable.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import torch

import mcr_dl as dist


def main(how: str, name: str = "", value: str = "") -> None:
    """One rank of three."""
    if how == "differ" and os.environ["RANK"] == "1":
        os.environ[name] = value
    dist.init_process_group("mpi")
    dist.all_reduce(torch.ones(3))
    group = dist.new_group()
    if dist.get_rank() == 2:
        time.sleep(1)
        if how == "lost":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)
        print("rank 2 ends", flush=True)
        os._exit(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    actions = {"abort": group.abort, "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT)}
    if how in actions:
        threading.Timer(0.5, actions[how]).start()
    begin = time.monotonic()
    try:
        dist.all_reduce(torch.ones(1000), group=group)
    except (dist.McrError, KeyboardInterrupt) as error:
        print(f"raised {type(error).__name__} after {time.monotonic() - begin:.1f} s: {error}", flush=True)
        time.sleep(1)  # or the other rank may find this one lost before it raises by itself
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
