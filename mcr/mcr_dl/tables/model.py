# SPDX-License-Identifier: Apache-2.0
"""The tuning table as a value: dataclasses with the fields of ``tuning/schema.json``, converted to and from JSON."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.tables.host import Host, Software

FORMAT = "mcr-dl tuning table"
VERSION = 1


def label_of(candidate: str, codec: str) -> str:
    """A candidate with a codec as one name: ``gloo|bf16``; without a codec, the candidate."""
    return f"{candidate}|{codec}" if codec else candidate


def parts_of(label: str) -> tuple[str, str]:
    """Candidate and codec of a label; the codec is empty if it has none."""
    found = _C.CandidateName(label)
    return found.name, found.codec


class Subject(NamedTuple):
    """The calls for which curves are compared: an operation, a class of element types, and whether it returns before
    it is complete."""

    operation: str
    dtype_class: str
    async_op: bool = False

    def __str__(self) -> str:
        """``all_reduce, float, asynchronous``; the class is left out where it holds for all types."""
        types = "" if self.dtype_class == "any" else f", {self.dtype_class}"
        return f"{self.operation}{types}" + (", asynchronous" if self.async_op else "")


@dataclass(frozen=True)
class Sample:
    """Times of calls of one size, in microseconds, from ``n`` samples."""

    bytes: int
    n: int
    min_us: float
    median_us: float
    p99_us: float


@dataclass(frozen=True)
class Curve:
    """The samples of one candidate, by ascending size. ``dtype`` was measured to represent its class.

    ``codec`` is empty, or the codec that compressed the calls; ``bytes`` is the uncompressed size in either case.
    """

    operation: str
    dtype_class: str
    dtype: str
    candidate: str
    samples: tuple[Sample, ...]
    codec: str = ""
    async_op: bool = False

    @property
    def subject(self) -> Subject:
        """The calls that the curve holds for."""
        return Subject(self.operation, self.dtype_class, self.async_op)

    @property
    def label(self) -> str:
        """The curve's candidate: ``gloo``, ``gloo|bf16``."""
        return label_of(self.candidate, self.codec)

    @cached_property
    def medians(self) -> dict[int, float]:
        """Median time in microseconds by bytes."""
        return {sample.bytes: sample.median_us for sample in self.samples}


@dataclass(frozen=True)
class Range:
    """From ``start`` bytes on (``from`` in the file), up to the next range, this candidate wins."""

    start: int
    candidate: str


@dataclass(frozen=True)
class Winner:
    """The winners of an operation, by size. The first range starts at 0."""

    operation: str
    dtype_class: str
    ranges: tuple[Range, ...]
    async_op: bool = False

    @property
    def subject(self) -> Subject:
        """The calls that it holds for."""
        return Subject(self.operation, self.dtype_class, self.async_op)

    def at(self, nbytes: int) -> str:
        """The candidate for a call of that many bytes."""
        return self.ranges[bisect_right([each.start for each in self.ranges], nbytes) - 1].candidate


@dataclass(frozen=True)
class Exclusion:
    """A candidate that failed, and the reason; with a ``codec``, it failed only with that one."""

    operation: str
    dtype: str
    candidate: str
    reason: str
    codec: str = ""
    async_op: bool = False

    @property
    def label(self) -> str:
        """The excluded candidate: ``gloo``, ``gloo|bf16``."""
        return label_of(self.candidate, self.codec)

    @property
    def where(self) -> str:
        """The calls from which it is excluded: ``all_reduce (float32, asynchronous)``."""
        return f"{self.operation} ({self.dtype}{', asynchronous' if self.async_op else ''})"


@dataclass(frozen=True)
class Scale:
    """All measurements with one number and layout of ranks. ``measured`` is an ISO time in UTC.

    ``quick``: a job measured it in a few seconds when it started (mcr_dl.measure.start). ``trials``: times of calls
    that this did not cover, from jobs that tried the candidates while they ran; each holds for an octave of sizes.
    """

    ranks: int
    nodes: int
    ranks_per_node: int
    device: str
    measured: str
    curves: tuple[Curve, ...] = ()
    winners: tuple[Winner, ...] = ()
    excluded: tuple[Exclusion, ...] = ()
    quick: bool = False
    trials: tuple[Curve, ...] = ()

    @property
    def key(self) -> tuple[str, int, int, int]:
        """The key that identifies a scale; tables are sorted by it."""
        return self.device, self.ranks, self.nodes, self.ranks_per_node

    def time_of(self, sample: Sample) -> float:
        """The time that counts, in microseconds: the median; of the few quick samples the least."""
        return sample.min_us if self.quick else sample.median_us

    @property
    def candidates(self) -> set[str]:
        """The candidates that were measured or left out, without codecs."""
        measured = {each.candidate for each in self.curves if not each.codec}
        return measured | {each.candidate for each in self.excluded if not each.codec}

    @property
    def name(self) -> str:
        """A readable name: ``2 ranks``, ``4 ranks (2x2)`` on two nodes with two each, ``8 ranks, cuda``.

        ``3 ranks (2 nodes, up to 2 on each)`` if nodes have different numbers of ranks.
        """
        layout = ""
        if self.nodes * self.ranks_per_node != self.ranks:
            layout = f" ({self.nodes} nodes, up to {self.ranks_per_node} on each)"
        elif self.nodes > 1:
            layout = f" ({self.nodes}x{self.ranks_per_node})"
        return f"{self.ranks} ranks{layout}" + ("" if self.device == "cpu" else f", {self.device}")

    def curves_of(self, subject: Subject) -> list[Curve]:
        """The curves of the candidates for a subject, without codecs."""
        return [each for each in self.all_curves_of(subject) if not each.codec]

    def all_curves_of(self, subject: Subject) -> list[Curve]:
        """As ``curves_of``, including the curves of compressed calls."""
        return [each for each in self.curves if each.subject == subject]

    def winner_of(self, subject: Subject) -> Winner | None:
        """The winner of a subject; None if no candidate was measured."""
        return next((each for each in self.winners if each.subject == subject), None)


