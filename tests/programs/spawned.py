# SPDX-License-Identifier: Apache-2.0
"""Two ranks that multiprocessing starts, of which rank 1 ends as FAULTS says: spawned.py STARTER FAULT LIMIT.

STARTER: torch, alone, or one of multiprocessing's start methods. LIMIT: the seconds of rank 0's call that meets the
fault.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from datetime import timedelta
from typing import Any

import torch
import torch.multiprocessing

import mcr_dl as dist

START = timedelta(seconds=30)
REPORTED = 3


def bad() -> None:
    """Raise the exception of a wrong program."""
    raise ValueError("bad batch")


def caught() -> None:
    """Print the exception, and end with the code of a failure."""
    try:
        bad()
    except ValueError:
        traceback.print_exc()
        sys.exit(1)


def destroyed() -> None:
    """Fail after the end of communication."""
    dist.destroy_process_group()
    bad()


FAULTS = {
    "raise": bad,
    "caught": caught,
    "exit": lambda: sys.exit(4),
    "destroyed": destroyed,
    "end": lambda: sys.exit(0),
    "return": lambda: None,
}


def rank(index: int, fault: str, limit: str) -> None:
    """One rank."""
    os.environ.update(RANK=str(index), LOCAL_RANK=str(index))
    dist.init_process_group("shm", timeout=START)
    x = torch.ones(10)
    dist.all_reduce(x)
    if index == 1:
        FAULTS[fault]()
        return
    try:
        dist.all_reduce(x, timeout=float(limit))
    except dist.McrError as error:
        print(f"REPORTED {type(error).__name__}: {error}", flush=True)
        os._exit(REPORTED)


def main(starter: str, *arguments: str) -> None:
    """Start the ranks, and wait for them in their order, so that rank 1's end is not collected before rank 0's."""
    if starter == "alone":
        rank(int(os.environ["RANK"]), *arguments)
        return
    ranks: Any
    if starter == "torch":
        ranks = torch.multiprocessing.start_processes(rank, arguments, nprocs=2, join=False).processes
    else:
        context: Any = multiprocessing.get_context(starter)
        ranks = [context.Process(target=rank, args=(i, *arguments)) for i in range(2)]
        for each in ranks:
            each.start()
    for each in ranks:
        each.join()
    print(f"CODES {[each.exitcode for each in ranks]}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
