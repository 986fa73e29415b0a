# SPDX-License-Identifier: Apache-2.0
"""When a program's iterations are planned: after they are found, and again when they take longer than they did.

Everything happens between two calls of the program, at the beginning of an iteration, on all ranks at the same one: the
ranks find iterations in their own calls, which are alike; later they count them. A plan takes effect at that point on
all ranks or on none (two agreements: what it is, and that every rank can execute it).
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch.distributed as torch_dist

from mcr_dl import _C, watch
from mcr_dl.base import documents
from mcr_dl.base.errors import InvalidArgumentError, McrError, PeerLostError, text_of
from mcr_dl.base.weak import weakly
from mcr_dl.planner.graph import Graph
from mcr_dl.planner.plans import Plan, Planner
from mcr_dl.runtime import state
from mcr_dl.runtime.meetings import Meetings, value_of_rank_0, value_or_problem
from mcr_dl.schedule.syndicate import captured, execution, measured
from mcr_dl.schedule.syndicate.captured import Captures
from mcr_dl.schedule.syndicate.iteration import Iteration, Seen
from mcr_dl.schedule.syndicate.known import KEPT, Event, Known, Phase, Settings, Turn
from mcr_dl.schedule.syndicate.slowdown import Slowdown

_log = logging.getLogger("mcr_dl")

BLOCK = 6  # iterations of a turn; plans that are tried, and no plan, take turns
_WARM = 2  # iterations of a turn that do not count
COOL_DOWN = 30  # iterations after a plan before the next one; doubles when a new plan changes nothing
_PATIENCE = 5.0  # seconds for the other ranks to come to the same point, at most
_FAILURES = 3  # in a row, after which there are no more plans
_DECISION = 60.0  # seconds for rank 0's decision, which it made some iterations ago, at most
_RETRIES = (1, 16, 256, 4096)  # checks after a turn whose end a rank has missed, at which rank 0 lets the turns go on
_MOST_KNOWN = 64  # kinds of iterations whose plans are remembered
_KEPT_POSTS = 1000  # decisions that stay at the store: ranks may be apart
_WORTHWHILE = 20  # how much longer iterations must stay than their begin took, or they need more repetitions
_MOST_REPEATED = 4096  # so many at most
# Decisions: nothing changes; a new plan; the plans take turns again; no new plans any more.
_GO, _SLOWER, _AGAIN, _END = "go", "slower", "again", "end"


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
        self.control = _C.PlanControl(weakly(self._event))
        self.lanes: dict[str, list[_C.Group]] = {}  # by group
        self._meetings: Meetings | None = None
        self._failures = 0
        self._total = 0  # iterations so far
        self._seen: list[Seen] = []
        self._known: dict[str, Known] = {}
        self._captures = Captures()
        self._posted: deque[str] = deque()  # keys of decisions at the store
        self._simulated: list[tuple[execution.Document, Planner, Plan]] = []  # on rank 0, of the last search
        self._key = ""  # of the iterations that are known
        self._phases = 0  # that all ranks have begun together
        self._planning = 0  # ns that it took
        self._agreeing = 0  # ns that it took to agree on the last iterations
        self._followed = 0  # when the ranks began to follow a plan, or none, of the iterations that are known
        self._last: list[int] | None = None  # of those left: their calls, how long they stayed, and took to begin
        self._repetitions: dict[int, int] = {}  # by calls of an iteration: after how many it is found, if not KEPT
        self._begin_count()

    def _begin_count(self) -> None:
        self._count, self._clock = -1, 0
        self._times: list[int] = []
        self._slowdown, self._held = Slowdown(), self._held_so_far()
        self._cool_down = COOL_DOWN
        self._decision, self._missed = _GO, False

    def start(self, store: torch_dist.Store, rank: int, size: int) -> None:
        """Begin, on all ranks, without a plan; ``store`` has keys of its own for this object and this start."""
        self._rank, self._size = rank, size
        self._meetings = Meetings(store, "schedule", rank, size)
        self.phase, self.plan, self._failures, self._phases = Phase.WATCHING, None, 0, 0
        self._posted.clear()  # they are at the store of an earlier start
        self._begin_count()
        self.control.set_plan({}, [], 0)
        self.control.watch()

    def begin_again(self) -> None:
        """End all plans, and forget those that are known: on all ranks, between the same two calls."""
        if self.phase in (Phase.TRYING, Phase.STEADY):
            self._note("left")
        self.plan, self._captures, self._last = None, Captures(), None
        self._known.clear()
        self.control.set_plan({}, [], 0)
        if self.phase is not Phase.OFF:
            self.phase = Phase.WATCHING
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
        except McrError as error:
            # Others may have an answer that this rank has not read, and make their calls in other ways from here on.
            if self._meetings.undecided and not isinstance(error, PeerLostError):
                raise
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
            self._last = [len(self._seen), time.perf_counter_ns() - self._followed, self._agreeing]
            _log.info("Syndicate: the program made, or marked, another call than call %d of its iterations", call)
        self.phase, self.plan = Phase.WATCHING, None
        self.control.watch()

    # ---- a plan

    def _prepare(self, period: int) -> None:
        seen = [Seen(*each) for each in self.control.newest(period + 1)[:-1]]
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

    def _agreed(self, seen: list[Seen], again: bool = False) -> tuple[str, Known] | None:
        """The key of the iterations of the last calls, and what is known of them, perhaps after making plans.

        None if the ranks differ. ``again``: what is known does not count.
        """
        begin = time.perf_counter_ns()
        iteration = self._capture(seen)
        agreed = self._agree_on(iteration)
        if agreed is None or iteration is None:
            return None
        self._phases = agreed["phases"]  # a rank that had left the plan which counts iterations has fewer
        self._agreeing = time.perf_counter_ns() - begin
        self._pace(agreed["left"])
        key = documents.hash_of({"calls": agreed["calls"]})
        if key in agreed["known"] and not again:
            return key, self._known[key]
        if agreed["lacks"]:
            _log.warning("Syndicate: no plan for the iterations of %d calls: %s", len(seen), agreed["lacks"])
            self._note("none")
            return key, Known([], agreed["time"])
        plans = self._make(iteration, agreed["times"])
        return None if plans is None else (key, Known(plans, agreed["time"]))

    def _capture(self, seen: list[Seen]) -> Iteration | None:
        """The last iterations on this rank. None, with which the ranks have no common plan, also for any other error:
        the program would run without Syndicate.
        """
        try:
            return self._captures.take(self.control, seen)
        except McrError:
            raise
        except Exception:
            _log.exception("Syndicate: the calls of an iteration cannot be read")
            return None

    def _agree_on(self, iteration: Iteration | None) -> Any:
        """Facts of the last iterations that all ranks have alike."""
        mine: Any = None
        if iteration is not None:
            mine = captured.facts(iteration, self._known)
            mine |= {"phases": self._phases, "left": self._last}
        return self._meet("the calls of an iteration", mine, captured.common)

    def _pace(self, left: list[int] | None) -> None:
        """Iterations that ended soon after their begin must repeat themselves more often before they begin again."""
        self._last = None
        if left is None:
            return
        calls, stay, begin = left
        more = min(2 * self._repetitions.get(calls, KEPT), _MOST_REPEATED)
        self._repetitions[calls] = more if stay < _WORTHWHILE * begin else KEPT
        self.control.demand(calls, self._repetitions[calls])

    def _make(self, iteration: Iteration, times: list[int]) -> list[execution.Document] | None:
        """The best plans by simulation, on rank 0; the other ranks get them."""
        begin = time.perf_counter_ns()
        lanes = [self.lanes[group.name()] for group in iteration.groups]
        firsts, lasts = [each[0] for each in lanes], [each[-1] for each in lanes]
        try:
            mine = measured.measure(
                iteration, firsts, lasts, lambda first: self._meet("first times", first, measured.longest, _PATIENCE)
            )
        except McrError:
            raise
        except Exception as error:  # such as MemoryError: the program would run without Syndicate
            raise McrError(f"the measurements of its operations have failed: {text_of(error)}") from error
        costs = None if mine is None else self._meet("costs", mine, measured.medians, _PATIENCE)
        if costs is None:
            return None
        mine = value_or_problem(lambda: self.search(iteration, times, costs)) if self._rank == 0 else None
        found = self._meet("plans", mine, value_of_rank_0, _PATIENCE + 2 * self.settings.budget)
        if found is None:
            return None
        self._planning = time.perf_counter_ns() - begin
        self._note("planned" if found["plans"] else "none", found["before"], found["after"])
        return found["plans"] if self._commit(found["plans"], iteration) else None

    def search(self, iteration: Iteration, times: list[int], costs: Any) -> dict[str, Any]:
        """Plans that are worth a try, the fastest by simulation first; simulated ns without and with that one."""
        self.graph = measured.graph(iteration, times, costs)
        planner = Planner(self.graph)
        settings = self.settings
        search = planner.search(seed=settings.seed, budget=settings.budget, start=self._start(planner)).plan
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

    def _start(self, planner: Planner) -> Plan | None:
        """The present plan with another planner's options of the same names; None if there is none."""
        if self.simulated is None:
            return None
        before, plan = self.simulated
        nodes = zip(before.graph.nodes, before.options, plan.chosen, strict=True)
        names = {node.key: found[place].name for node, found, place in nodes if found}
        chosen = [
            next((place for place, each in enumerate(found) if each.name == names.get(node.key)), 0)
            for node, found in zip(planner.graph.nodes, planner.options, strict=True)
        ]
        return replace(plan, chosen=tuple(chosen))

    @property
    def simulated(self) -> tuple[Planner, Plan] | None:
        """The present plan as it was simulated, on rank 0; None if there is no plan, or it comes from elsewhere."""
        return next(((planner, plan) for document, planner, plan in self._simulated if document == self.plan), None)

    def _others(self, planner: Planner) -> list[Plan]:
        """Simpler plans, of which one may be faster than it is by simulation."""
        return [planner.greedy(), planner.critical_path(), planner.priority()]

    def _commit(self, plans: list[execution.Document], iteration: Iteration) -> bool:
        """The plans take effect on all ranks or on none."""
        problem = execution.problem(plans, iteration)

        def decide(values: list[str]) -> bool:
            for rank, each in enumerate(values):
                if each:
                    raise InvalidArgumentError(f"rank {rank}: {each}")
            return True

        return bool(self._meet("the execution of plans", problem, decide, _PATIENCE))

    def _follow(self, key: str, known: Known) -> None:
        """Follow the plan that stays, or try those that are known, of the iterations with this key."""
        self._known.pop(key, None)
        self._key, self._known[key] = key, known
        while len(self._known) > _MOST_KNOWN:  # the oldest, which are equal on all ranks
            del self._known[next(iter(self._known))]
        self._followed = time.perf_counter_ns()
        trying = bool(known.plans) and not known.chosen
        self.plan = None if trying or not known.plans else known.plans[0]
        self._begin(Phase.TRYING if trying else Phase.STEADY)

    def _within_timeouts(self, seconds: float) -> float:
        """So many, or a third of the shortest timeout of the groups: ranks that do not come may wait in their calls.

        It need not be equal on all ranks: one that gives up does so for all.
        """
        groups = [group for group in map(state.find, self.lanes) if group is not None]
        return min([seconds, *(group.timeout.total_seconds() / 3 for group in groups)])

    def _meet(self, subject: str, value: Any, decide: Callable[[list[Any]], Any], patience: float | None = None) -> Any:
        """Without ``patience``, other ranks may be elsewhere; with it, they have come to the meeting before."""
        patience = self._within_timeouts(_PATIENCE) if patience is None else patience
        assert self._meetings is not None
        if self.phase is not Phase.WATCHING:  # a late rank may come to what the others do some iterations later
            subject = f"{subject}, iteration {self._count} of phase {self._phases}"
        return self._meetings.meet(subject, value, decide, patience)

    def _fail(self) -> None:
        """The ranks have no common plan: perhaps there is no use in looking for more."""
        self._failures += 1
        self._note("failed")
        lost = watch.lost()
        if lost or self._failures >= _FAILURES:
            problem = "" if self._meetings is None else self._meetings.problem
            self._end("; ".join(lost.values()) or f"the ranks had no common plan {self._failures} times: {problem}")

    # ---- iterations

    def _begin(self, phase: Phase) -> None:
        """The present call begins the first iteration of a phase."""
        self.phase = phase
        self._begin_count()
        self._phases += 1
        self._next_turn() if phase is Phase.TRYING else self._install(self.plan)
        self._iteration()

    def _install(self, plan: execution.Document | None) -> None:
        self._captures.follow(plan, self._seen)
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
        if self._count == 0 or self._count % (BLOCK if self.phase is Phase.TRYING else self._known[self._key].check):
            return
        if self.phase is Phase.TRYING:
            self._end_turn()
        else:
            self._check()
        self._clock = time.perf_counter_ns()

    def _next_turn(self) -> None:
        known = self._known[self._key]
        self.plan = known.tried[len(known.turns) % len(known.tried)]
        self._install(self.plan)

    def _end_turn(self) -> None:
        """All ranks begin the next turn, or none does: one may have left the plan that counts iterations there."""
        times, self._times = self._times[_WARM:], []
        self.turns.append(Turn("" if self.plan is None else self.plan["name"], tuple(each / 1e6 for each in times)))
        slowest = self._meet("the time of a turn", statistics.median_low(times), max)
        if slowest is None:  # the turns go on, when all ranks come to an agreement about that
            self.phase = Phase.STEADY
            self._begin_count()
            self._missed = True
            self._fail()
            return
        known = self._known[self._key]
        known.turns.append(slowest)
        result = known.choose(self.settings.rounds, self.settings.gain)
        if result is None:
            self._next_turn()
            return
        stays, plain, fastest = result
        self._note("kept" if stays else "dropped", plain, fastest)
        self._follow(self._key, known)

    def _check(self) -> None:
        """Rank 0 decides for the next check, so that each rank finds the decision when it comes there."""
        number = self._count // self._known[self._key].check
        window, self._times = self._times, []
        decision = self._decision
        if self._rank == 0:
            kept = max(self.control.digests().items(), default=None)
            slower = self.slower(window, self._newly_held())
            following = _AGAIN if self._missed and number in _RETRIES else _SLOWER if slower else _GO
            self._decision, _ = self._post(str(number + 1), [following, kept])
        elif number > 1:
            decision, kept = self._read([str(number), "left"])
            self._compare(number, kept)
        if number > 1 and decision == _SLOWER:
            self._plan_again()
        elif number > 1 and decision == _AGAIN:
            self._try_again()
        elif number > 1 and decision == _END:
            self._end("; ".join(watch.lost().values()) or "a rank did not decide in time, or has not kept the order")

    def _try_again(self) -> None:
        """After a turn whose end a rank has missed."""
        if self._meet("turns again", None, len) is None:  # the others may have left the plan that counts iterations
            self._note("failed")
            return
        self._failures = 0
        self._follow(self._key, self._known[self._key])

    def _compare(self, number: int, kept: tuple[int, int] | None) -> None:
        """The guard: whether this rank has issued what rank 0 had, if both have kept the order up to that round."""
        mine = None if kept is None else self.control.digests().get(kept[0])
        if kept is not None and mine is not None and mine != kept[1]:
            _log.error("Syndicate: rank %d has issued other motifs than rank 0 until iteration %d", self._rank, kept[0])
            self._post(str(number + 2), [_END, None])

    def _held_so_far(self) -> int:
        held: int = self.control.statistics()["held_ns"]
        return held

    def _newly_held(self) -> int:
        before, self._held = self._held, self._held_so_far()
        return self._held - before

    def slower(self, window: list[int], held: int) -> bool:
        """Whether rank 0 wants a new plan: the times of the last iterations, and for how long the order held them."""
        self._slowdown.add(window, held)
        return self._count >= self._cool_down and self._slowdown.calls_for_a_plan(self._planning)

    def _plan_again(self) -> None:
        """The costs have changed: make another plan. If not all ranks can have one, they go on with the old one."""
        before, cool_down = self.plan, self._cool_down
        self._note("slower")
        found = self._agreed(self._seen, again=True)
        self._follow(*(found or (self._key, self._known[self._key])))
        if found is None:
            self._fail()
        else:
            self._failures = 0
        if found is None or (before is not None and before in found[1].plans):
            self._cool_down = 2 * cool_down

    def _post(self, key: str, value: list[Any]) -> Any:
        """Leave a decision; rank 0, which makes most of them, deletes old ones."""
        assert self._meetings is not None
        full = f"{self._phases}/{key}"
        found = self._meetings.post(full, value)
        if self._rank == 0:
            self._posted.append(full)
        if len(self._posted) > _KEPT_POSTS:
            self._meetings.forget(self._posted.popleft())
        return found

    def _read(self, keys: list[str]) -> Any:
        assert self._meetings is not None
        limit = self._within_timeouts(_DECISION)
        return self._meetings.read([f"{self._phases}/{key}" for key in keys], limit, [_END, None])
