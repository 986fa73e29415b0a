# SPDX-License-Identifier: Apache-2.0
"""Measures the candidates of a job that starts on a machine and scale without measurements.

All ranks measure the same points in the same order. Whatever decides (times, results, the end) is the largest value
over the ranks, so that all ranks decide alike.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from time import perf_counter

from mcr_dl import _C
from mcr_dl.base import launcher
from mcr_dl.base.operations import dtype_class, frequent, operation_of
from mcr_dl.measure import cases, shares
from mcr_dl.measure.cases import Case, Prepared
from mcr_dl.measure.shares import Kind
from mcr_dl.measure.timing import Sampling, Statistics, TorchControl
from mcr_dl.runtime import state
from mcr_dl.tables.choice import FLAT, Shape
from mcr_dl.tables.model import Curve, Exclusion, Sample, Scale
from mcr_dl.tables.table import now
from mcr_dl.tables.winners import winners_of

DTYPE = "float32"
_COARSE = (4, 4 << 10, 64 << 10, 1 << 20)
_ALWAYS = (0, 4, 1 << 20)  # blocking calls of all candidates, so that the curve of a slow one has a slope
_FINE = (256, 1 << 10, 16 << 10, 256 << 10)
_LARGE = (4 << 20, 16 << 20)
_POINT_SECONDS = 0.01
_POINT_SECONDS_LARGE = 0.03  # a call of 4 MiB takes 0.3 ms, and its times vary
_CONFIDENCE = 0.1
_ROUNDS = 3
_CALLS = 12  # of a candidate at a point, at least: for warming up, planning and _ROUNDS
_TRIALS = 3  # for planning the batches of small calls
_WARM_UP_CALLS = 20  # calls of a large exchange until a backend that tries several ways has compared them
_WARM_UP_SECONDS = 0.005  # of these calls; candidates that take longer are measured at once
_VISITS = 3  # to a point that was disturbed, or whose best candidates are close, while there is time
_CLOSE = 1.3  # the largest ratio of the times of the second and the fastest candidate that counts as close
_SUSPICIOUS = 1.1  # a call that takes so many times as long as a larger one was disturbed
_IMPLAUSIBLE = 2  # one that still takes so many times as long is left out
_JUMP = 4  # and so was one that takes so many times as long as its size and a smaller call let expect
_RESERVE = 0.15  # seconds for the last point and for what follows
_CUT = 64 << 10  # bytes: smaller calls are not cut, so a stripe does as its first part
_HOPELESS = 10  # a candidate that takes so many times as long as the best is measured no further
_HOPELESS_LARGE = 3  # and above 1 MiB, where the order of candidates changes little, and time is dear


_SIZE, _LEAST = attrgetter("bytes"), attrgetter("min_us")


def _close(best: Mapping[str, Statistics]) -> bool:
    """Whether two candidates may be the fastest."""
    first, *others = sorted(each.min_us for each in best.values())
    return bool(others) and others[0] <= _CLOSE * first


def candidates(group: _C.Group, operation: str) -> list[str]:
    """The candidates that ``auto`` compares for an operation, or has left out by earlier measurements, without fixed
    shares of a stripe: it computes its own.
    """
    found = group._explain(operation, 0, DTYPE, "SUM", "cpu")
    compared = {*found["candidates"], *found["excluded"]}
    return [
        name
        for name in cases.candidates(group)
        if name in compared and (shares.computes(name) or not shares.is_striped(name))
    ]


def _uses(candidate: str, others: set[str]) -> bool:
    """Whether a candidate is made of one of these: what hangs or crashes alone does so as a part."""
    return any(part in others or _uses(part, others) for part in _C.CandidateName(candidate).parts)


def all_candidates(group: _C.Group) -> set[str]:
    """The candidates of all operations that have several."""
    compared = (candidates(group, operation) for operation in _operations())
    return {name for names in compared if len(names) > 1 for name in names}


def _operations() -> list[str]:
    """The forms with equal counts; the frequent operations come first."""
    often = frequent()
    return [*often, *(row["name"] for row in _C.ops() if row["name"] in _C.operations() and row["name"] not in often)]


def _kind(operation: str, *, async_op: bool = False) -> Kind:
    """The calls whose candidates are compared."""
    return Kind(operation, DTYPE, "cpu", async_op)


def _points() -> Iterator[tuple[Kind, int]]:
    """Calls and sizes, the most important first: the budget may end before the last.

    Sends come before large calls, because `auto` never tries candidates for them: only two ranks of the group make one.
    """
    blocking, starting = ([_kind(name, async_op=async_op) for name in frequent()] for async_op in (False, True))
    sizeless = [_kind(name) for name in _operations() if operation_of(name).op == "barrier"]
    sends = [_kind(name) for name in _operations() if operation_of(name).peer]
    others = [kind for name in _operations() if (kind := _kind(name)) not in (*blocking, *sizeless, *sends)]
    vectored = [_kind(name) for name in _C.operations() if operation_of(name).vectored]
    for kinds, sizes in (
        (blocking, _COARSE),
        (blocking, _FINE),
        (sizeless, (0,)),
        (sends, _COARSE),
        (blocking, _LARGE),
        (others, _COARSE),
        (starting, _COARSE),
        (sends, _LARGE),
        (vectored, (*_COARSE, *_LARGE)),
        (starting, (*_FINE, *_LARGE)),
    ):
        yield from ((kind, size) for size in sizes for kind in kinds)


@dataclass
class _Results:
    """The samples of one kind of calls, by candidate, and the candidates that are left out, with the reasons."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)

    def expected(self, name: str, nbytes: int) -> float:
        """An estimate of the time of a call in seconds, from the nearest smaller size, or the smallest; 0 without."""
        samples = sorted(self.samples.get(name, []), key=_SIZE)
        if not samples:
            return 0.0
        nearest = max((each for each in samples if each.bytes <= nbytes), key=_SIZE, default=samples[0])
        return nearest.min_us * 1e-6 * max(1.0, nbytes / max(nearest.bytes, FLAT))

    def largest(self) -> int:
        """The largest size measured, in bytes."""
        return max((each.bytes for samples in self.samples.values() for each in samples), default=0)

    def most(self, name: str, nbytes: int) -> float:
        """The least time of a larger call in µs, which a smaller one should not exceed; infinite if there is none."""
        return min((each.min_us for each in self.samples.get(name, []) if each.bytes > nbytes), default=math.inf)


