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

_ROUNDS, _FEWEST = 20, 5  # round trips of one clock
_ALL = 5000  # and of all, which rank 0 answers in turn
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


def _serve(store: torch_dist.Store, peer: int, rounds: int) -> None:
    for turn in range(rounds):
        store.get(f"ask/{peer}/{turn}")
        store.set(f"answer/{peer}/{turn}", str(_C.log_now()))


def _ask(store: torch_dist.Store, rank: int, rounds: int) -> tuple[int, int]:
    """Offset and error of the fastest round trip."""
    trips = []
    for turn in range(rounds):
        before = _C.log_now()
        store.set(f"ask/{rank}/{turn}", "")
        theirs = int(store.get(f"answer/{rank}/{turn}"))
        after = _C.log_now()
        trips.append((after - before, theirs - (before + after) // 2))
    delay, offset = min(trips)
    return offset, (delay + 1) // 2


def _lead(store: torch_dist.Store, size: int) -> None:
    """On rank 0: tell the ranks the first rank of their domain, and let the first ranks compare their clocks."""
    firsts: dict[str, int] = {}
    for rank, text in enumerate(store.multi_get([f"domain/{rank}" for rank in range(size)])):
        firsts.setdefault(text.decode(), rank)
    rounds = min(_ROUNDS, max(_FEWEST, _ALL // len(firsts)))
    for domain, first in firsts.items():
        store.set(f"first/{domain}", f"{first} {rounds}")
    for first in list(firsts.values())[1:]:
        _serve(store, first, rounds)


def measure(
    store: torch_dist.Store, rank: int, size: int, patience: timedelta, *, domain: Callable[[], str] = _domain
) -> tuple[int, int, str]:
    """Offset, error and method for this rank. All ranks call this together, with a store that nothing else uses.

    Ranks whose steady clock is rank 0's own have no offset and no error. Of each other clock's ranks, the first one
    exchanges values with rank 0, in turn: rank 0 reads its clock between the two readings of the asking rank, so that
    the error of the round trip's middle is at most half of its time. Raises torch.distributed.DistStoreError if a rank
    does not come.
    """
    usual: timedelta = store.timeout  # type: ignore[attr-defined]
    store.set_timeout(patience)
    try:
        return _measure(store, rank, size, domain)
    finally:
        store.set_timeout(usual)


def _measure(store: torch_dist.Store, rank: int, size: int, domain: Callable[[], str]) -> tuple[int, int, str]:
    mine = domain()
    store.set(f"domain/{rank}", mine)
    if rank == 0:
        _lead(store, size)
        return 0, 0, SAME
    first, rounds = map(int, store.get(f"first/{mine}").split())
    if first == 0:
        return 0, 0, SAME
    if first == rank:
        offset, error = _ask(store, rank, rounds)
        store.set(f"offset/{rank}", f"{offset} {error}")
    else:
        offset, error = map(int, store.get(f"offset/{first}").split())
    return offset, error, PING
