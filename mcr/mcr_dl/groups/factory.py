# SPDX-License-Identifier: Apache-2.0
"""Groups with all that belongs to them: the job's passes, a topology, and groups of its dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import partial

from mcr_dl import _C, watch
from mcr_dl.groups import tried
from mcr_dl.passes import chain
from mcr_dl.runtime import core_groups, dimensions, lines, state


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
    if not line:
        tried.follow(group)
    add_passes(group)
    add_dimensions(group, given=None if mpi_comm is None and not line else {})
    return group


def add_passes(group: _C.Group) -> None:
    """Give a new group the job's passes."""
    specifications = state.current().passes
    if specifications:
        chain.apply(group, specifications)


def add_dimensions(
    group: _C.Group, grid: _C.Topology | None = None, *, given: dict[str, _C.Group] | None = None, turn: int = -1
) -> None:
    """Give a group its topology (None: the part that the job's gives it) and groups of its dimensions (``hold``)."""
    current = state.current()
    if grid is None:
        nodes = [] if current.knowledge is None else current.knowledge.nodes
        grid = dimensions.grid_of_members(current.grid, nodes, group.ranks)
    current.topologies[group.name()] = dimensions.hold(group, grid, partial(make_group, line=True), given, turn)


def end_dimensions(group: _C.Group) -> None:
    """End the groups that were made for a group's dimensions."""
    dimensions.end(state.current().topologies.pop(group.name(), None), end_group)


def end_group(group: _C.Group) -> None:
    """End a group other than the default one, once its passes hold no calls."""
    watch.refuse_fork()
    end_dimensions(group)
    chain.synchronize(group)
    core_groups.forget_group(group)
