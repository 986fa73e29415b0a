# SPDX-License-Identifier: Apache-2.0
"""SYNDICATE (NSDI'23): the calls of a program's iterations, planned together, in an unmodified program."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, ClassVar

import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.base import documents
from mcr_dl.base.errors import InvalidArgumentError, McrError, PeerLostError
from mcr_dl.passes import chain
from mcr_dl.passes.log import Log
from mcr_dl.planner.graph import Graph
from mcr_dl.runtime import communicators, state
from mcr_dl.schedule.syndicate import plan_trace
from mcr_dl.schedule.syndicate.known import Event, Settings, Turn
from mcr_dl.schedule.syndicate.replanning import Replanner
from mcr_dl.schedule.timelines import Traced

_all: weakref.WeakSet[Syndicate] = weakref.WeakSet()
_unfinished: list[Syndicate] = []  # exceptions have ended their blocks, and the groups still have their passes


def step() -> None:
    """Mark the end of an iteration for Syndicate: the next call begins one, on all ranks.

    Needed only where it cannot find iterations by itself, since they consist of equal calls. From the first mark on,
    iterations begin at marks alone. Costs about a microsecond, and nothing is sent.
    """
    for each in _all:
        each._replanner.control.mark()


def _require_valid(settings: Settings) -> None:
    """Raise InvalidArgumentError for a setting out of range."""

    def require(name: str, wanted: str, within: Callable[[Any], bool], kind: Any = int) -> None:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, kind) or not within(value):
            raise InvalidArgumentError(f"Syndicate: {name}: expected {wanted}, got {value!r}")

    require("budget", "seconds above 0, at most 1000000", lambda value: 0 < value <= 1e6, int | float)
    for name, first, end in (("lanes", 1, 17), ("tries", 1, 17), ("rounds", 1, 101), ("seed", 0, 2**64)):
        require(name, f"a whole number from {first} to {end - 1}", range(first, end).__contains__)
    require("promising", "a number below 1", lambda value: -math.inf < value < 1, int | float)
    require("gain", "a share from 0 to below 1", lambda value: 0 <= value < 1, int | float)


class Syndicate:
    """Plans how, where and when the calls of each training iteration are made, while the program runs unchanged.

    >>> with mcr_dl.schedule.Syndicate():
    ...     train()

    or ``MCR_DL_SCHEDULE=syndicate`` in the environment. When the same calls have repeated themselves six times, all
    ranks stop at the beginning of an iteration: they measure the operations of the iteration on the backends of their
    groups, rank 0 searches for a plan, and all ranks follow it from there. After some iterations with and without the
    plan in turns, it stays only if it is faster. A call that the plan does not expect ends the plan for its group.

    It plans calls on the CPU, on all ranks of the job, if all ranks make equal calls in an iteration: the same
    operations, sizes and types, on groups of equal sizes and backends. Other programs run as they are.

    Source: SYNDICATE (NSDI'23).
    """

    name: ClassVar[str] = chain.SCHEDULE
    replanner: Callable[[Settings], Replanner] = Replanner
    """Makes what decides on plans; for subclasses with plans of their own."""

    def __init__(
        self,
        *,
        budget: float = 2.0,
        lanes: int = 4,
        tries: int = 3,
        rounds: int = 2,
        promising: float = 0.02,
        gain: float = 0.01,
        seed: int = 0,
    ) -> None:
        """Make one; ``with`` starts it, on all ranks together, before or between any calls.

        Args:
            budget: seconds for each search, at most; up to 1,000,000.
            lanes: sets of communicators that each group gets; a plan that changes the order of calls needs several.
            tries: how many plans take turns with program order, at most.
            rounds: turns of each, of six iterations.
            promising: how much faster, by simulation, an iteration must be for a plan to be tried.
            gain: how much faster it must then be for the plan to stay.
            seed: of the search's random numbers.

        Raises InvalidArgumentError for a value out of range.
        """
        settings = Settings(budget, lanes, tries, rounds, promising, gain, seed)
        _require_valid(settings)
        self._replanner = self.replanner(settings)
        _all.add(self)
        self._groups: list[_C.Group] = []
        self._started = False
        self._added: dict[str, set[str]] = {}  # by group that existed before: the passes that it did not have

    # ---- as a pass of groups

    def terms(self) -> dict[str, Any]:
        """The settings, which must be equal on all ranks."""
        return vars(self._replanner.settings)

    def make(self, group: _C.Group, shadow: Callable[..., _C.Group]) -> _C.Pass:
        """Make the pass of one group, with its lanes."""
        current = state.current()
        if not self._started:
            self._started = True
            store = torch_dist.PrefixStore(f"syndicate/{current.count('syndicate')}", current.store)
            self._replanner.start(store, current.launch.rank, current.launch.size)
            current.planners.add(self)
        lanes = [shadow(f"lane-{index}") for index in range(self._replanner.settings.lanes)]
        self._groups = [*(each for each in self._groups if not each._closed), group]
        living = {each.name() for each in self._groups}
        self._replanner.lanes = {name: each for name, each in self._replanner.lanes.items() if name in living}
        self._replanner.lanes[group.name()] = lanes
        return _C.SchedulePass(self._replanner.control, group, lanes, group.size() == current.launch.size)

    def backends_end(self, names: list[str]) -> None:
        """Look for new plans; `finalize` calls this before it ends some backends."""
        del names
        self._replanner.begin_again()

    def __enter__(self) -> Syndicate:
        """Plan the calls of all groups from now on, and of those made later."""
        current = state.current()
        # Without those of dropped ByteSchedulers; the ranks that still have these refuse.
        groups = [group for group in current.program_groups() if not chain.is_abandoned(group)]
        problem: McrError | None = None
        try:
            self._require_possible(groups)
        except McrError as error:  # other ranks need not have it, and would wait for this one: they have other groups
            problem = error
        while _unfinished:
            _unfinished[-1]._withdraw()
            _unfinished.pop()
        if problem is not None:
            chain.add(groups[0], [Log(), self], problem)
        self._current, self._before = current, current.passes
        self._inside: list[chain.Specification] = [self]
        try:
            for group in groups:
                self._added[group.name()] = chain.add(group, [Log(), self])
        except BaseException:  # some groups have the pass, and other ranks may still wait
            _unfinished.append(self)
            raise
        current.passes = self._inside = [*chain.with_log(current.passes), self]
        return self

    def _require_possible(self, groups: list[_C.Group]) -> None:
        """Raise an error if this rank cannot plan the calls of its groups."""
        passes = state.current().passes
        if any(each.name == self.name for each in passes):
            message = "Syndicate: expected no other Syndicate, got one that is active: leave its `with` block first"
            raise InvalidArgumentError(f"{message}, or unset MCR_DL_SCHEDULE")
        unfinished = [group for each in _unfinished for group in each._groups]
        for group in groups:
            names = [each.name for each in _C.passes(group)]
            if self.name in names and group not in unfinished and not communicators.is_broken(group):
                message = f"Syndicate: expected groups without the pass {self.name!r}, got {group.name()!r} with it"
                raise InvalidArgumentError(f"{message}: remove it by set_passes")
            chain.require_plannable([*names, *(each.name for each in passes), self.name])
            chain.require_free(group)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the plan; the groups get the passes back that they had.

        After an exception, which other ranks may not have, or if the ranks cannot agree, the groups keep the plan until
        the next Syndicate begins.
        """
        if self._has_job_ended():
            self._withdraw()
            return
        self._current.passes = self._before
        try:
            if error is None:
                self._withdraw()
        finally:
            if self._groups:
                _unfinished.append(self)

    def _has_job_ended(self) -> bool:
        """Whether the groups are those of an earlier job, of which some may be kept until the process ends."""
        return not state.has_begun() or state.current() is not self._current

    def _withdraw(self) -> None:
        """Take the pass out of all groups that can still agree on it. After an error, the rest has it until another."""
        self._groups = [] if self._has_job_ended() else self._groups
        own = {each.name for each in self._inside} - {each.name for each in self._before}
        while self._groups:
            group = self._groups[0]
            if not (group._closed or communicators.is_broken(group)):
                with suppress(PeerLostError):
                    chain.withdraw(group, self._added.get(group.name(), own))
            del self._groups[0]
        self._started, self._added = False, {}

    # ---- for reading

    @property
    def events(self) -> list[Event]:
        """The events so far: plans that were made, kept, dropped and left."""
        return list(self._replanner.events)

    @property
    def turns(self) -> list[Turn]:
        """Iterations with plans that were tried, and without one, with their times on this rank."""
        return list(self._replanner.turns)

    @property
    def plan(self) -> dict[str, Any] | None:
        """The plan that calls follow: form, candidates and lanes of each call, and the order of their motifs."""
        return self._replanner.plan

    @property
    def phase(self) -> str:
        """ "watching" for iterations, "trying" a plan, "steady", or "off"."""
        return self._replanner.phase.value

    def statistics(self) -> dict[str, int]:
        """Planned calls, motifs issued, breaks of the order, ns for which the order held motifs, and a digest of it."""
        found: dict[str, int] = self._replanner.control.statistics()
        return found

    @property
    def graph(self) -> Graph | None:
        """The last captured iteration, on rank 0."""
        return self._replanner.graph

    @contextmanager
    def traced(self, path: str | os.PathLike[str]) -> Iterator[Traced]:
        """Write what was planned and what happens in the block to a timeline for Perfetto or chrome://tracing.

        >>> with syndicate.traced(f"plan-{rank}.json") as found:
        ...     for _ in range(5):
        ...         train_step()

        The file has an iteration as it was simulated (on rank 0), the calls and their motifs as they ran, and when the
        program waited for calls. At the end of the block, which waits for all calls, ``found`` has the exposed
        communication. Each rank that wants it makes the block; other ranks need not.

        Raises, before the block, McrError inside another one, while plans are still made or tried, or after they have
        ended, and InvalidArgumentError for a file that cannot be written.
        """
        with plan_trace.traced(self._replanner, state.current().launch.rank, path) as found:
            yield found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the last captured iteration, on rank 0, for ``mcr-trace plan``.

        Raises McrError on other ranks, and if no iteration was captured yet.
        """
        if self._replanner.graph is None:
            raise McrError("Syndicate: expected an iteration to save, got none: rank 0 alone has one, after a capture")
        documents.write_rows(path, self._replanner.graph.document())


chain.register_scheduler("syndicate", Syndicate)
