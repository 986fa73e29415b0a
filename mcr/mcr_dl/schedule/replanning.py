# SPDX-License-Identifier: Apache-2.0
"""When a program's iterations are planned: after they are found, and again when they take longer than they did.

Everything happens between two calls of the program, at the begin of an iteration, on all ranks at the same one: the
ranks find iterations in their own calls, which are alike; later they count them. A plan takes effect at that point on
all ranks or on none (two agreements: what it is, and that every rank can execute it).
"""

from __future__ import annotations

import logging
import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple

import torch.distributed as torch_dist

from mcr_dl import _C, watch
from mcr_dl.base import agreement
from mcr_dl.base.errors import InvalidArgumentError, McrError, PeerLostError
from mcr_dl.planner import capture
from mcr_dl.planner.graph import Graph, hash_of
from mcr_dl.planner.plans import Plan, Planner
from mcr_dl.records import log as records
from mcr_dl.records.log import Record
from mcr_dl.runtime import state
from mcr_dl.schedule import execution, measured
from mcr_dl.schedule.meetings import Meetings

_log = logging.getLogger("mcr_dl")

KEPT = 6  # iterations that are looked at
BLOCK = 6  # iterations of a turn; plans that are tried, and no plan, take turns
_WARM = 2  # iterations of a turn that do not count
CHECK = 5  # iterations between two decisions of rank 0
WINDOWS = 3  # checks in a row at which iterations are slower, before there is a new plan
SLOWER = 1.05  # how much longer iterations take then, compared with those after the plan
WORTH = 0.25  # the time lost in these windows, relative to that of making a plan, from which a new one is made
COOL_DOWN = 30  # iterations after a plan before the next one; doubles when a new plan changes nothing
_PATIENCE = 5.0  # seconds for the other ranks to come to the same point
_FAILURES = 3  # in a row, after which there are no more plans
_DECISION = 60.0  # seconds for rank 0's decision, which it made some iterations ago
_GO, _SLOWER, _OVER = "go", "slower", "over"  # decisions: no new plan now, a new plan, and none any more
_COMPLETE = timedelta(seconds=1)  # for the calls of the last iteration to be complete


class Phase(Enum):
    """The state of the ranks, equal on all of them."""

    WATCHING = "watching"
    TRYING = "trying"
    STEADY = "steady"
    OFF = "off"


@dataclass(frozen=True)
class Event:
    """Something that has changed. ``before`` and ``after``: ms of an iteration without and with the plan.

    ``what``: "planned" (simulated times), "kept" or "dropped" (measured times), "none" (no plan is better), "left" (the
    program made another call), "slower" (a new plan is made), or "failed" (the ranks have no common plan).
    """

    iteration: int
    what: str
    before: float = 0.0
    after: float = 0.0


class Turn(NamedTuple):
    """A turn of a plan: its name, "" for none, and the times of its iterations on this rank in ms."""

    name: str
    times: tuple[float, ...]


@dataclass
class _Known:
    """The plans for iterations of one kind: plans that are worth a try, or the one that stays."""

    plans: list[execution.Document]
    chosen: bool = False


@dataclass
class Settings:
    """As the arguments of ``Syndicate``."""

    budget: float
    lanes: int
    tries: int
    rounds: int
    promising: float
    gain: float
    seed: int


def _logged(names: Sequence[str], most: int) -> list[Record]:
    """The newest collectives of these groups in the log, oldest first, without the one that begins."""
    window, before = 2 * most + 64, -1
    while True:
        found = records.records(since=max(_C.log_made() - window, 0))
        mine = [each for each in found if not each.peer and each.group.name in names][:-1][-most:]
        if len(mine) == most or len(found) == before:
            return mine
        window, before = 2 * window, len(found)


