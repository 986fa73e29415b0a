# SPDX-License-Identifier: Apache-2.0
"""The state of the runtime between init and finalize. The process has one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as torch_dist

from mcr_dl import _C, watch
from mcr_dl.base import launcher
from mcr_dl.base.errors import NotInitializedError
from mcr_dl.base.stores import own_connection
from mcr_dl.runtime import rates, topologies
from mcr_dl.tables import choice

DEFAULT_TIMEOUT: timedelta = torch_dist.default_pg_timeout
_NOT_INITIALIZED = "the default group has not been initialized; call mcr_dl.init_process_group() first"


class Planner(Protocol):
    """Lets calls run on other candidates than those that the program or the group chooses."""

    def backends_end(self, names: list[str]) -> None:
        """End all plans: these backends of the groups are about to end, on all ranks at the same point."""


@dataclass
class Belongings:
    """The things that belong to one group, and end with it."""

    owner: str | None = None  # the group that this one itself belongs to, if it is a shadow
    shadows: dict[str, _C.Group] = field(default_factory=dict)  # the groups that belong to this one, by name
    broken: dict[str, int] = field(default_factory=dict)  # by pass: how many of its shadows broke
    topology: topologies.Held | None = None
    networks: dict[str, list[rates.Row]] = field(default_factory=dict)  # by candidate
    stores: list[torch_dist.Store] = field(default_factory=list)  # which the group's backends may use
    # Run when the group is about to end, while its operations still work; they must not raise.
    endings: list[Callable[[], None]] = field(default_factory=list)
    last_idle_grow: str = ""  # the name of the last call of grow() that changed nothing


@dataclass
class State:
    """One life of the runtime. ``groups/lifecycle.py`` makes and ends it."""

    launch: launcher.Launch
    life_store: torch_dist.Store  # of the store at which the ranks have met: the keys of this life
    timeout: timedelta  # that of the start
    backends: list[str]
    device: int  # index of this process's CUDA device; -1 without one
    knowledge: choice.Knowledge
    asked: list[str] = field(default_factory=list)  # backends without which init fails
    groups: dict[str, _C.Group] = field(default_factory=dict)
    groups_made: int = 0
    belongings: dict[str, Belongings] = field(default_factory=dict)  # by group, see ``of`` and ``peek``
    passes: list[Any] = field(default_factory=list)  # specifications for every new group
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # by group, "": of the job; see ``count``
    given_document: dict[str, Any] | None = None  # of the topology that the user gave
    given_grid: _C.Topology | None = None  # made from it; None: derived from the hosts
    default_document: dict[str, Any] | None = None  # of the default group's topology, once it was set
    second_connection: torch_dist.Store | None = None  # ``life_store`` over a connection of its own
    kept_stores: list[torch_dist.Store] = field(default_factory=list)  # of groups that were not closed after a loss
    candidates: list[str] | None = None  # those that all ranks have; None before the default group is made
    staging: int | None = None  # bytes of one piece of a staged tensor; None if no rank has a device
    job: str = ""  # an identity of this life of the job, equal on its ranks
    detail: bool = False  # all calls are compared over the ranks
    started_in: torch_dist.Store | None = None  # torch's, for the group that it made as it started this life
    meetings: Any = None  # of the functions that all ranks call together (``meetings.meet_all``)
    drain_failed_at: float = float("-inf")  # when operations last took too long to end before their group
    planners: weakref.WeakSet[Planner] = field(default_factory=weakref.WeakSet)

    @property
    def default_timeout(self) -> timedelta:
        """The default group's timeout, which ``set_timeout`` changes on all ranks, as each group's."""
        return self.world.timeout

    @property
    def world(self) -> _C.Group:
        """The default group; raises NotInitializedError until it is complete."""
        group = _C.world()
        if group is None:
            raise NotInitializedError(_NOT_INITIALIZED)
        return group

    @property
    def store(self) -> torch_dist.Store:
        """The job's store: the keys of this life. Raises NotInitializedError in a forked process."""
        watch.refuse_fork()
        return self.life_store

    def second_store(self) -> torch_dist.Store:
        """The store over a connection that no thread occupies by waiting."""
        store = self.store
        if self.second_connection is None:
            self.second_connection = own_connection(store)
        return self.second_connection

    def of(self, group: str) -> Belongings:
        """The belongings of a group, to change: from the first use on, which may be before the group is made."""
        return self.belongings.setdefault(group, Belongings())

    def peek(self, group: str) -> Belongings:
        """The belongings of a group, to read: empty ones, which are not kept, if it has none or has ended."""
        return self.belongings.get(group) or Belongings()

    def replace_topology(self, group: str, held: topologies.Held | None) -> topologies.Held | None:
        """Give a group another topology, or none; returns the one before, if there is one."""
        before = self.peek(group).topology
        if before is not held:
            self.of(group).topology = held
        return before

    def add_shadow(self, owner: str, group: _C.Group) -> None:
        """Add a group that belongs to another group, and ends with it."""
        group._derive()
        self.of(group.name()).owner = owner
        self.groups[group.name()] = self.of(owner).shadows[group.name()] = group

    def with_shadows(self, group: _C.Group) -> list[_C.Group]:
        """A group and the groups that its passes and candidates use."""
        shadows = list(self.peek(group.name()).shadows.values())
        return [group, *(each for shadow in shadows for each in self.with_shadows(shadow))]

    def program_groups(self) -> list[_C.Group]:
        """The groups that belong to no other group: their passes are the program's."""
        return [group for name, group in list(self.groups.items()) if self.peek(name).owner is None]

    def tune(self, group: _C.Group) -> None:
        """Give a connected group its candidates and its costs, as far as the job's are known."""
        if self.candidates is not None:
            choice.keep_candidates(group, self.candidates)
        choice.tune(group, self.knowledge)
        for shadow in self.with_shadows(group)[1:]:  # stripes in a dimension compute their shares from the costs
            choice.tune(shadow, self.knowledge, derived=True)

    def count(self, what: str, group: str = "") -> int:
        """Count the uses of something in a group, or in the job: equal on all ranks that use it equally often."""
        counts = self.counts.setdefault(group, {})
        counts[what] = counts.get(what, -1) + 1
        return counts[what]

    def forget_counts(self, group: _C.Group) -> None:
        """Drop the counts of a group that ends, and of the groups that belong to it, as no later ones get their names.

        Groups of passes and candidates that end before it keep their counts: later ones of the group get their names.
        So does a group that has lost a rank: it may not be closed, and others can still be made of its members.
        """
        if _C.lost(group._label) is None:
            for each in self.with_shadows(group):
                self.counts.pop(each.name(), None)

    def count_at_store(self, key: str) -> int:
        """Count at the store, where a process that takes a lost rank's place continues that rank's count."""
        return int(self.store.add(f"{key}/{self.launch.rank}", 1)) - 1