def _plausible(given: list[Sample]) -> list[Sample]:
    """The samples by size, without those that took much longer than a larger one: interpolation is better than these.

    Small sizes may be equal, as blocks have a whole element for each rank: the least time counts.
    """
    fastest: dict[int, Sample] = {}
    for each in sorted(given, key=_LEAST):
        fastest.setdefault(each.bytes, each)
    samples = sorted(fastest.values(), key=_SIZE)
    least = [min((each.min_us for each in samples[index + 1 :]), default=math.inf) for index in range(len(samples))]
    return [each for each, larger in zip(samples, least, strict=True) if each.min_us <= _IMPLAUSIBLE * larger]


def own_core() -> int | None:
    """A core for this rank alone, if its host has enough.

    By the nodes on which all ranks agree: some launchers, as torch.multiprocessing.spawn, tell no local rank.
    """
    current = state.current()
    rank = current.launch.rank
    here = current.knowledge.same_node(rank)
    return launcher.own_core(here.index(rank), len(here))


class Measurement:
    """A measurement of all candidates of a group, for ``seconds``. Collective.

    ``left_out_by`` names the scale whose exclusions the group has, if these hold: a candidate may have killed its ranks
    there.
    """

    def __init__(self, group: _C.Group, control: TorchControl, seconds: float, left_out_by: str = "") -> None:
        self._begin = perf_counter()
        self._group, self._control, self._seconds = group, control, seconds - _RESERVE
        self._shares = shares.Shares([group], control)
        self._core = own_core()
        kinds = dict.fromkeys(kind for kind, _ in _points())
        self._results = {kind: _Results(wrong=self._left_out(kind, left_out_by)) for kind in kinds}

    def run(self, shape: Shape) -> Scale:
        """Measure until all points are done or the time is over; the samples are equal on all ranks."""
        elapsed = 0.0
        for kind, nbytes in _points():
            found = self._results[kind]
            names = self._worthwhile(kind, nbytes)
            cost = sum(found.expected(name, nbytes) for name in names) * _CALLS
            if names and elapsed + cost < self._seconds:
                self._point(kind, nbytes, names)
                elapsed = self._elapsed()
            if elapsed > self._seconds:
                break
        return self._scale(shape)

    def _left_out(self, kind: Kind, scale: str) -> dict[str, str]:
        if not scale:
            return {}
        gone = set(self._group._explain(kind.operation, 0, DTYPE, "SUM", "cpu", kind.async_op)["excluded"])
        uses = [name for name in candidates(self._group, kind.operation) if _uses(name, gone)]
        return dict.fromkeys([*sorted(gone), *uses], f"left out for {scale}")

    def _elapsed(self) -> float:
        """Seconds since the beginning, equal on all ranks."""
        return self._control.maximum([perf_counter() - self._begin])[0]

    def _worthwhile(self, kind: Kind, nbytes: int) -> list[str]:
        """The candidates to measure: all, or without those that were far behind at a smaller size, or when blocking.

        Also if one is left: other sizes' choices and the predicted times of schedules need its curve, and without one
        the next start would measure again.
        """
        found = self._results[kind]
        names = [
            name
            for name in candidates(self._group, kind.operation)
            if name not in found.wrong and (nbytes >= _CUT or not shares.is_striped(name))
        ]
        if len(names) < (1 if found.wrong else 2):
            return []
        if not kind.async_op and nbytes in _ALWAYS:
            return names
        blocking = self._results.get(_kind(kind.operation), found)
        times = {name: found.expected(name, nbytes) or blocking.expected(name, nbytes) for name in names}
        best = min((time for time in times.values() if time > 0), default=0.0)
        limit = _HOPELESS_LARGE if nbytes in _LARGE else _HOPELESS
        return [name for name in names if times[name] <= limit * best]

    def _point(self, kind: Kind, nbytes: int, names: list[str]) -> None:
        found = self._results[kind]
        self._spread()
        case = Case(kind.operation, nbytes, DTYPE, asynchronous=kind.async_op)
        ready: dict[str, Prepared] = {}
        for name in names:
            shared = next(iter(ready.values())).tensors if ready else None
            one = Prepared(case, name, self._group, shared)
            if name in found.samples or self._right(one, found):
                ready[name] = one
        if nbytes > _CUT:
            self._warm_up(found, nbytes, ready)
        computed = {name: one for name, one in ready.items() if shares.computes(name)}
        others = {name: one for name, one in ready.items() if name not in computed}
        seconds = (_POINT_SECONDS_LARGE if nbytes in _LARGE else _POINT_SECONDS) / len(ready) if ready else 0.0
        self._time(found, nbytes, others, seconds * len(others))
        if computed:  # their shares follow from the times of the others
            self._give_shares(kind, found, computed)
            self._time(found, nbytes, computed, seconds * len(computed))

    def _give_shares(self, kind: Kind, found: _Results, computed: Mapping[str, Prepared]) -> None:
        times = {part: found.samples[part] for part in shares.parts_of(computed) if part in found.samples}
        points = {part: {each.bytes: each.min_us for each in samples} for part, samples in times.items()}
        self._shares.give(kind, points)

    def _time(self, found: _Results, nbytes: int, ready: dict[str, Prepared], seconds: float) -> None:
        if not ready:
            return
        trials = _TRIALS if nbytes <= FLAT else 1
        best: dict[str, Statistics] = {}
        for _ in range(_VISITS):
            taken = Sampling(ready, self._control, _CONFIDENCE, trials=trials).extend(seconds, _ROUNDS)
            best = {name: min(each, best.get(name, each), key=_LEAST) for name, each in taken.items()}
            disturbed = any(self._disturbed(found, name, nbytes, each.min_us) for name, each in best.items())
            if not disturbed and not (_CUT < nbytes < _LARGE[-1] and _close(best)):  # the largest take too long
                break
            if self._elapsed() > self._seconds:
                break
        for name, each in best.items():
            sample = Sample(ready[name].nbytes, each.n, each.min_us, each.median_us, each.p99_us)
            found.samples.setdefault(name, []).append(sample)

    def _warm_up(self, found: _Results, nbytes: int, ready: dict[str, Prepared]) -> None:
        """Make calls that are not measured; the times that decide are equal on all ranks."""
        for name, one in ready.items():
            if 0 < found.expected(name, nbytes) * _WARM_UP_CALLS < _WARM_UP_SECONDS:
                for _ in range(_WARM_UP_CALLS):
                    one.call()

    def _spread(self) -> None:
        """Move each rank to a core of its own. The scheduler may have put ranks that sleep in turn on one core, and
        leaves them there for a while. The thread may leave the core at once, as threads that start later inherit this.
        """
        if self._core is None:
            return
        allowed = os.sched_getaffinity(0)
        with contextlib.suppress(OSError):  # the system may forbid it
            os.sched_setaffinity(0, {self._core})
            os.sched_setaffinity(0, allowed)

    def _disturbed(self, found: _Results, name: str, nbytes: int, time: float) -> bool:
        """Whether the time in µs does not fit those of the candidate's other sizes."""
        below = found.expected(name, nbytes) * 1e6
        return time > _SUSPICIOUS * found.most(name, nbytes) or (0 < _JUMP * below < time)

    def _right(self, one: Prepared, found: _Results) -> bool:
        """Whether the results of a candidate's first call are right on all ranks."""
        wrong = int(self._control.maximum([float(one.check())])[0])
        if wrong:
            found.wrong[one.candidate] = f"{wrong} wrong elements at {one.nbytes} bytes"
        return not wrong

    def _scale(self, shape: Shape) -> Scale:
        curves, excluded = [], []
        for (operation, _, _, async_op), found in self._results.items():
            excluded += [
                Exclusion(operation, DTYPE, name, reason, async_op=async_op) for name, reason in found.wrong.items()
            ]
            types = dtype_class(operation, DTYPE)
            # Without curves of their own, these use those of blocking calls with equal counts; better than from a part.
            falls_back = async_op or operation_of(operation).vectored
            if falls_back and found.largest() < _COARSE[-1] / 2:
                continue
            for name, samples in found.samples.items():
                curves.append(Curve(operation, types, DTYPE, name, tuple(_plausible(samples)), async_op=async_op))
        scale = Scale(*shape, "cpu", now(), tuple(curves), excluded=tuple(excluded), quick=True)
        return replace(scale, winners=winners_of(scale))
