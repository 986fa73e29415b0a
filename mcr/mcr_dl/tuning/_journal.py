# SPDX-License-Identifier: Apache-2.0
"""The journal of a tuning run: the plan, and the events so far.

Rank 0 appends a line before each step and after each result. So the file shows which step was running when the ranks
hung or died, and an interrupted run can continue.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mcr_dl.base import documents
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.tables import codecs

VISITS = 3  # to each size, with the others in between
_LONGEST = documents.MIB  # bytes of a line: the plan is the longest
_MOST, _LATEST = 1 << 62, 1e15  # limits of numbers and microseconds, as in tuning/schema.json


Key = tuple[str, str, bool]
"""Operation, element type, and whether its calls are asynchronous."""


@dataclass(frozen=True)
class Unit:
    """One operation with one element type, blocking or asynchronous, at some sizes in bytes."""

    operation: str
    dtype: str
    sizes: tuple[int, ...]
    async_op: bool = False

    @property
    def key(self) -> Key:
        """The key that identifies a unit."""
        return self.operation, self.dtype, self.async_op

    @property
    def where(self) -> dict[str, Any]:
        """The key, as events have it: blocking calls are not marked."""
        where: dict[str, Any] = {"operation": self.operation, "dtype": self.dtype}
        return {**where, "async_op": True} if self.async_op else where

    def __str__(self) -> str:
        return f"{self.operation} {self.dtype}" + (" asynchronous" if self.async_op else "")


@dataclass(frozen=True)
class Plan:
    """The measurements of one scale's run. ``budget_seconds`` is for all candidates at one size.

    A candidate with a codec counts as another candidate, named by its label (``gloo|bf16``).
    """

    ranks: int
    backends: tuple[str, ...]
    units: tuple[Unit, ...]
    budget_seconds: float
    confidence: float
    device: str = "cpu"
    codecs: tuple[str, ...] = ()

    def codecs_for(self, unit: Unit, nbytes: int) -> tuple[str, ...]:
        """The codecs that are measured on calls of a unit at one size."""
        able = unit.operation in codecs.OPERATIONS and unit.dtype == codecs.DTYPE and nbytes >= codecs.SMALLEST
        return self.codecs if able and not unit.async_op else ()

    @property
    def points(self) -> int:
        """The number of sizes over all units."""
        return sum(len(unit.sizes) for unit in self.units)


def _key(event: Mapping[str, Any]) -> Key:
    return event["operation"], event["dtype"], event.get("async_op", False)


def blamed(step: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """The event after a step whose ranks have hung or died: excludes its candidate; if there are several, each runs
    alone from then on.
    """
    where = {name: step[name] for name in ("operation", "dtype", "async_op") if name in step}
    if len(step["candidates"]) > 1:
        return {"event": "apart", **where}
    return {"event": "excluded", **where, "candidate": step["candidates"][0], "reason": reason}


@dataclass
class Progress:
    """The content of a journal: results, exclusions with reasons, finished steps, and the step that was running."""

    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    excluded: list[dict[str, Any]] = field(default_factory=list)
    done: set[Key] = field(default_factory=set)
    apart: set[Key] = field(default_factory=set)
    step: dict[str, Any] | None = None

    def take(self, event: dict[str, Any]) -> None:
        """Add one line of the journal."""
        kind = event.pop("event")
        if kind == "ready":
            self.facts = event
        elif kind == "step":
            self.step = event
        elif kind == "sample":
            self.samples.append(event)
        elif kind == "excluded":
            self.excluded.append(event)
        elif kind == "apart":
            self.apart.add(_key(event))
        elif kind == "done":
            self.done.add(_key(event))
        if kind not in ("ready", "step", "sample"):
            self.step = None

    def patience(self, plan: Plan, limit: float) -> float:
        """Seconds without news until the step that is running counts as hung; ``limit``: those of a call.

        Timing says nothing while it plans, which takes longer with slow calls, and while it uses its budget.
        """
        slow: float = (self.step or {}).get("seconds", 0.0)
        return limit + slow + plan.budget_seconds / VISITS

    def contradiction(self, facts: Mapping[str, Any], backends: Sequence[str]) -> str:
        """How the ranks differ from those that measured before, in an interrupted run; empty if they do not."""
        if not self.facts:
            return ""
        before, here = self.facts["libraries"], facts["libraries"]
        pairs = [(name, before[name], here[name]) for name in backends if name in before and name in here]
        pairs += [(key, self.facts[key], facts[key]) for key in _FIELDS["ready"] if key != "libraries"]
        for name, old, new in pairs:
            if old != new:
                what = "--resume: the interrupted run differs"
                return f"{what}: {name}: expected {old}, got {new}; run without --resume"
        return ""

    def out(self, unit: Unit) -> set[str]:
        """Candidates that are no longer tried on the unit's operation, in its form."""
        return {each["candidate"] for each in self.failures(unit)}

    def failures(self, unit: Unit) -> list[dict[str, Any]]:
        """The exclusions from the unit's operation, in its form."""
        operation, _, async_op = unit.key
        return [each for each in self.excluded if _key(each)[::2] == (operation, async_op)]

    def results(self, unit: Unit) -> list[dict[str, Any]]:
        """The samples of one unit without those of excluded candidates; for each size, the last ones."""
        gone = self.out(unit)
        found = {
            (each["candidate"], each["bytes"]): each
            for each in self.samples
            if _key(each) == unit.key and each["candidate"] not in gone
        }
        return [found[key] for key in sorted(found)]


