# SPDX-License-Identifier: Apache-2.0
"""The lives of a job that starts again, or tries to: their ranks meet at one store, which keeps the keys of all."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import torch.distributed as torch_dist

from mcr_dl.base import launcher
from mcr_dl.base.errors import CollectiveTimeoutError
from mcr_dl.base.stores import absent
from mcr_dl.runtime.rounds import pause
from mcr_dl.watch import ranks_text

_GO, _SUPERSEDED, _NEWEST = "go", "superseded", "newest"


def separate(store: torch_dist.Store, launch: launcher.Launch, limit: timedelta) -> torch_dist.Store:
    """A part of the store for this life of the job alone. Every rank calls this.

    torchrun's agents keep one store over all restarts, and any store may outlive an attempt to start. No number tells
    the lives apart: the agents of several hosts count their own restarts, and a rank that comes late has tried less
    often than the others. So the ranks agree on a new name: each leaves a word of its own, and rank 0 names the life
    that has these words. It may have read a word of an earlier life: the name then reaches no rank with that word, and
    rank 0 gives another name when the new word is there.

    Raises CollectiveTimeoutError, which names them, if ranks have not come within the limit.
    """
    meeting = torch_dist.PrefixStore("lives", store)
    name = _lead(meeting, launch.size, limit) if launch.rank == 0 else _follow(meeting, launch.rank, launch.size, limit)
    return torch_dist.PrefixStore(f"life/{name}", store)


def newest(store: torch_dist.Store) -> torch_dist.Store:
    """The part of the store for the newest life of the job, for a process that was not there when it began.

    Raises CollectiveTimeoutError if there is none within the store's timeout.
    """
    try:
        name: str = torch_dist.PrefixStore("lives", store).get(_NEWEST).decode()
    except RuntimeError as error:
        if isinstance(error, torch_dist.DistNetworkError):
            raise
        told = str(error).partition("\n")[0]
        raise CollectiveTimeoutError(f"rejoin: timed out: no job has started at this store: {told}") from error
    return torch_dist.PrefixStore(f"life/{name}", store)


def _lead(meeting: torch_dist.Store, size: int, limit: timedelta) -> str:
    """Name the life and wait until all other ranks have the name."""
    joins = [f"join/{rank}" for rank in range(1, size)]
    name, begin = uuid.uuid4().hex, time.monotonic()
    meeting.set("join/0", name)
    words: list[str] = []
    while joins:
        found = [word.decode() for word in meeting.multi_get(joins)] if meeting.check(joins) else []
        if found and found != words:
            former, name, words = name, uuid.uuid4().hex, found
            for word in words:
                meeting.set(f"name/{word}", name)
            meeting.set(f"{former}/ended", _SUPERSEDED)
        here = [f"{name}/{rank}" for rank in range(1, size)]
        if words and meeting.check(here):
            break
        passed = time.monotonic() - begin
        awaited = here if words else joins  # ranks take a name only once all have left their words
        if passed > limit.total_seconds() and (missing := list(absent(meeting, awaited, 1))):
            raise _late(missing, limit)
        time.sleep(pause(passed, size))
    meeting.set(_NEWEST, name)
    meeting.set(f"{name}/ended", _GO)
    return name


def _follow(meeting: torch_dist.Store, rank: int, size: int, limit: timedelta) -> str:
    """Take the name that rank 0 gives to the life with this rank's word."""
    word, awaited, first = uuid.uuid4().hex, "join", 0
    meeting.set(f"join/{rank}", word)
    try:
        while True:
            name: str = meeting.get(f"name/{word}").decode()
            awaited, first = name, 1
            meeting.set(f"{name}/{rank}", "here")
            if meeting.get(f"{name}/ended").decode() == _GO:
                return name
    except RuntimeError as error:  # each kind of store says in its own way that the time is over
        if isinstance(error, torch_dist.DistNetworkError):
            raise
        keys = [f"{awaited}/{other}" for other in range(first, size)]
        # Rank 0 answers as soon as all others are there. (Ranks of an earlier life may have left their words.)
        raise _late(list(absent(meeting, keys, first)) or [0], limit) from error


def _late(missing: list[int], limit: timedelta) -> CollectiveTimeoutError:
    verb = "has" if len(missing) == 1 else "have"
    text = f"{ranks_text(missing)} {verb} not come within {limit.total_seconds():g} s"
    return CollectiveTimeoutError(f"init_process_group: timed out: {text}")