def chosen(turns: Sequence[int], tried: int, gain: float) -> tuple[int | None, int, int]:
    """The index of the plan that stays, and the times of program order and of the fastest plan.

    ``turns``: times of the plans and then of program order, ``tried`` in all, repeatedly. None stays if the fastest one
    does not gain so much.
    """
    *planned, plain = [statistics.median_low(turns[place::tried]) for place in range(tried)]
    fastest = min(planned)
    return (planned.index(fastest) if fastest <= plain * (1 - gain) else None), plain, fastest


@dataclass
class Replanner:
    """The plans of this process. Its public fields are for reading."""

    settings: Settings
    events: list[Event] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    phase: Phase = Phase.WATCHING
    plan: execution.Document | None = None
    graph: Graph | None = None  # on rank 0
    begins: list[int] | None = None  # a list gets the ns at which iterations begin

    def __post_init__(self) -> None:
        handle = weakref.WeakMethod(self._event)

        def handler(event: str, value: int) -> None:
            method = handle()
            if method is not None:
                method(event, value)

        self.control = _C.PlanControl(handler)
        self.lanes: dict[str, list[_C.Group]] = {}  # by group
        self._meetings: Meetings | None = None
        self._failures = 0
        self._total = 0  # iterations so far
        self._seen: list[measured.Seen] = []
        self._known: dict[str, _Known] = {}
        self._simulated: list[tuple[execution.Document, Planner, Plan]] = []  # on rank 0, of the last search
        self._key = ""  # of the iterations that are known
        self._phases = 0  # that all ranks have begun together
        self._turns: list[int] = []  # ns of an iteration, on the slowest rank
        self._planning = 0  # ns that it took
        self._begin_count()

    def _begin_count(self) -> None:
        self._count, self._clock = -1, 0
        self._times: list[int] = []
        self._reference, self._slow, self._loss = 0.0, 0, 0.0
        self._cool_down = COOL_DOWN
        self._decision = _GO

    def start(self, store: torch_dist.Store, rank: int, size: int) -> None:
        """Begin, on all ranks, without a plan; ``store`` has keys of its own for this object and this start."""
        self._rank, self._size = rank, size
        self._meetings = Meetings(store, "schedule", rank, size)
        self.phase, self.plan, self._failures, self._phases = Phase.WATCHING, None, 0, 0
        self._begin_count()
        self.control.set_plan({}, [], 0)
        self.control.watch()

    # ---- events of the core: on the program's thread, before a call

    def _event(self, event: str, value: int) -> None:
        if self.phase is Phase.OFF or self._meetings is None:
            return
        try:
            if event == "found":
                self._prepare(value)
            elif event == "left":
                self._left(value)
            elif self.phase is not Phase.WATCHING:  # else it is that of a plan which a group still follows
                self._iteration()
        except PeerLostError as error:
            self._end(str(error))

    def _note(self, what: str, before: float = 0.0, after: float = 0.0) -> None:
        self.events.append(Event(self._total, what, before / 1e6, after / 1e6))
        times = f": {after / 1e6:.2f} ms an iteration instead of {before / 1e6:.2f}" if before else ""
        _log.info("Syndicate: iteration %d: %s%s", self._total, what, times)

    def _end(self, reason: str) -> None:
        """No more plans. The calls of groups that are left go on as they are, so that they match on their ranks."""
        _log.warning("Syndicate: no more plans: %s", reason)
        self.phase = Phase.OFF

    def _left(self, call: int) -> None:
        """A group has left its plan: all ranks of it, before the same call.

        If these are not all ranks of the job, the others do not know, and the plans of other groups go on.
        """
        name = self._seen[call].group
        group = state.find(name)
        others = group is None or group.size() < self._size
        if self._rank == 0 and (not others or name == self._seen[0].group):  # it counts no iterations any more
            self._post("left", [_GO, None])
        if others:
            return
        if self.phase is not Phase.WATCHING:
            self._note("left")
            _log.info("Syndicate: the program made another call than call %d of its iterations", call)
        self.phase, self.plan = Phase.WATCHING, None
        self.control.watch()

    # ---- a plan

    def _prepare(self, period: int) -> None:
        seen = [measured.Seen(*each) for each in self.control.newest(period + 1)[:-1]]
        found = self._agreed(seen)
        if found is not None:
            self._failures = 0
            self._seen = seen
            self._follow(*found)
            return
        self.phase, self.plan = Phase.WATCHING, None
        self._fail()
        if self.phase is Phase.WATCHING:
            self.control.watch()

    def _agreed(self, seen: list[measured.Seen], again: bool = False) -> tuple[str, _Known] | None:
        """The key of the iterations of the last calls, and what is known of them, perhaps after making plans.

        None if the ranks differ. ``again``: what is known does not count.
        """
        iteration = self._captured(seen)
        agreed = self._agree_on(iteration)
        if agreed is None or iteration is None:
            return None
        key = hash_of({"calls": agreed["calls"]})
        known = self._known[key] if key in agreed["known"] and not again else None
        known = known or self._make(iteration, agreed["times"])
        return None if known is None else (key, known)

    def _captured(self, seen: list[measured.Seen]) -> measured.Iteration | None:
        """The last iterations on this rank; None if the log has other calls."""
        self.control.flush(_COMPLETE)  # calls of groups that still follow an earlier plan
        period, names = len(seen), list(dict.fromkeys(each.group for each in seen))
        groups = [state.find(name) for name in names]
        deadline = time.monotonic() + _COMPLETE.total_seconds()
        while True:
            mine = _logged(names, KEPT * period)
            if all(each.end is not None for each in mine) or time.monotonic() > deadline:
                break
            time.sleep(0.0005)
        alike = [each.group.name for each in mine[-period:]] == [each.group for each in seen]
        if len(mine) < KEPT * period or any(each.end is None for each in mine) or None in groups or not alike:
            return None
        found = capture.iterations(mine, period)
        of_call = [names.index(each.group) for each in seen]
        return measured.Iteration(found, seen, [each for each in groups if each is not None], of_call)

    def _agree_on(self, iteration: measured.Iteration | None) -> Any:
        """The calls, and their shortest times over the ranks, which also wait for the last rank to call."""
        mine: Any = None
        if iteration is not None:
            mine = {"calls": iteration.terms(), "times": capture.times(iteration.found), "at": iteration.at()}
            usable = [key for key, known in self._known.items() if not execution.problem(known.plans, iteration)]
            mine["known"] = usable

        def decide(values: list[Any]) -> Any:
            if None in values:
                raise InvalidArgumentError(f"rank {values.index(None)} has other calls in its log")
            at: dict[str, int] = {}
            for rank, value in enumerate(values):
                for group, number in value["at"].items():
                    if at.setdefault(group, number) != number:
                        raise InvalidArgumentError(f"rank {rank} is at another call of group {group!r} than others")
            agreement.require_equal("calls of an iteration", [value["calls"] for value in values])
            times = zip(*(value["times"] for value in values), strict=True)
            known = set.intersection(*(set(value["known"]) for value in values))
            return {"calls": values[0]["calls"], "times": [min(column) for column in times], "known": sorted(known)}

        return self._meet("the calls of an iteration", mine, decide)

    def _make(self, iteration: measured.Iteration, times: list[int]) -> _Known | None:
        """The best plan by simulation, on rank 0; the other ranks get it."""
        begin = time.perf_counter_ns()
        lanes = [self.lanes[group.name()] for group in iteration.groups]
        mine = measured.measure(iteration, [each[0] for each in lanes], [each[-1] for each in lanes])
        costs = self._meet("costs", mine, measured.medians)
        if costs is None:
            return None
        result: Any = None
        if self._rank == 0:
            try:
                result = self.search(iteration, times, costs)
            except McrError as error:
                result = {"problem": str(error)}
        answer = self._meet("plans", result, lambda values: values[0], _PATIENCE + 2 * self.settings.budget)
        if answer is None or "problem" in answer:
            _log.info("Syndicate: no plan: %s", (answer or {}).get("problem", "rank 0 has made none"))
            return None
        self._planning = time.perf_counter_ns() - begin
        self._note("planned" if answer["plans"] else "none", answer["before"], answer["after"])
        return self._commit(answer["plans"], iteration)

    def search(self, iteration: measured.Iteration, times: list[int], costs: Any) -> dict[str, Any]:
        """Plans that are worth a try, the fastest by simulation first; simulated ns without and with that one."""
        self.graph = measured.graph(iteration, times, costs)
        planner = Planner(self.graph)
        settings = self.settings
        search = planner.search(seed=settings.seed, budget=settings.budget).plan
        before = planner.program_order().iteration
        plans: list[execution.Document] = []
        self._simulated = []
        used = [measured.used_channel(iteration, index) for index in range(len(iteration.calls))]
        after = before
        for plan in sorted([search, *self._others(planner)], key=lambda each: each.iteration):
            document = execution.document(planner, plan, iteration.of_call, used, settings.lanes)
            known = [(each["calls"], each["order"]) for each in plans]
            if document is None or len(plans) == settings.tries or plan.iteration > (1 - settings.promising) * before:
                continue
            if (document["calls"], document["order"]) not in known:
                plans.append(document)
                self._simulated.append((document, planner, plan))
                after = min(after, plan.iteration)
        return {"plans": plans, "before": before, "after": after}

    @property
    def simulated(self) -> tuple[Planner, Plan] | None:
        """The present plan as it was simulated, on rank 0; None if there is no plan, or it comes from elsewhere."""
        return next(((planner, plan) for document, planner, plan in self._simulated if document == self.plan), None)

    def _others(self, planner: Planner) -> list[Plan]:
        """Simpler plans, of which one may be faster than it is by simulation."""
        return [planner.greedy(), planner.critical_path(), planner.priority()]

    def _commit(self, plans: list[execution.Document], iteration: measured.Iteration) -> _Known | None:
        """The plans take effect on all ranks or on none."""
        problem = execution.problem(plans, iteration)

        def decide(values: list[str]) -> bool:
            for rank, each in enumerate(values):
                if each:
                    raise InvalidArgumentError(f"rank {rank}: {each}")
            return True

        return _Known(plans) if self._meet("the execution of plans", problem, decide) else None

    def _follow(self, key: str, known: _Known) -> None:
        """Follow the plan that stays, or try those that are known, of the iterations with this key."""
        self._key, self._known[key] = key, known
        trying = bool(known.plans) and not known.chosen
        self.plan = None if trying or not known.plans else known.plans[0]
        self._begin(Phase.TRYING if trying else Phase.STEADY)

    def _meet(self, what: str, value: Any, decide: Callable[[list[Any]], Any], patience: float = _PATIENCE) -> Any:
        assert self._meetings is not None
        return self._meetings.meet(what, value, decide, patience)

    def _fail(self) -> None:
        """The ranks have no common plan: perhaps there is no use in looking for more."""
        self._failures += 1
        self._note("failed")
        lost = watch.lost()
        if lost or self._failures >= _FAILURES:
            self._end("; ".join(lost.values()) or f"the ranks had no common iterations {self._failures} times")

    # ---- iterations

    def _begin(self, phase: Phase) -> None:
        """The present call begins the first iteration of a phase."""
        self.phase = phase
        self._begin_count()
        self._phases += 1
        self._turns = []
        self._next_turn() if phase is Phase.TRYING else self._install(self.plan)
        self._iteration()

    def _install(self, plan: execution.Document | None) -> None:
        execution.install(self.control, plan, self._seen)

    def _iteration(self) -> None:
        """An iteration begins."""
        now = time.perf_counter_ns()
        if self.begins is not None:
            self.begins.append(now)
        if self._count >= 0:
            self._times.append(now - self._clock)
            self._total += 1
        self._clock = now
        self._count += 1
        if self._count == 0 or self._count % (BLOCK if self.phase is Phase.TRYING else CHECK):
            return
        if self.phase is Phase.TRYING:
            self._end_turn()
        else:
            self._check()
        self._clock = time.perf_counter_ns()

    def _tried(self) -> list[execution.Document | None]:
        return [*self._known[self._key].plans, None]

    def _next_turn(self) -> None:
        tried = self._tried()
        self.plan = tried[len(self._turns) % len(tried)]
        self._install(self.plan)

    def _end_turn(self) -> None:
        """All ranks begin the next turn, or none does: one may have left the plan that counts iterations there."""
        times, self._times = self._times[_WARM:], []
        self.turns.append(Turn("" if self.plan is None else self.plan["name"], tuple(each / 1e6 for each in times)))
        slowest = self._meet("the time of a turn", statistics.median_low(times), max)
        if slowest is None:
            self.phase = Phase.STEADY
            self._begin_count()
            self._fail()
            return
        self._turns.append(slowest)
        tried = self._tried()
        if len(self._turns) < self.settings.rounds * len(tried):
            self._next_turn()
            return
        index, plain, fastest = chosen(self._turns, len(tried), self.settings.gain)
        self._note("dropped" if index is None else "kept", plain, fastest)
        plans = self._known[self._key].plans
        self._follow(self._key, _Known([] if index is None else [plans[index]], chosen=True))

    def _check(self) -> None:
        """Rank 0 decides for the next check, so that each rank finds the decision when it comes there."""
        assert self._meetings is not None
        number = self._count // CHECK
        window, self._times = self._times, []
        decision = self._decision
        if self._rank == 0:
            kept = max(self.control.digests().items(), default=None)
            self._decision, _ = self._post(str(number + 1), [_SLOWER if self.slower(window) else _GO, kept])
        elif number > 1:
            decision, kept = self._read([str(number), "left"])
            self._compare(number, kept)
        if number > 1 and decision == _SLOWER:
            self._plan_again()
        elif number > 1 and decision == _OVER:
            self.plan = None
            self._install(None)
            self._end("; ".join(watch.lost().values()) or "a rank did not decide in time, or has not kept the order")

    def _compare(self, number: int, kept: tuple[int, int] | None) -> None:
        """The guard: whether this rank has issued what rank 0 had, if both have kept the order up to that round."""
        mine = None if kept is None else self.control.digests().get(kept[0])
        if kept is not None and mine is not None and mine != kept[1]:
            _log.error("Syndicate: rank %d has issued other motifs than rank 0 until iteration %d", self._rank, kept[0])
            self._post(str(number + 2), [_OVER, None])

    def slower(self, window: list[int]) -> bool:
        """Whether iterations are so much slower that rank 0 wants a new plan; the times in ns of the last ones."""
        middle = statistics.median(window)
        self._reference = self._reference or middle
        slow = middle > SLOWER * self._reference
        self._slow = self._slow + 1 if slow else 0
        self._loss = self._loss + len(window) * (middle - self._reference) if slow else 0.0
        return self._slow >= WINDOWS and self._count >= self._cool_down and self._loss >= WORTH * self._planning

    def _plan_again(self) -> None:
        """The costs have changed: make another plan. If not all ranks can have one, they go on with the old one."""
        before, cool_down = self.plan, self._cool_down
        self._note("slower")
        self._install(None)
        found = self._agreed(self._seen, again=True)
        self._follow(*(found or (self._key, self._known[self._key])))
        if found is None:
            self._fail()
        else:
            self._failures = 0
        if found is None or (before is not None and before in found[1].plans):
            self._cool_down = 2 * cool_down

    def _post(self, key: str, value: list[Any]) -> Any:
        assert self._meetings is not None
        return self._meetings.post(f"{self._phases}/{key}", value)

    def _read(self, keys: list[str]) -> Any:
        assert self._meetings is not None
        return self._meetings.read([f"{self._phases}/{key}" for key in keys], _DECISION, [_OVER, None])