@dataclass(frozen=True)
class Table:
    """A tuning table. ``source`` and ``checksum`` belong to the file that it was read from, if it was."""

    created: str
    host: Host
    software: Software
    settings: Mapping[str, float | str | bool] = field(default_factory=dict)
    scales: tuple[Scale, ...] = ()
    source: str = field(default="", compare=False)
    checksum: str = field(default="", compare=False)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the content. It equals the file's checksum unless the file has been edited."""
        text = json.dumps(content(self), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def candidates(self) -> list[str]:
        """All candidates that have a curve or win anywhere, sorted."""
        measured = {curve.candidate for scale in self.scales for curve in scale.curves if not curve.codec}
        chosen = {each.candidate for scale in self.scales for winner in scale.winners for each in winner.ranges}
        return sorted(measured | chosen)

    @property
    def subjects(self) -> list[Subject]:
        """All that have a curve or a winner, in the op table's order."""
        found = {curve.subject for scale in self.scales for curve in scale.curves if not curve.codec}
        found |= {winner.subject for scale in self.scales for winner in scale.winners}
        order = {name: index for index, name in enumerate(_C.operations())}
        return sorted(found, key=lambda each: (order.get(each.operation, len(order)), each))

    def scale(self, ranks: int | None = None) -> Scale:
        """The largest scale with so many ranks (None: any). InvalidArgumentError lists the existing ones."""
        found = [each for each in self.scales if ranks in (None, each.ranks)]
        if not found:
            asked = "none at all" if ranks is None else f"ranks {ranks}"
            known = "; ".join(each.name for each in self.scales)
            text = f"expected one of the table's ({known})" if known else "expected a table with measurements"
            raise InvalidArgumentError(f"scale: {text}, got {asked}")
        return max(found, key=lambda each: (each.ranks, each.nodes))


# Values that are not written, so that tables keep the form from before these fields existed.
_ABSENT = (("codec", ""), ("quick", False), ("async_op", False), ("trials", ()))


def _plain(value: Any) -> Any:
    """Convert a dataclass, tuple or mapping to JSON's types. Times are floats, so that 4 and 4.0 are equal content."""
    if is_dataclass(value):
        names = (each.name for each in fields(value))
        pairs = [(name, getattr(value, name)) for name in names]
        written = [pair for pair in pairs if pair not in _ABSENT]
        return {_key(value, name): _plain(_number(name, each)) for name, each in written}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value


def _key(value: Any, name: str) -> str:
    return "from" if isinstance(value, Range) and name == "start" else name


def _number(name: str, value: Any) -> Any:
    return float(value) if name.endswith("_us") else value


def content(table: Table) -> dict[str, Any]:
    """The JSON document without its checksum."""
    document = {"format": FORMAT, "version": VERSION, **_plain(table)}
    return {key: value for key, value in document.items() if key not in ("source", "checksum")}


def _curve(row: dict[str, Any]) -> Curve:
    samples = tuple(
        Sample(int(each["bytes"]), int(each["n"]), *(float(each[key]) for key in ("min_us", "median_us", "p99_us")))
        for each in row["samples"]
    )
    return Curve(**{**row, "samples": samples})


def _winner(row: dict[str, Any]) -> Winner:
    return Winner(**{**row, "ranges": tuple(Range(int(each["from"]), each["candidate"]) for each in row["ranges"])})


def _scale(row: dict[str, Any]) -> Scale:
    numbers = {key: int(row[key]) for key in ("ranks", "nodes", "ranks_per_node")}
    return Scale(
        **numbers,
        device=row["device"],
        measured=row["measured"],
        curves=tuple(map(_curve, row["curves"])),
        winners=tuple(map(_winner, row["winners"])),
        excluded=tuple(Exclusion(**each) for each in row["excluded"]),
        quick=row.get("quick", False),
        trials=tuple(map(_curve, row.get("trials", ()))),
    )


def _named(each: Any) -> Any:
    return replace(each, candidate=_C.canonical(each.candidate))


def _spelt(scale: Scale) -> Scale:
    return replace(
        scale,
        curves=tuple(map(_named, scale.curves)),
        winners=tuple(replace(each, ranges=tuple(map(_named, each.ranges))) for each in scale.winners),
        excluded=tuple(map(_named, scale.excluded)),
        trials=tuple(map(_named, scale.trials)),
    )


def respelt(table: Table) -> Table:
    """The table with the canonical spelling of each candidate. It counts as edited only if it did before."""
    backends = {_C.canonical(name): text for name, text in table.software.backends.items()}
    software = replace(table.software, backends=backends)
    spelt = replace(table, software=software, scales=tuple(map(_spelt, table.scales)))
    if spelt == table or table.checksum != table.digest:
        return spelt
    return replace(spelt, checksum=spelt.digest)


def from_document(document: dict[str, Any], source: str) -> Table:
    """The table of a JSON document that the schema has accepted, with the canonical spelling of each candidate."""
    host = {**document["host"], "accelerators": tuple(document["host"]["accelerators"])}
    host.update({key: int(host[key]) for key in ("cores", "memory_gib")})
    table = Table(
        created=document["created"],
        host=Host(**host),
        software=Software(**document["software"]),
        settings=document["settings"],
        scales=tuple(map(_scale, document["scales"])),
        source=source,
        checksum=document["checksum"],
    )
    return respelt(table)
