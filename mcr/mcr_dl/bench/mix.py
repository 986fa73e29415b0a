# SPDX-License-Identifier: Apache-2.0
"""Operations that run at once, each on its own candidate, to measure the gain of overlapping them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.base.operations import operations
from mcr_dl.commands.sizes import parse_size, size_text
from mcr_dl.libraries import registry
from mcr_dl.measure.cases import Case, Prepared
from mcr_dl.measure.ended_trials import end_trials
from mcr_dl.measure.timing import Sampling, Statistics, TorchControl


@dataclass(frozen=True)
class Part:
    """One of the operations of a mix; `nbytes` as in `Case`."""

    operation: str
    nbytes: int
    candidate: str

    def __str__(self) -> str:
        return f"{self.operation}:{size_text(self.nbytes)}@{self.candidate}"


@dataclass(frozen=True)
class MixResult:
    """Times of each part alone, of all in sequence, and of all at once; wrong elements on all ranks, or None."""

    parts: tuple[Part, ...]
    alone: tuple[Statistics, ...]
    in_turn: Statistics
    together: Statistics
    wrong: int | None

    @property
    def gain(self) -> float:
        """The speedup of all at once over all in sequence (medians)."""
        return self.in_turn.median_us / self.together.median_us


def _complain(text: str, place: int, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"mix: {what}, at character {place + 1}\n  {text}\n  {' ' * place}^")


def _parse_part(text: str, begin: int, end: int) -> Part:
    """The part between two positions of the whole text."""
    match = re.compile(
        r"\s*(?P<op>\w*)\s*(?P<colon>:?)(?P<size>[^@+]*)(?P<at>@?)\s*(?P<name>[\w:.-]*(\([\w:.,()-]*)?)\s*"
    ).match(text, begin, end)
    assert match is not None  # every group may be empty
    if match["op"] not in operations():
        what = f"expected one of {', '.join(operations())}, got {match['op']!r}"
        raise _complain(text, match.start("op"), what)
    if not match["colon"]:
        raise _complain(text, match.start("colon"), "expected ':' and a size")
    try:
        nbytes = parse_size(match["size"])
    except InvalidArgumentError as error:
        space = len(match["size"]) - len(match["size"].lstrip())
        raise _complain(text, match.start("size") + space, str(error)) from None
    if not match["at"]:
        raise _complain(text, match.start("at"), "expected '@' and a backend")
    if not match["name"] or match.end() != end:
        place = match.end() if match["name"] else match.start("name")
        raise _complain(text, place, "expected the name of a backend" if not match["name"] else "expected '+'")
    try:
        candidate = registry.require_candidate(match["name"], codec=False).name
    except InvalidArgumentError as error:
        raise _complain(text, match.start("name"), str(error)) from None
    return Part(match["op"], nbytes, candidate)


def parse_mix(text: str) -> tuple[Part, ...]:
    """The parts of "all_reduce:1M@gloo + all_to_all:256K@mpi".

    Raises InvalidArgumentError, whose text points at the unexpected character.
    """
    places = [-1, *(match.start() for match in re.finditer(r"\+", text)), len(text)]
    return tuple(_parse_part(text, begin + 1, end) for begin, end in pairwise(places))


class _Calls:
    """The calls that `Sampling` times. Ranks may leave them apart, so each batch begins with a barrier."""

    def __init__(
        self, call: Callable[[], object], meet: Callable[[], object], synchronize: Callable[[], object] | None
    ) -> None:
        self.call = call
        self.meet: Callable[[], object] | None = meet
        self.synchronize = synchronize
        self.messages = 1


def _at_once(prepared: Sequence[Prepared]) -> None:
    works = [work for each in prepared for work in each.start()]
    for work in works:
        work.wait()


def _in_turn(prepared: Sequence[Prepared]) -> None:
    for each in prepared:
        for work in each.start():
            work.wait()


def _wrong(prepared: Sequence[Prepared], control: TorchControl) -> int:
    for each in prepared:
        each.fill()
    _at_once(prepared)
    return int(sum(control.gathered(sum(each.wrong() for each in prepared))))


def run_mix(
    parts: Sequence[Part],
    like: Case,
    group: _C.Group,
    control: TorchControl,
    budget_seconds: float,
    confidence: float = 0.025,
    *,
    check: bool = True,
) -> MixResult:
    """Measure the parts alone, in sequence and at once, as asynchronous calls on separate tensors. Collective.

    `like` gives the parts' common settings: dtype, reduction, root, device. Raises as `Prepared` does.
    """
    prepared = [
        Prepared(replace(like, operation=part.operation, nbytes=part.nbytes, asynchronous=True), part.candidate, group)
        for part in parts
    ]
    wrong = _wrong(prepared, control) if check else None
    for each in prepared:
        if each.candidate == "auto":
            end_trials(each, control)
    calls: dict[str, Callable[[], object]] = {
        str(index): partial(_in_turn, [each]) for index, each in enumerate(prepared)
    }
    calls |= {"in turn": partial(_in_turn, prepared), "together": partial(_at_once, prepared)}
    meet = partial(_C.barrier, parts[0].candidate, group)
    timed = {name: _Calls(call, meet, prepared[0].synchronize) for name, call in calls.items()}
    result = Sampling(timed, control, confidence).extend(budget_seconds)
    alone = tuple(result[str(index)] for index in range(len(parts)))
    return MixResult(tuple(parts), alone, result["in turn"], result["together"], wrong)
