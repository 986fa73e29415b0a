# SPDX-License-Identifier: Apache-2.0
"""The ranks' side of ``mcr-tune``: checks and times every candidate, and records each step before it starts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.bench import starting
from mcr_dl.groups import default_group
from mcr_dl.libraries import registry
from mcr_dl.measure import devices, shares
from mcr_dl.measure.cases import Case, Prepared
from mcr_dl.measure.ranks import bind
from mcr_dl.measure.timing import MINIMUM_ROUNDS, Sampling, Statistics, TorchControl
from mcr_dl.passes import chain
from mcr_dl.runtime import core_groups, state
from mcr_dl.tables import rules
from mcr_dl.tables.host import host, software
from mcr_dl.tables.model import label_of, parts_of
from mcr_dl.tuning._journal import VISITS, Journal, Plan, Progress, Unit

_RED = "SUM"
_CALLS = 12 + MINIMUM_ROUNDS  # of each candidate, at most, before the budget ends a visit: the first ones plan


def _compressing(world: _C.Group) -> _C.Group:
    """A group of all ranks whose calls may name codecs; calls of the default group go through no pass."""
    group = core_groups.make("codecs", list(world.ranks), world.backends, world.timeout)
    chain.set_passes(["compress"], group)
    return group


class Worker:
    """One rank while it measures; all ranks do the same steps in the same order."""

    def __init__(self, plan: Plan, progress: Progress, journal: Journal) -> None:
        world = _C.world()
        assert world is not None
        self.plan, self.progress, self.group = plan, progress, world
        self.coded = _compressing(world) if plan.codecs else world
        self.control = TorchControl()
        self.shares = shares.Shares((self.group, self.coded), self.control)
        self._all_cores = os.sched_getaffinity(0)
        self.bound = plan.device == "cpu" and bind()  # a device's library has its own threads to run
        self._own_core = os.sched_getaffinity(0)
        self.journal = journal if world.rank() == 0 else None
        self._took: dict[tuple[int, str], float] = {}  # seconds of the checks of a unit

    def note(self, event: str, **values: Any) -> None:
        """Record an event in the file (rank 0) and in memory (all ranks)."""
        if self.journal is not None:
            self.journal.add(event, **values)
        self.progress.take({"event": event, **values})

    def _known(self, unit: Unit) -> list[str]:
        found = self.group._explain(unit.operation, 0, unit.dtype, _RED, self.plan.device, unit.async_op)
        return list(found["candidates"])

    def candidates(self, unit: Unit, nbytes: int) -> list[str]:
        """The candidates that `auto` would compare for this operation, and backends with codecs, unless excluded."""
        known = self._known(unit)
        codecs = self.plan.codecs_for(unit, nbytes)
        coded = [label_of(name, codec) for codec in codecs for name in known if not _C.CandidateName(name).variant]
        gone = self.progress.out(unit)
        return [name for name in [*known, *coded] if name not in gone]

    def run(self) -> None:
        """Measure all units that are not done."""
        shape, versions = state.current().knowledge.shape(self.group.ranks), software({})
        facts = {
            "ranks": self.group.size(),
            "nodes": shape.nodes,
            "ranks_per_node": shape.ranks_per_node,
            "libraries": _C.backend_status(),
            "bound": self.bound,
            "devices": devices.count(self.plan.device),
            "fingerprint": host().fingerprint,
            "mcr_dl": versions.mcr_dl,
            "torch": versions.torch,
            "python": versions.python,
        }
        # The journal has the facts of rank 0. Other hosts may have other machines.
        problem = self.progress.contradiction(facts, self.plan.backends) if self.group.rank() == 0 else ""
        if self.control.maximum([float(bool(problem))])[0]:
            self._refuse(problem or "--resume: rank 0 cannot go on with the interrupted run")
        self.note("ready", **facts)
        for unit in self.plan.units:
            if unit.key in self.progress.done:
                continue
            self.unit(unit)
            self.note("done", **unit.where)

    def unit(self, unit: Unit) -> None:
        """One operation and type: first check the results at every size, then time each size in several visits."""
        if self.bound:  # not while threads start that complete asynchronous calls: they would stay on the rank's core
            os.sched_setaffinity(0, self._all_cores if unit.async_op else self._own_core)
        ready = {nbytes: self.checked(unit, nbytes, self.candidates(unit, nbytes)) for nbytes in unit.sizes}
        gone = self.progress.out(unit)
        self._require_one(unit, gone)
        self._give_shares(unit, ready)
        samplings = []
        for nbytes, prepared in ready.items():
            right = {name: each for name, each in prepared.items() if name not in gone}
            together = [right] if unit.key not in self.progress.apart else [{name: right[name]} for name in right]
            samplings += [
                (nbytes, part, Sampling(part, self.control, self.plan.confidence)) for part in together if part
            ]
        for visit in range(VISITS):
            for nbytes, part, sampling in samplings:
                self.step(unit, nbytes, "time", part)
                budget = self.plan.budget_seconds * len(part) / len(ready[nbytes]) / VISITS
                found = sampling.extend(budget, MINIMUM_ROUNDS if visit == 0 else 2)
                if visit == VISITS - 1:
                    self.results(unit, part, found)

    def _give_shares(self, unit: Unit, ready: Mapping[int, dict[str, Prepared]]) -> None:
        """Time the parts of stripes, so that these are measured with the shares that ``auto`` computes from them."""
        times: dict[str, dict[int, float]] = {}
        gone = self.progress.out(unit)
        for nbytes, prepared in ready.items():
            for name in shares.parts_of(prepared.keys() - gone):
                if name in gone or name not in prepared:
                    continue
                part = {name: prepared[name]}
                self.step(unit, nbytes, "time", part)
                budget = self.plan.budget_seconds / len(prepared) / VISITS
                found = Sampling(part, self.control, self.plan.confidence).extend(budget)
                times.setdefault(name, {})[prepared[name].nbytes] = found[name].median_us
        if times:
            calls = shares.Kind(unit.operation, unit.dtype, self.plan.device, unit.async_op)
            self.shares.give(calls, times)

    def _require_one(self, unit: Unit, gone: set[str]) -> None:
        """Several candidates that have all failed had a cause in common, such as too little memory.

        Of several backends, one alone may have the operation: another one emulates it where that one is left out.
        """
        known = self._known(unit)
        alone = len(known) == 1 and len(self.plan.backends) > 1
        if known and not alone and gone.issuperset(known):
            reasons = {each["candidate"]: each["reason"] for each in self.progress.failures(unit)}
            text = "; ".join(f"{name}: {reasons[name]}" for name in known)
            self._refuse(f"{unit}: expected a candidate that works, but all fail ({text})")

    def _refuse(self, reason: str) -> NoReturn:
        """End the run, on all ranks; rank 0 has the reason."""
        self.note("refused", reason=reason)
        raise InvalidArgumentError(reason)

    def results(self, unit: Unit, part: dict[str, Prepared], found: dict[str, Statistics]) -> None:
        """Record the times of one size."""
        for name, statistics in found.items():
            times = {key: getattr(statistics, key) for key in ("n", "min_us", "median_us", "p99_us")}
            self.note("sample", **unit.where, candidate=name, bytes=part[name].nbytes, **times)

    def step(self, unit: Unit, nbytes: int, phase: str, names: Iterable[str]) -> None:
        """Record the next step; of timing, with the seconds that it may take apart from its budget."""
        where = {**unit.where, "bytes": nbytes, "phase": phase, "candidates": list(names)}
        if phase == "time":
            where["seconds"] = round(_CALLS * sum(self._took[nbytes, name] for name in where["candidates"]), 3)
        self.note("step", **where)

    def checked(self, unit: Unit, nbytes: int, names: list[str]) -> dict[str, Prepared]:
        """The candidates with correct results, ready to be timed on the same memory."""
        prepared: dict[str, Prepared] = {}
        for name in names:
            self.step(unit, nbytes, "check", [name])
            candidate, codec = parts_of(name)
            case = Case(
                unit.operation,
                nbytes,
                unit.dtype,
                _RED,
                asynchronous=unit.async_op,
                device=self.plan.device,
                codec=codec,
            )
            shared = next(iter(prepared.values())).tensors if prepared else None
            ready = Prepared(case, candidate, self.coded if codec else self.group, shared)
            begin = time.monotonic()
            mine = ready.check()
            self._took[nbytes, name] = time.monotonic() - begin
            wrong = int(sum(self.control.gathered(mine)))
            if wrong:
                reason = f"{wrong} wrong elements at {ready.nbytes} bytes"
                self.note("excluded", **unit.where, candidate=name, reason=reason)
            else:
                prepared[name] = ready
        return prepared


def start(backends: Sequence[str], device: str, timeout: timedelta | None = None) -> None:
    """Start these backends in a rank that measures; without names, those of ``auto`` that all ranks can use.

    No table or rule makes choices: candidates are named. Blocking calls block, as in the programs that use the table.
    """
    for name in (rules.VARIABLE, "MCR_DL_DEBUG", "MCR_DL_MPI_INTERRUPTIBLE"):
        os.environ.pop(name, None)
    starting.start(backends, device, automatic=not backends, timeout=timeout)


def work(plan: Plan, progress: Progress, journal: Path, limit: float) -> int:
    """Run a rank process."""
    devices.take(plan.device)
    start(plan.backends, plan.device, timedelta(seconds=limit * 4))
    Worker(plan, progress, Journal(journal)).run()
    default_group.destroy_process_group()
    return 0


def start_alone(backend: str, limit: float, device: str = "cpu") -> int:
    """Start one backend and make one call on it, to see whether it works here at all."""
    devices.take(device)
    registry.load(backend)
    start(registry.with_needed([backend]), device, timedelta(seconds=limit))
    _C.barrier(backend=backend)
    default_group.destroy_process_group()
    return 0
