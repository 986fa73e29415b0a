# SPDX-License-Identifier: Apache-2.0
"""The program ends while a daemon thread waits for a message, or while the callback of a future or a
completion hook runs: daemons.py BACKEND mcr_dl|torch|late|callback|own_callback|hook.

``late``: the wait ends once Python has begun to end. ``own_callback``: of a work of mcr_dl's functions.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist

import mcr_dl as dist

_LAST = 400_000  # microseconds from the end of Python to that of the process: threads look for signals more often
_LAST_LATE = 2_500_000  # longer than the wait
_LIMIT = timedelta(seconds=1.5)


def main(backend: str, functions: str) -> None:
    """One rank of two."""
    dist.init_process_group(backend)
    other = 1 - dist.get_rank()
    short = dist.new_group(timeout=_LIMIT)
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        # The message never comes.
        if functions == "mcr_dl":
            dist.recv(torch.empty(1), other)
        else:
            torch_dist.recv(torch.empty(1), other, group=short if functions == "late" else None)

    def run(_: Any) -> None:
        begun.set()
        while True:
            sum(range(1000))

    if functions == "hook" or functions.endswith("callback"):
        module: Any = dist if functions == "own_callback" else torch_dist
        if functions == "hook":
            torch_dist.group.WORLD._register_on_completion_hook(run)  # type: ignore[union-attr]
        work = module.irecv(torch.empty(1), other)
        if functions != "hook":
            work.get_future().then(run)
        dist.all_reduce(torch.ones(1))  # the message comes later, so that the callback has a thread of its own
        dist.send(torch.ones(1), other)
    else:
        threading.Thread(target=wait, daemon=True).start()
    begun.wait()
    libc = ctypes.CDLL(None)  # as a library whose end takes a while
    last = _LAST_LATE if functions == "late" else _LAST
    libc.__cxa_atexit(ctypes.cast(libc.usleep, ctypes.c_void_p), ctypes.c_void_p(last), None)
    for _ in range(100):  # by then the thread waits inside the call
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    print("END", flush=True)
    if functions == "late":
        sys.last_value = RuntimeError("as after an uncaught exception: the groups are not ended, which ends the wait")


if __name__ == "__main__":
    main(*sys.argv[1:])
