# SPDX-License-Identifier: Apache-2.0
"""The offset of this process's clock from rank 0's, which puts the times of all ranks on one axis."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as torch_dist

from mcr_dl import _C

_ROUNDS = 20
SAME, PING, WALL = "same clock", "ping over the store", "wall clock"


@dataclass(frozen=True)
class Clock:
    """`offset` ns added to this process's steady clock give rank 0's, to within `error` ns (None: unknown)."""

    offset: int
    error: int | None
    method: str
    steady: int  # a reading of the steady clock, and of the wall clock at the same time
    wall: int


def readings() -> tuple[int, int]:
    """The records' steady clock and the wall clock, in ns, read together."""
    pairs = []
    for _ in range(5):
        before = _C.log_now()
        wall = time.time_ns()
        after = _C.log_now()
        pairs.append((after - before, (before + after) // 2, wall))
    _, steady, wall = min(pairs)
    return steady, wall


def _domain() -> str:
    """The domain of the steady clock, one boot and one time namespace: processes with equal results share the clock."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return f"process {os.getpid()} of {os.uname().nodename}"


def _serve(store: torch_dist.Store, peer: int) -> None:
    for turn in range(_ROUNDS):
        store.get(f"ask/{peer}/{turn}")
        store.set(f"answer/{peer}/{turn}", str(_C.log_now()))


def _ask(store: torch_dist.Store, rank: int) -> tuple[int, int]:
    """Offset and error of the fastest round trip."""
    rounds = []
    for turn in range(_ROUNDS):
        before = _C.log_now()
        store.set(f"ask/{rank}/{turn}", "")
        theirs = int(store.get(f"answer/{rank}/{turn}"))
        after = _C.log_now()
        rounds.append((after - before, theirs - (before + after) // 2))
    delay, offset = min(rounds)
    return offset, (delay + 1) // 2


def measure(
    store: torch_dist.Store, rank: int, size: int, patience: timedelta, *, domain: Callable[[], str] = _domain
) -> tuple[int, int, str]:
    """Offset, error and method for this rank. All ranks call this together, with a store that nothing else uses.

    Ranks whose steady clock is rank 0's own have no offset and no error. The others exchange values with rank 0 in
    turn: rank 0 reads its clock between the two readings of the asking rank, so that the error of the round trip's
    middle is at most half of its time. Raises torch.distributed.DistStoreError if a rank does not come.
    """
    usual: timedelta = store.timeout  # type: ignore[attr-defined]
    store.set_timeout(patience)
    try:
        return _measure(store, rank, size, domain)
    finally:
        store.set_timeout(usual)


def _measure(store: torch_dist.Store, rank: int, size: int, domain: Callable[[], str]) -> tuple[int, int, str]:
    store.set(f"domain/{rank}", domain())
    same = [store.get(f"domain/{each}") == store.get("domain/0") for each in range(size)]
    result = (0, 0, SAME)
    for peer in range(1, size):
        if same[peer]:
            continue
        if rank == 0:
            _serve(store, peer)
        elif rank == peer:
            result = (*_ask(store, rank), PING)
    return result
