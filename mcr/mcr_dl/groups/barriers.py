# SPDX-License-Identifier: Apache-2.0
"""The monitored barrier, as in torch.distributed."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.base.errors import CollectiveTimeoutError, McrError
from mcr_dl.runtime import handles, state
from mcr_dl.runtime.rounds import absent_of, absent_text, join, with_places
from mcr_dl.runtime.watched_store import require_all_ranks

_LONGEST = 0.05  # seconds between two looks at the store


def monitored_barrier(
    group: handles.Group = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """A barrier that says which ranks are missing and where these are: the first, or all with ``wait_all_ranks``.

    It runs over the store, so it works on every backend, even while a collective hangs. Raises CollectiveTimeoutError
    on all ranks that have arrived, after the timeout (a timedelta, or seconds) of the first of them, or PeerLostError
    if the group has lost a rank. A rank that comes to a barrier which the others have given up joins their next one, if
    they come to that within a second, and otherwise raises CollectiveTimeoutError too.
    Source: torch.distributed.monitored_barrier.
    """
    if handles.left_out(group, "monitored_barrier"):
        return
    current, members = state.current(), handles.core_group(group)
    store = torch_dist.PrefixStore(f"monitored_barrier/{members.ranks[0]}/{members.name()}", current.store)
    count = partial(current.count, "barrier", members.name())
    try:
        seconds = (members.timeout if timeout is None else _C.timeout(timeout)).total_seconds()
    except McrError:
        count()  # the barrier that the others give up
        raise

    def give_up(values: list[Any]) -> dict[str, Any]:
        absent = absent_of(members.ranks, values)[: None if wait_all_ranks else 1]
        return {"late": with_places(absent_text(absent, seconds), absent)}

    what = f"monitored_barrier ({members._label})"
    this_round, last = join(store, count, members.rank(), members.size(), value=True)
    answer = this_round.conclude(
        last,
        lambda _: {},
        give_up,
        lambda _: {},  # a rank that was interrupted while it waited has been there
        limit=seconds,
        check=partial(require_all_ranks, members._label, what),
        longest=_LONGEST,
    )
    if answer is None:
        raise CollectiveTimeoutError(f"{what} timed out: the last rank to come has not answered")
    if answer:
        raise CollectiveTimeoutError(f"{what} timed out: {answer['late']}")
