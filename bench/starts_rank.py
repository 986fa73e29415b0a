# SPDX-License-Identifier: Apache-2.0
"""A rank of starts.py: prints the moment at which each phase of its life has ended."""

from __future__ import annotations

import time

import torch

import mcr_dl as dist


def tell(phase: str) -> None:
    """Print the moment."""
    print(f"PHASE {phase} {time.monotonic()}", flush=True)


if __name__ == "__main__":
    tell("import")
    dist.init_process_group(["mpi", "gloo", "shm"], timeout=250)
    tell("init")
    for name in dist.get_backends():
        x = torch.ones(1000)
        dist.all_reduce(x, backend=name)
        dist.all_reduce(x, backend=name, async_op=True).wait()
    tell("use")
    dist.destroy_process_group()
    tell("end")
