# SPDX-License-Identifier: Apache-2.0
"""Groups with all that belongs to them: the job's passes, a topology, and groups of its dimensions."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta

import torch.distributed as torch_dist

from mcr_dl import _C, watch
from mcr_dl.base.warning import warn
from mcr_dl.groups import trial_results
from mcr_dl.passes import chain
from mcr_dl.runtime import changes, communicators, core_groups, lines, state, topologies

DRAIN = timedelta(seconds=10)  # for operations that are still running when their group or backend ends


def make_group(
    name: str,
    ranks: list[int],
    backends: Iterable[str],
    timeout: timedelta,
    *,
    mpi_comm: int | None = None,
    line: bool = False,
    patience: float | None = None,
) -> _C.Group:
    """A connected group of global ranks that includes this process, with the job's passes.

    Collective over its members. ``line``: the group is one dimension of another group's topology; ``patience``: as for
    ``communicators.connect``.
    """
    if line:
        backends = lines.that_fit(backends, ranks)
    group = core_groups.make(name, ranks, backends, timeout, mpi_comm=mpi_comm, patience=patience)
    try:
        if not line:
            trial_results.follow(group)
        add_passes(group)
        add_dimensions(group, given=None if mpi_comm is None and not line else {})
    except BaseException:
        give_up(group)
        raise
    return group


def add_passes(group: _C.Group) -> None:
    """Give a new group the job's passes."""
    specifications = state.current().passes
    if specifications:
        chain.apply(group, specifications)


def add_dimensions(group: _C.Group, given: dict[str, _C.Group] | None = None) -> None:
    """Give a new group the part of the job's topology that it has, and the ``given`` groups or new ones for it.

    Makes each of the new ones on all ranks of the group, or raises on all: others would wait for a rank that fails.
    """
    current = state.current()
    grid = topologies.grid_of_members(current.given_grid, current.knowledge.nodes, group.ranks)
    held = topologies.Held(grid, given or {})
    current.replace_topology(group.name(), held)  # before its groups are made, which end with it
    function = "new_group" if _C.world() is not None else "init_process_group"
    for index in topologies.with_groups(held.grid, group.size()) if given is None else []:
        with changes.on_all(group, function, anywhere=True, leave=True):
            make_line(group, held, index)


def make_line(group: _C.Group, held: topologies.Held, index: int, turn: int = -1) -> _C.Group:
    """Make the group of a dimension. Collective over the group. ``turn`` distinguishes successive topologies."""
    name, line = held.grid.dimensions[index][0], held.grid.line(group.rank(), index)
    # No dimension's name has a colon, so that no two groups get one name.
    text = f"{group.name()}/{name}:{line[0]}" + (f":{turn}" if turn >= 0 else "")
    made = make_group(text, [group.ranks[rank] for rank in line], group.backends, group.timeout, line=True)
    held.groups[name] = made
    held.owned.append(made)
    return made


def end_lines(held: topologies.Held) -> None:
    """End the groups that were made with a topology; those that are torch's process groups end through torch."""
    for each in held.owned:
        if state.has_ended(each):
            continue
        handle = _C.handle_of(each)
        if isinstance(handle, torch_dist.ProcessGroup):
            torch_dist.destroy_process_group(handle)
        else:
            end_group(each)


def replace_dimensions(group: _C.Group, held: topologies.Held | None) -> None:
    """Give a group another topology with its groups, or none, and end those that were made for the one before."""
    before = state.current().replace_topology(group.name(), held)
    if before is not None:
        end_lines(before)


def give_up(group: _C.Group) -> None:
    """End a group that cannot be used, with the groups of its dimensions: running operations fail."""
    try:
        replace_dimensions(group, None)
    finally:
        core_groups.forget_group(group)


def patience() -> timedelta:
    """The time that running operations get before their group ends. Groups that end one after the other share it."""
    return timedelta(seconds=min(DRAIN.total_seconds(), time.monotonic() - state.current().drain_failed_at))


def give_up_waiting() -> None:
    """Running operations have had their time: groups that end now do not wait for them."""
    state.current().drain_failed_at = time.monotonic()


def _drained(group: _C.Group) -> bool:
    """Wait until the operations of a group have ended; False if they take too long."""
    current = state.current()
    if communicators.is_broken(group):  # they may never complete inside their library
        return True
    drained = _C.drain_groups([each._label for each in current.with_shadows(group)], patience())
    if not drained:
        give_up_waiting()
    return drained


def end_group(group: _C.Group) -> None:
    """End a group other than the default one, once its started operations are complete, or after ``patience``."""
    watch.refuse_fork()
    state.current().forget_counts(group)
    try:
        drained = _drained(group)
    finally:
        try:
            replace_dimensions(group, None)
        finally:
            core_groups.forget_group(group)
    if not drained:
        text = f"some operations of group {group.name()!r} were still running and are abandoned"
        warn(f"destroy_process_group: {text}")
