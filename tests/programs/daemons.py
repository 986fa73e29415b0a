# SPDX-License-Identifier: Apache-2.0
"""The program ends while a daemon thread waits for a message: daemons.py BACKEND mcr_dl|torch."""

from __future__ import annotations

import sys
import threading

import torch
import torch.distributed as torch_dist

import mcr_dl as dist


def main(backend: str, functions: str) -> None:
    """One rank of two."""
    dist.init_process_group(backend)
    other = 1 - dist.get_rank()
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        # The message never comes.
        if functions == "torch":
            torch_dist.recv(torch.empty(1), other)
        else:
            dist.recv(torch.empty(1), other)

    threading.Thread(target=wait, daemon=True).start()
    begun.wait()
    for _ in range(100):  # by then the thread waits inside the call
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    print("END", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
