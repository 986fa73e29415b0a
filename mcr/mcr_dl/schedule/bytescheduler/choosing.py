# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a group choose one plan together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mcr_dl import _C
from mcr_dl.measure import cases
from mcr_dl.runtime import changes, state
from mcr_dl.schedule.bytescheduler import bayesian, kept, planning, turns
from mcr_dl.schedule.bytescheduler.gradients import Piece
from mcr_dl.schedule.bytescheduler.issue import Transfers
from mcr_dl.schedule.bytescheduler.planning import Plan

_log = logging.getLogger("mcr_dl")


@dataclass(eq=False)
class Choice:
    """Finds the plan of one model, and keeps its settings for later jobs.

    ``kind``: ByteScheduler's argument ``tuning``. ``limits``: its partition and credit. ``finish`` makes its updates.
    ``trials``: the plans that training steps have compared. Every rank calls all methods after the same steps.
    """

    transfers: Transfers
    kind: str
    limits: tuple[int | str | None, int | str | None]
    finish: Callable[[], None]
    trials: list[turns.Trial] = field(default_factory=list)
    tuner: turns.Tuner | None = None
    known: planning.Costs | None = None
    _key: str | None = None

    def __post_init__(self) -> None:
        """Learn of backends that end."""
        state.current().planners.add(self)

    def backends_end(self, names: list[str]) -> None:
        """Leave these backends, which are about to end: the group chooses, if the fastest candidate is of one of them.

        Equal on all ranks, as the fastest candidate is.
        """
        self.finish()
        fastest = self.transfers.fastest
        if fastest is not None and _C.CandidateName(fastest).backend in names:
            self.transfers.fastest = self._key = None

    @property
    def group(self) -> _C.Group:
        """The group of the gradients' operations."""
        return self.transfers.group

    def costs(self, times: planning.Times, layers: Sequence[Sequence[Piece]]) -> planning.Costs:
        """The input of the simulation: the recorded times, and those of some transfers. Nothing may be in flight."""
        pieces = [piece for layer in layers for piece in layer]
        sizes, kinds = [piece.nbytes for piece in pieces], [piece.kind for piece in pieces]
        number = {piece: index for index, piece in enumerate(pieces)}
        if self.transfers.backend is None and not self.transfers.halves:
            self.transfers.fastest = self._fastest(kinds, max(sizes))
        transfers = planning.time_transfers(self.transfers.reduce, max(sizes))
        numbers = [[number[piece] for piece in layer] for layer in layers]
        return planning.costs(self.group, times, transfers, numbers, sizes, kinds)

    def first(self, known: planning.Costs) -> Plan:
        """The plan to begin with; what is compared with it comes by ``step_ended``."""
        self.known = known
        plans = planning.make(known, self.limits, self.transfers.halves)
        plan = plans[0]
        if self.kind != "simulation" and self.limits == ("auto", "auto") and not self.transfers.halves:
            self._key = kept.key(self.group, known.sizes, known.kinds, self.transfers.candidate)
        found = self._kept()
        if found is not None:
            plan = replace(known.plan(found), program_order=plans[0].program_order)
            self._say("keeps the settings of an earlier job", plan)
            return plan
        self.tuner = self._tuner(known, plans)
        plan = plan if self.tuner is None else self.tuner.plan
        self._say("begins with", plan)
        return plan

    def _fastest(self, kinds: Sequence[str], largest: int) -> str | None:
        """The candidate with the shortest all_reduces when several are in flight; None if there is no choice.

        Tables have the times of one at a time, and the times of calls behind computation say little.
        """
        names = [name for name in cases.candidates(self.group) if all(_sums(self.group, name, kind) for kind in kinds)]
        if len(names) < 2:
            return None
        times = [planning.time_in_flight(partial(self.transfers.reduce, candidate=name), largest) for name in names]
        slowest = self._slowest(times)
        found = names[slowest.index(min(slowest))]
        if self.group.rank() == 0:
            _log.info("ByteScheduler: the fastest candidate of %d is %s", len(names), found)
        return found

    def step_ended(self) -> bool:
        """Whether the plan is to be changed to ``next_plan`` now, before the next step."""
        return self.tuner is not None and self.tuner.step_ended()

    def next_plan(self) -> Plan:
        """The plan of the next steps; all updates must have been made."""
        assert self.tuner is not None
        self.tuner.advance()
        plan = self.tuner.plan
        if self.tuner.done:
            self.tuner = None
            self._say(f"has measured {len(self.trials)} plans, and keeps", plan)
            if self._key is not None and self.group.rank() == 0:
                kept.store(self._key, plan.settings, self.kind)
        return plan

    def _say(self, what: str, plan: Plan) -> None:
        if self.group.rank() == 0:
            _log.info("ByteScheduler %s: %s", what, plan)

    def _kept(self) -> planning.Settings | None:
        """Rank 0's settings of an earlier job."""
        if self._key is None:
            return None
        found = kept.load(self._key, self.kind) if self.group.rank() == 0 else None
        agreed = self._share(found)
        return None if agreed is None else planning.Settings(*agreed)

    def _tuner(self, known: planning.Costs, plans: list[Plan]) -> turns.Tuner | None:
        first = turns.shortlist(plans, self.trials, self._slowest)
        if self.kind == "bayesian":
            probes = bayesian.probes(known.plan, self._share, self.group.rank() == 0)
            return turns.Tuner(turns.searched(first, probes, self.trials, self._slowest))
        return turns.Tuner(first) if self.kind == "shortlist" and len(plans) > 1 else None

    def _slowest(self, times: list[int]) -> list[int]:
        agreed: list[int] = changes.agree(self.group, "ByteScheduler", times, turns.slowest)
        return agreed

    def _share(self, value: Any) -> Any:
        return changes.agree(self.group, "ByteScheduler", value, lambda values: values[0])


def _sums(group: _C.Group, candidate: str, kind: str) -> bool:
    """Whether a candidate sums tensors of a type, and is not left out by the measurements."""
    dtype = kind.removeprefix("torch.")
    if candidate in group._explain("all_reduce", 0, dtype, "SUM", "cpu", True)["excluded"]:
        return False
    return group._support(candidate, "all_reduce", dtype, "SUM", False, "cpu") != "-"
