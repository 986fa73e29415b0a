# SPDX-License-Identifier: Apache-2.0
"""A job that communicates until the network fails: network.py BACKEND PHASE, with the phases of faulty.py."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch

import mcr_dl as dist

LIMIT = timedelta(seconds=float(os.environ.get("NETWORK_LIMIT", "2")))
REPORTED = 3


def main(backend: str, phase: str) -> None:
    """One rank; it communicates for a minute at most."""
    dist.init_process_group(backend)
    tensors = [torch.ones(size) for size in (1, 1000, 50000)]
    for x in tensors:
        dist.all_reduce(x)
    print("ready", flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if phase == "idle":
            time.sleep(1)
        works = [dist.all_reduce(x, async_op=phase == "storm", timeout=LIMIT) for x in tensors * 2]
        for work in works:
            if work is not None:
                work.wait()
        for x in tensors:
            x.fill_(1)
    raise AssertionError("the network has not failed")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except dist.McrError as error:
        print(f"REPORTED {type(error).__name__}: {error}", flush=True)
        sys.stdout.flush()
        os._exit(REPORTED)
