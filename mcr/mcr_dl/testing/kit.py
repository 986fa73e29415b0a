# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of the operations on one backend, operation by operation, and counts what came of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mcr_dl import _C
from mcr_dl.base import variables
from mcr_dl.base.errors import BackendUnavailableError, McrError
from mcr_dl.libraries import registry
from mcr_dl.testing import cases, checks, session
from mcr_dl.testing.calls import OPS, SIGNATURES, Case
from mcr_dl.testing.pool import Pool, RankFailure

__all__ = ["Failure", "Result", "Settings", "run", "selected"]

NATIVE, EMULATED, SKIPPED, FAILED = "native", "emulated", "skipped", "failed"
OUTCOMES = (NATIVE, EMULATED, SKIPPED, FAILED)
_BATCH = 100  # cases from one step of the progress to the next
_START_SECONDS = 90.0


@dataclass(frozen=True)
class Settings:
    """The cases to run. ``limit``: seconds in which the ranks must run each batch of cases."""

    backend: str  # a candidate
    ranks: int = 3
    ops: tuple[str, ...] = tuple(OPS)
    seed: int = 0  # selects the share
    everything: bool = False  # all cases instead of a share
    limit: float = 60.0

    @property
    def seeds(self) -> range:
        """The seeds whose shares run."""
        return range(self.seed, self.seed + (cases.SEEDS if self.everything else 1))


@dataclass
class Failure:
    """Failed cases: one with a wrong result, or a batch in which ranks raised, hung or died."""

    cases: Sequence[Case]
    text: str


@dataclass
class Result:
    """One operation: the number of cases for each of OUTCOMES, and what failed."""

    op: str
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    @property
    def checked(self) -> int:
        """The cases whose results were compared."""
        return self.counts[NATIVE] + self.counts[EMULATED]

    def fail(self, failed: Sequence[Case], text: str) -> None:
        """Count these cases as failed."""
        self.counts[FAILED] += len(failed)
        self.failures.append(Failure(failed, text))


def selected(settings: Settings, op: str) -> list[Case]:
    """The cases of one operation, each once, in the order of its functions; equal for equal settings."""
    found: dict[Case, None] = {}
    for function in (name for name, row in SIGNATURES.items() if row["op"] == op):
        for seed in settings.seeds:
            for dtype in _C.dtypes():
                share = cases.some(function, settings.backend, dtype, settings.ranks, seed, sparse=True)
                found.update(dict.fromkeys(share))
            found.update(dict.fromkeys(cases.some_large(function, settings.backend, settings.ranks, seed)))
    return list(found)


def run(settings: Settings, advance: Callable[[str, int], object] | None = None) -> Iterator[Result]:
    """Start the ranks and run the cases; yields the result of each operation when it is complete.

    ``advance`` gets the operation and the number of cases that have ended. Raises BackendUnavailableError if the ranks
    cannot start the backend. Wrong results leave the ranks in step. Ranks that raise anything else, hang or die end
    their operation: the cases of the batch count as failed, later ones as skipped; new ranks run the next operation.
    """
    with _Ranks(settings) as ranks:
        for op in settings.ops:
            result, waiting = Result(op), selected(settings, op)
            for start in range(0, len(waiting), _BATCH):
                batch = waiting[start : start + _BATCH]
                if ranks.ended_in == op:
                    result.counts[SKIPPED] += len(batch)
                else:
                    ranks.run(batch, result)
                if advance is not None:
                    advance(op, len(batch))
            yield result


class _Ranks:
    """The ranks, replaced by new ones after each failure that ends them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pool: Pool | None = None
        self.ended_in = ""  # the operation in which a failure ended them

    def __enter__(self) -> _Ranks:
        self._living()
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None and self.pool.alive:
            self.pool.close()

    def _living(self) -> Pool:
        if self.pool is None or not self.pool.alive:
            try:
                self.pool = Pool(self.settings.ranks)
                problems = self.pool.run(start, self.settings.backend, limit=_START_SECONDS)
            except RankFailure as failure:
                message = f"backend {self.settings.backend!r} does not start: {failure}"
                raise BackendUnavailableError(message) from None
            for rank, problem in enumerate(problems):
                if problem:
                    self.pool.close()
                    message = f"backend {self.settings.backend!r} does not start on rank {rank}: {problem}"
                    raise BackendUnavailableError(message)
        return self.pool

    def run(self, batch: Sequence[Case], result: Result) -> None:
        """Run the cases and count them."""
        try:
            answers = self._living().run(run_batch, batch, limit=self.settings.limit)
        except RankFailure as failure:
            result.fail(batch, str(failure))
            self.ended_in = result.op
            return
        for case, *told in zip(batch, *answers, strict=True):
            wrong = {rank: text for rank, text in enumerate(told) if text not in OUTCOMES}
            if wrong:
                result.fail([case], "\n".join(f"rank {rank}: {text}" for rank, text in wrong.items()))
            elif len(set(told)) > 1:
                got = ", ".join(f"{text} on rank {rank}" for rank, text in enumerate(told))
                result.fail([case], f"{case}: expected equal support on all ranks, got {got}")
            else:
                result.counts[told[0]] += 1


# ---- on the ranks


def start(backend: str) -> str:
    """Start the backend on this rank, with the groups of the cases; returns the problem if it does not work."""
    variables.leave_out_passes()
    try:
        session.start(*registry.with_parts([backend]))
        session.groups()
    except McrError as error:
        return str(error)
    return ""


def run_batch(batch: Sequence[Case]) -> list[str]:
    """The outcome of each case on this rank: one of OUTCOMES, or the text of a wrong result."""
    return [_outcome(case) for case in batch]


def _outcome(case: Case) -> str:
    try:
        ran = checks.run(case)
    except AssertionError as error:
        return re.sub(r"\s+", " ", str(error))
    return (NATIVE if checks.support(case, vectored=case.vectored) == NATIVE else EMULATED) if ran else SKIPPED