_WHERE: dict[str, type] = {"operation": str, "dtype": str}
_WHO = {**_WHERE, "candidate": str}
# Fields that the readers of an event rely on, by kind. int: a count; float: microseconds; dict: of texts.
_FIELDS: dict[str, Mapping[str, type]] = {
    "ready": {
        "nodes": int,
        "ranks_per_node": int,
        "libraries": dict,
        "fingerprint": str,
        "mcr_dl": str,
        "torch": str,
        "python": str,
        "devices": int,
        "bound": bool,
    },
    "step": {**_WHERE, "phase": str, "bytes": int},
    "sample": {**_WHO, "bytes": int, "n": int, "min_us": float, "median_us": float, "p99_us": float},
    "excluded": {**_WHO, "reason": str},
    "apart": _WHERE,
    "done": _WHERE,
    "interrupted": {},
    "refused": {"reason": str},
}


def _is(kind: type, value: Any) -> bool:
    """Check JSON's types, within the limits of tables. A bool is not a number here, and 4.0 is not a count."""
    if kind is dict:
        return type(value) is dict and all(type(each) is str for each in value.values())
    if kind not in (int, float):
        return type(value) is kind
    return type(value) in (int, kind) and 0 <= value <= (_MOST if kind is int else _LATEST)


def _is_event(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("event"), str) or value["event"] not in _FIELDS:
        return False
    fields = _FIELDS[value["event"]]
    candidates = value.get("candidates", [])
    return (
        all(_is(kind, value.get(name)) for name, kind in fields.items())
        and isinstance(candidates, list)
        and all(isinstance(each, str) for each in candidates)
        and (value["event"] != "step" or bool(candidates))
        and (value["event"] != "excluded" or set(value) - {"async_op"} == {"event", *fields})
        and type(value.get("async_op", False)) is bool
    )


class Journal:
    """The file. Lines are JSON objects; the first is the plan."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._adding = threading.Lock()  # the threads of the watch and of signals add lines, too

    def take(self, *, create: bool) -> None:
        """Keep other runs from the journal for the life of this object; if it does not exist, ``create`` makes it.

        Raises InvalidArgumentError if another run has it; file systems without locks cannot tell.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(self.path, os.O_RDWR | (os.O_CREAT if create else 0), 0o666)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            message = f"{self.path}: another mcr-tune is measuring for this table and this number of ranks"
            raise InvalidArgumentError(message) from None
        except OSError:
            pass
        weakref.finalize(self, os.close, descriptor)

    def begin(self, plan: Plan) -> None:
        """Start a new journal."""
        self.path.write_text(json.dumps(asdict(plan)) + "\n")
        self._read = self.path.stat().st_size

    def resume(self, plan: Plan) -> Progress:
        """The progress of an interrupted run of the plan; InvalidArgumentError if there is none, or of another plan."""
        if not self.path.exists():
            raise InvalidArgumentError(f"--resume: no interrupted run is recorded in {self.path}")
        lines = self._lines()
        recorded = next(lines, {})
        if not isinstance(recorded, dict):
            raise InvalidArgumentError(f"--resume: {self.path}: expected the journal of mcr-tune, got something else")
        wanted = json.loads(json.dumps(asdict(plan)))
        for key, value in wanted.items():
            if recorded.get(key) != value:
                shown = "other ones" if key == "units" else recorded.get(key)
                message = f"--resume: the interrupted run was started with other settings: {key}: expected "
                raise InvalidArgumentError(message + f"{'the same' if key == 'units' else value}, got {shown}")
        progress = Progress()
        for event in lines:
            if not _is_event(event):
                message = f"--resume: {self.path}: expected the journal of mcr-tune, got {str(event)[:80]}"
                raise InvalidArgumentError(message)
            progress.take(event)
        return progress

    def add(self, event: str, **values: Any) -> None:
        """Append a line; it is in the file when this returns. Removes the partial line of a killed rank, if any."""
        with self._adding, self.path.open("rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
                file.seek(0, os.SEEK_END)
            file.write(json.dumps({"event": event, **values}).encode() + b"\n")

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Complete lines that have not been read yet; skips an incomplete line that a killed rank has left."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            while line := file.readline(_LONGEST + 1):
                if len(line) > _LONGEST:
                    message = (
                        f"{self.path}: expected lines of at most {_LONGEST} bytes, got more; start without --resume"
                    )
                    raise InvalidArgumentError(message)
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                try:
                    event = documents.parse(line, "", limit=_LONGEST)
                except InvalidArgumentError:
                    message = (
                        f"{self.path}: expected the journal of mcr-tune, got {line[:80]!r}; start without --resume"
                    )
                    raise InvalidArgumentError(message) from None
                yield event

    def news(self) -> list[dict[str, Any]]:
        """Events since the last call."""
        return list(self._lines())