_current: State | None = None
_last: tuple[list[str], int] = ([], 0)


def current() -> State:
    """The state between init and finalize; raises NotInitializedError outside."""
    if _current is None:
        raise NotInitializedError(_NOT_INITIALIZED)
    return _current


def has_begun() -> bool:
    """Whether there is a life of the runtime. Its default group comes later, once the backends have started."""
    return _current is not None


def is_initialized() -> bool:
    """Whether the default group exists (torch.distributed.is_initialized)."""
    return _C.world() is not None


def begin(
    launch: launcher.Launch, store: torch_dist.Store, timeout: timedelta, backends: list[str], device: int
) -> State:
    """Begin a life of the runtime, or take part in one. ``store``: with the keys of this life alone."""
    global _current
    nothing = choice.Knowledge("", [0] * launch.size, [False] * launch.size)  # until the ranks have agreed
    _current = State(launch, store, timeout, backends, device, nothing)
    return _current


def end() -> None:
    """End the life of the runtime, if there is one: ``current`` raises from now on."""
    global _current, _last
    _last = last()
    _current = None


def last() -> tuple[list[str], int]:
    """The backends and the number of ranks of the present life, or of the latest one."""
    return _last if _current is None else (_current.backends, _current.launch.size)


def run_endings(group: str | None = None) -> None:
    """Run what a group, or every group, is to do before it ends."""
    if _current is None:
        return
    for each in [each for name, each in list(_current.belongings.items()) if group in (None, name)]:
        functions, each.endings = each.endings, []
        for function in functions:
            function()


def find(name: str) -> _C.Group | None:
    """The group of that name, if there is one."""
    return None if _current is None else _current.groups.get(name)


def has_ended(group: _C.Group) -> bool:
    """Whether the group has ended. One with a lost rank is kept until the process ends, and not closed."""
    return find(group.name()) is not group


def living() -> list[_C.Group]:
    """The groups that exist; none outside init and finalize."""
    return [] if _current is None else list(_current.groups.values())


def backends_in_use() -> list[str]:
    """The backends of all groups: the job's, and those that only some groups have."""
    return list(dict.fromkeys([*current().backends, *(name for group in living() for name in group.backends)]))
