# SPDX-License-Identifier: Apache-2.0
"""Libraries that start on all ranks of a job together (MPI), after a loss: can they still connect those that are left?

No standard says so: a library may wait for the lost rank. Therefore the ranks that are left try it, for some seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import torch

from mcr_dl import _C, watch
from mcr_dl.base.errors import CollectiveTimeoutError, McrError, text_of
from mcr_dl.libraries import registry
from mcr_dl.runtime import communicators, state
from mcr_dl.runtime.rounds import poll
from mcr_dl.runtime.watched_store import require_all_ranks


def usable(backends: Iterable[str]) -> list[str]:
    """The libraries behind these backends that this process could try.

    Not those of a job on several hosts: some end a process whose connection to another one breaks.
    """
    current = state.current()
    if len(set(current.knowledge.nodes)) > 1:
        return []
    names = [each for backend in backends for each in registry.collective_starters(backend)]
    return [each for each in dict.fromkeys(names) if each in current.backends and not communicators.is_stuck(each)]


def problem(library: str, name: str, members: Sequence[int]) -> str:
    """Why the library does not connect these ranks (global ones); empty if it does. Each of them calls this.

    ``name``: of the attempt, equal on all of them.
    """
    current = state.current()
    group = _C.Group(f"{name}/{library}", list(members), members.index(current.launch.rank), current.timeout)
    told = ""
    try:
        communicators.connect(group, [library], patience=communicators.PATIENCE)
        _exchange(group, library)
    except Exception as error:  # whatever it is, the others wait for the answer
        told = text_of(error)
    watch.compare()  # which counts the call on all ranks
    communicators.end(group, keep=bool(told))  # closing may wait for the lost rank
    current.counts.pop(group.name(), None)  # no later group gets the name
    return told


def _exchange(group: _C.Group, library: str) -> None:
    """Send a number from each rank to each. Raises the errors of a call, also if it takes long."""
    size = group.size()
    sent = torch.arange(size, device="cpu") + size * group.rank()
    received = torch.empty_like(sent)
    work = _C.all_to_all_single(received, sent, group=group, backend=library, async_op=True)

    try:
        if not poll(work.is_completed, communicators.PATIENCE, partial(require_all_ranks, group._label)):
            message = f"{library} does not connect the ranks that are left within {communicators.PATIENCE:g} s"
            raise CollectiveTimeoutError(message)
        work.wait()
    except McrError as error:
        _C.expire(work, str(error))  # no thread waits for it
        raise
