# SPDX-License-Identifier: Apache-2.0
"""Runs the measurements of ``mcr-tune`` in ranks that can be killed, and excludes candidates that hang, crash or err.

Every step is recorded before it starts. When no new line appears for too long, or a rank dies, the ranks are killed,
the candidate of that step is excluded for that operation, and new ranks continue. A failure while several candidates
are timed in turn identifies none of them: that operation is then timed one candidate at a time.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcr_dl.base.errors import BackendUnavailableError, InvalidArgumentError
from mcr_dl.base.operations import dtype_class
from mcr_dl.commands.sizes import size_text
from mcr_dl.measure.ranks import LocalRanks, run_local
from mcr_dl.tables.model import Curve, Exclusion, Sample, Scale, parts_of
from mcr_dl.tables.table import now
from mcr_dl.tables.winners import winners_of
from mcr_dl.tuning import worker
from mcr_dl.tuning._journal import Journal, Plan, Progress, blamed

_LOOK_SECONDS = 0.05
_START_SECONDS = 60.0  # importing torch on a busy machine, at least
_START_SECONDS_OF_A_RANK = 2.0  # of a core
_TAIL = 600

Report = Callable[[dict[str, Any]], None]


def _start_seconds(ranks: int) -> float:
    """Seconds until so many ranks must have started on the cores of this machine."""
    return max(_START_SECONDS, _START_SECONDS_OF_A_RANK * ranks / len(os.sched_getaffinity(0)))


class Tuner:
    """One scale's run, on ranks of this machine.

    Args:
        limit: seconds without news after which a step counts as hung.
        report: receives every event (for progress bars), including those found here.
        entry: the function of a rank; tests put faults in front of it.
    """

    def __init__(
        self,
        plan: Plan,
        journal: Journal,
        progress: Progress,
        *,
        limit: float,
        report: Report = lambda _: None,
        entry: Callable[..., int] = worker.work,
    ) -> None:
        self.plan, self.journal, self.progress = plan, journal, progress
        self.limit, self.report, self.entry = limit, report, entry

    def run(self) -> Progress:
        """Measure everything that is not done. Raises BackendUnavailableError if the ranks cannot be started at all,
        and InvalidArgumentError if they differ from those of the interrupted run that goes on.
        """
        while any(unit.key not in self.progress.done for unit in self.plan.units):
            before = (len(self.progress.samples), len(self.progress.excluded), len(self.progress.apart))
            reason = self._once()
            if reason and any(unit.key not in self.progress.done for unit in self.plan.units):
                self._blame(reason)
                after = (len(self.progress.samples), len(self.progress.excluded), len(self.progress.apart))
                if after == before:
                    raise BackendUnavailableError(f"mcr-tune: no progress: {reason}")
        return self.progress

    def _once(self) -> str:
        """Start ranks and watch them until their end or failure; returns the failure, or an empty text."""
        self.progress.step = None
        with tempfile.TemporaryDirectory(prefix="mcr-tune-") as folder:
            log = Path(folder)
            args = (self.plan, self.progress, self.journal.path, self.limit)
            with run_local(self.entry, args, self.plan.ranks, log=log) as ranks:
                reason = self._watch(ranks)
            self._take_news()
            return reason and reason + self._last_words(log, ranks)

    def _watch(self, ranks: LocalRanks) -> str:
        last, heard = time.monotonic(), False
        while not ranks.wait(_LOOK_SECONDS):
            if self._take_news():
                last, heard = time.monotonic(), True
            patience = self.progress.patience(self.plan, self.limit)
            limit = patience if heard else max(patience, _start_seconds(self.plan.ranks))
            # Once a rank has failed, wait() ends the others.
            if ranks.first_failure is None and time.monotonic() - last > limit:
                return f"no progress for {limit:.0f} s"
        self._take_news()
        failure = ranks.first_failure
        if failure is None:
            return ""
        rank, code = failure
        return f"rank {rank} ended with " + (f"signal {-code}" if code < 0 else f"exit code {code}")

    def _take_news(self) -> bool:
        events = self.journal.news()
        for event in events:
            if event["event"] == "refused":
                raise InvalidArgumentError(event["reason"])
            self.report(dict(event))
            self.progress.take(event)
        return bool(events)

    @staticmethod
    def _last_words(log: Path, ranks: LocalRanks) -> str:
        """The last line with an error that the failed rank has written to stderr; without one, the last line."""
        if ranks.first_failure is None:
            return ""
        errors = log / f"{ranks.first_failure[0]}.err"
        lines = errors.read_text(errors="replace")[-_TAIL:].strip().splitlines() if errors.exists() else []
        begins = [line for line in lines if "Error: " in line]  # an error may have several lines
        return f": {(begins or lines)[-1].strip()}" if lines else ""

    def _blame(self, reason: str) -> None:
        """Exclude the candidate that was running; if several were, run them alone."""
        step = self.progress.step
        if step is None:
            raise BackendUnavailableError(f"the ranks did not start: {reason}; {self._who_starts()}")
        self.journal.add(**blamed(step, f"{reason} ({step['phase']}, {size_text(step['bytes'])} bytes)"))
        self._take_news()

    def _who_starts(self) -> str:
        """The backends that start alone."""
        said = []
        for name in self.plan.backends:
            with (
                tempfile.TemporaryDirectory(prefix="mcr-tune-") as folder,
                run_local(
                    worker.start_alone, (name, self.limit, self.plan.device), self.plan.ranks, log=Path(folder)
                ) as ranks,
            ):
                good = ranks.wait(_start_seconds(self.plan.ranks)) and ranks.first_failure is None
                said.append(f"{name} {'starts' if good else 'does not start'} alone")
        return ", ".join(said)


# ---- from the journal to the table


def _curves(progress: Progress, plan: Plan) -> list[Curve]:
    curves = []
    for unit in plan.units:
        types = dtype_class(unit.operation, unit.dtype)
        results = progress.results(unit)
        for label in dict.fromkeys(each["candidate"] for each in results):
            samples = [
                Sample(*(each[key] for key in ("bytes", "n", "min_us", "median_us", "p99_us")))
                for each in results
                if each["candidate"] == label
            ]
            candidate, codec = parts_of(label)
            curves.append(Curve(unit.operation, types, unit.dtype, candidate, tuple(samples), codec, unit.async_op))
    return curves


def _exclusion(operation: str, dtype: str, candidate: str, reason: str, *, async_op: bool = False) -> Exclusion:
    name, codec = parts_of(candidate)
    return Exclusion(operation, dtype, name, reason, codec, async_op)


def scale_of(plan: Plan, progress: Progress) -> Scale:
    """The measurements of a finished run."""
    scale = Scale(
        ranks=plan.ranks,
        nodes=progress.facts.get("nodes", 1),
        ranks_per_node=progress.facts.get("ranks_per_node", plan.ranks),
        device=plan.device,
        measured=now(),
        curves=tuple(_curves(progress, plan)),
        excluded=tuple(_exclusion(**each) for each in progress.excluded),
    )
    return replace(scale, winners=winners_of(scale))
