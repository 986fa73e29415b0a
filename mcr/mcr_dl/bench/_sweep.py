# SPDX-License-Identifier: Apache-2.0
"""The points of an operation, and measurements of all candidates at one, on all ranks together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcr_dl import _C
from mcr_dl.base.errors import UnsupportedError
from mcr_dl.bench.mix import Part
from mcr_dl.measure.cases import Case, Prepared, message_size
from mcr_dl.measure.ended_trials import end_trials
from mcr_dl.measure.timing import Sampling, Statistics, TorchControl


@dataclass(frozen=True)
class Settings:
    """The settings from the command line."""

    ops: tuple[str, ...]
    backends: tuple[str, ...]  # candidates, or "all"
    sizes: tuple[int, ...]
    dtype: str = "float32"
    red: str = "SUM"
    root: int = 0
    asynchronous: bool = False
    in_place: bool = False
    device: str = "cpu"
    budget_seconds: float = 0.5
    confidence: float = 0.025
    check: bool = True
    json: str | None = None
    plot: str | None = None
    mix: tuple[Part, ...] = ()

    def case(self, operation: str, nbytes: int) -> Case:
        """The case of one line."""
        return Case(operation, nbytes, self.dtype, self.red, self.root, self.asynchronous, self.in_place, self.device)


@dataclass(frozen=True)
class Row:
    """One candidate at one point. `nbytes` and `count` were actually moved, `wrong` counts elements on all ranks.

    `wrong` is None if they were not checked, `statistics` if the candidate cannot do this; `reason` says why.
    """

    case: Case
    candidate: str
    nbytes: int
    count: int
    statistics: Statistics | None = None
    wrong: int | None = None
    reason: str = ""


def points(settings: Settings, operation: str, ranks: int) -> list[int]:
    """The sizes in bytes, without duplicates, rounded up to sizes that the operation can move."""
    sizes = (message_size(operation, nbytes, settings.dtype, ranks)[1] for nbytes in settings.sizes)
    return list(dict.fromkeys(sizes))


def measure_point(
    case: Case, names: Sequence[str], group: _C.Group, control: TorchControl, settings: Settings
) -> list[Row]:
    """Check all candidates at one point, then time them side by side on the same memory. Collective."""
    prepared: dict[str, Prepared] = {}
    reasons: dict[str, str] = {}
    for name in names:
        try:
            shared = next(iter(prepared.values())).tensors if prepared else None
            prepared[name] = Prepared(case, name, group, shared)
        except UnsupportedError as error:
            reasons[name] = str(error)
    wrong = {name: int(sum(control.gathered(each.check()))) for name, each in prepared.items() if settings.check}
    if "auto" in prepared:
        end_trials(prepared["auto"], control)
    statistics = Sampling(prepared, control, settings.confidence).extend(settings.budget_seconds)
    count, nbytes = message_size(case.operation, case.nbytes, case.dtype, group.size())
    return [
        Row(case, name, nbytes, count, statistics.get(name), wrong.get(name), reasons.get(name, "")) for name in names
    ]
