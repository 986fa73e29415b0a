# SPDX-License-Identifier: Apache-2.0
"""Groups that take processes for their lost ranks: ``grow`` on the other ranks, ``rejoin`` in these processes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as torch_dist

from mcr_dl import _C, watch
from mcr_dl.base import stores, variables
from mcr_dl.base.errors import InvalidArgumentError, UnsupportedError
from mcr_dl.groups import applicants, factory, group_options, lifecycle, start_log, survivors, torch_groups
from mcr_dl.passes import chain
from mcr_dl.runtime import core_groups, devices, handles, lives, rendezvous, state


def grow(
    group: handles.Group = None,
    timeout: timedelta | float | None = None,
    backend: str | Iterable[str] | None = None,
    pg_options: Any | None = None,
) -> torch_dist.ProcessGroup:
    """Make a group of the members of a group that are left, and of the processes that wait in ``rejoin``.

    Each member that is left calls this at the same point of its program, such as every hundredth step. The members
    agree through the job's store on who takes part. If no rank is lost and no process waits, ``grow`` returns the same
    group. The new group's ranks are in the order of the global ranks if the old group's are; else the ranks that come
    back follow the others. A process can take the place of any lost rank of the job. Further groups with it are made
    with ``new_group``.

    Args:
        group: the group, perhaps one that ``shrink`` made; None: the default group.
        timeout: of the new group's operations, and for all to arrive; the old group's by default.
        backend: names as for new_group. By default those of the old group, except, with new processes, for libraries
            that start on all ranks of a job together (MPI). A warning names what is left out.
        pg_options: as for new_group.

    Raises as ``shrink`` does; PeerLostError if other members, which have noticed a loss, are in ``shrink``: call that
    then; BackendUnavailableError, on all ranks, if a waiting process cannot use a backend or has other passes;
    UnsupportedError under Syndicate, whose plans a new process does not know.
    """
    old = handles.core_group(group)
    if any(each.name == chain.SCHEDULE for each in state.current().passes):
        message = "grow: expected a job without a scheduler: a new process does not know its plans"
        raise UnsupportedError(message)
    limit = old.timeout if timeout is None else _C.timeout(timeout)
    asked = group_options.named(backend, pg_options) or None
    forming = survivors.of("grow", old, list(old.ranks), limit, group_options.wish(pg_options, old), asked)
    made = forming.grow()
    return torch_groups.handle_of(old) if made is None else torch_groups.publish_agreed(made)


def rejoin(
    init_method: str | None = None,
    timeout: timedelta | float | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: torch_dist.Store | None = None,
    device_id: torch.device | int | None = None,
    *,
    passes: Iterable[Any] | None = None,
) -> torch_dist.ProcessGroup:
    """Take the place of a lost rank: in a new process, instead of ``init_process_group``.

    Waits until the members of a group call ``grow``, and returns the new group; the new process continues at the
    point where the others return from ``grow``. The default group stays as it is on the other ranks: its calls raise
    PeerLostError.

    Args:
        init_method: as for init_process_group. The job's store must have outlived the lost rank.
        timeout: how long to wait for ``grow``, a timedelta or seconds; torch's 30 minutes by default.
        world_size: as for init_process_group: that of the job.
        rank: as for init_process_group: the lost rank.
        store: as for init_process_group.
        device_id: as for init_process_group.
        passes: as for init_process_group, and equal to the other ranks' passes.

    Raises CollectiveTimeoutError if no group takes this process in time, InvalidArgumentError if the runtime or torch's
    default group runs already or a variable of the environment has a wrong value, BackendError if the job's store
    cannot be reached any more, and BackendUnavailableError, on all ranks, if this process cannot use a backend or has
    other passes.
    """
    if state.has_begun() or torch_dist.is_initialized():
        message = "rejoin: expected a new process, got one whose default group is initialized"
        raise InvalidArgumentError(message)
    if problem := variables.problem():
        raise InvalidArgumentError(problem)
    limit = state.DEFAULT_TIMEOUT if timeout is None else _C.timeout(timeout)
    launch, met = lifecycle.launch_at(init_method, rank, world_size, store, limit)
    start_log.show(launch.rank)
    met = rendezvous.meet(launch, init_method, limit) if met is None else met
    specifications, device = lifecycle.specified(passes), devices.own(device_id)  # before other ranks wait for this one
    try:
        store = lives.newest(met)
        answer = applicants.apply(store, launch.rank, limit)
    except stores.STORE_ERRORS as error:
        survivors.raise_named("rejoin", error)
    begin = partial(applicants.begin, answer, launch, store, device, specifications)
    try:
        current = lifecycle.start_again(answer.former, begin)
        world = _broken_world(current)
        forming = survivors.Forming(**answer.forming, limit=timedelta(milliseconds=answer.limit), changed=True)
        names = applicants.that_take_others(forming.backends if forming.asked is None else forming.asked)
        made = forming.join(answer.name, applicants.problem(answer, names))
        torch_groups.publish_broken(world)
        return torch_groups.publish_agreed(made)
    except BaseException as error:
        watch.stop(f"rejoin() has raised {type(error).__name__}: {error}", well=False)
        core_groups.forget()
        raise


def _broken_world(current: state.State) -> _C.Group:
    """Make the default group, which has lost this process's rank before it came."""
    rank, size = current.launch.rank, current.launch.size
    _C.lose(rank, f"lost rank {rank}, whose place this process has taken: use the group that rejoin() has returned")
    world = _C.Group("default", list(range(size)), rank, current.timeout, max(current.device, 0))
    _C.regain(rank)
    current.groups["default"] = world
    factory.add_dimensions(world, given={})  # without groups, which it cannot make
    _C.set_world(world)
    return world
