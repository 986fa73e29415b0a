# SPDX-License-Identifier: Apache-2.0
"""The knowledge behind ``auto``: one table and one set of rules for all ranks, and the part that a group needs.

Rank 0's table and rules apply to all ranks. It turns times into whole numbers and sends these to all ranks, so that no
rank computes a logarithm itself: equal numbers give equal choices (src/choose/curve.cc).
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from mcr_dl import _C
from mcr_dl.base import blocks, documents, launcher
from mcr_dl.base.agreement import require_equal
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError
from mcr_dl.tables import rules
from mcr_dl.tables import table as files
from mcr_dl.tables.host import host, software
from mcr_dl.tables.model import Scale, Table
from mcr_dl.tables.table import LARGEST, default_path
from mcr_dl.tables.winners import cost_of

VARIABLE = "MCR_DL_TUNING_TABLE"
SECONDS = 3.0
"""How long a job may measure when it starts without measurements of its scale."""
FLAT = 16 << 10
"""Times hardly depend on smaller sizes, in bytes."""
_log = logging.getLogger("mcr_dl")


class Shape(NamedTuple):
    """The number of ranks and nodes, and the largest number of ranks on one node."""

    ranks: int
    nodes: int
    ranks_per_node: int

    @classmethod
    def of(cls, scale: Mapping[str, Any]) -> Shape:
        """The shape with which a scale was measured."""
        return cls(*(scale[name] for name in cls._fields))

    def __str__(self) -> str:
        where = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        return f"{self.ranks} rank{'s' * (self.ranks > 1)} on {where}"

    def unlike(self, scale: Mapping[str, Any]) -> str:
        """The shape, with what tells it from that of a scale."""
        alike = self[:2] == Shape.of(scale)[:2]
        return f"{self}, up to {self.ranks_per_node} on each" if alike else str(self)


@dataclass(frozen=True)
class Knowledge:
    """The agreed table and rules, equal on all ranks.

    ``nodes`` has each global rank's node number, ``crowded`` whether that node has more ranks than cores for them.
    ``seconds``: how long the ranks may measure a scale that has no measurements; 0: not at all.
    """

    source: str
    nodes: list[int]
    crowded: list[bool]
    scales: list[dict[str, Any]] = field(default_factory=list)
    rules: list[rules.Rule] = field(default_factory=list)
    rules_text: str = ""
    seconds: float = 0.0

    def measured(self, shape: Shape, candidates: set[str]) -> bool:
        """Whether the table has host measurements of this shape: those of mcr-tune, or quick ones of all candidates."""
        return any(not each["quick"] or candidates <= set(each["candidates"]) for each in self._of(shape))

    def quick(self, shape: Shape) -> bool:
        """Whether all host measurements of this shape are those of a first start."""
        return all(each["quick"] for each in self._of(shape))

    def measures(self, shape: Shape) -> bool:
        """Whether the job measures this shape, which the table lacks, as it starts: that of all ranks."""
        return self.seconds > 0 and shape == self.shape([*range(len(self.nodes))])

    def _of(self, shape: Shape) -> list[dict[str, Any]]:
        return [each for each in self.scales if each["device"] == "cpu" and shape == Shape.of(each)]

    def of_mcr_tune(self) -> Knowledge:
        """This knowledge with the scales of mcr-tune alone.

        Candidates that these leave out may kill their ranks. Those that only first starts have left out gave wrong
        values, which the next start can check.
        """
        return replace(self, scales=[each for each in self.scales if not each["quick"]])

    def text_of(self, shape: Shape) -> str:
        """The shape, with what tells it from those of the host's scales."""
        others = [each for each in self.scales if each["device"] == "cpu" and shape != Shape.of(each)]
        return max((shape.unlike(each) for each in others), key=len, default=str(shape))

    def with_scale(self, scale: dict[str, Any], source: str) -> Knowledge:
        """This knowledge with a measured scale, in place of an older one of its shape."""
        same = scale["device"], Shape.of(scale)
        kept = [each for each in self.scales if (each["device"], Shape.of(each)) != same]
        return replace(self, scales=[*kept, scale], source=self.source or source)

    def same_node(self, rank: int) -> list[int]:
        """The ranks on the node of a global rank, in order."""
        return [other for other, node in enumerate(self.nodes) if node == self.nodes[rank]]

    def shape(self, ranks: list[int]) -> Shape:
        """The shape of a group of global ranks."""
        nodes = Counter(self.nodes[rank] for rank in ranks)
        return Shape(len(ranks), len(nodes), max(nodes.values()))

    def scale_for(self, shape: Shape, device: str) -> dict[str, Any] | None:
        """The measurements of that shape, or of the nearest by the ratios of ranks, nodes and ranks per node.

        Ranks of one node never use those of several nodes: their calls do not use the network, and backends that serve
        one host alone were not measured there.
        """

        def distance(scale: dict[str, Any]) -> tuple[int, int]:
            pairs = zip(shape, Shape.of(scale), strict=True)
            return sum(max(a, b) * 1000 // min(a, b) for a, b in pairs), scale["ranks"]

        scales = [each for each in self.scales if each["device"] == device and (shape.nodes > 1 or each["nodes"] == 1)]
        return min(scales, key=distance, default=None)


# ---- before the ranks agree: this rank's facts


def named_table(argument: str | os.PathLike[str] | None) -> str:
    """The path that ``tuning_table`` or else the environment names; "none" for no table, "" if nothing is named.

    Raises InvalidTypeError for an argument that is no path.
    """
    if argument is None:
        return os.environ.get(VARIABLE, "")
    name: object = os.fspath(argument) if isinstance(argument, (str, os.PathLike)) else argument
    if not isinstance(name, str):
        message = f"tuning_table: expected a path, 'none' or None, got {argument!r}"
        raise InvalidTypeError(message)
    return name


def _own_file(argument: str | os.PathLike[str] | None) -> Path | None:
    """The file that this rank would use: the named one, else the one in the cache, if it exists."""
    named = named_table(argument)
    if named == "none":
        return None
    if named:
        return Path(named)
    path = default_path(host())
    return path if os.path.exists(path) else None  # Path.exists raises if a folder may not be searched


def require_named() -> None:
    """Raise InvalidArgumentError if the environment names a table that cannot be read; on rank 0, which reads it."""
    if launcher.detect().rank == 0 and named_table(None) not in ("", "none"):
        files.read(Path(named_table(None)))


def _digest(path: Path) -> str | None:
    """None for an unreadable file: only rank 0's counts, and rank 0 reports its errors to all ranks."""
    try:
        return hashlib.sha256(documents.read_bytes(path, "", limit=LARGEST)).hexdigest()
    except InvalidArgumentError:
        return None


def facts(libraries: dict[str, str], argument: str | os.PathLike[str] | None) -> dict[str, Any]:
    """This rank's facts for rank 0: its libraries, its node and cores, and a hash of its table and of its rules."""
    path = _own_file(argument)
    return {
        "libraries": libraries,
        "node": launcher.machine(),
        "cores": launcher.cores(),
        "table": None if path is None else _digest(path),
        "rules": os.environ.get(rules.VARIABLE, ""),
    }


def _load(argument: str | os.PathLike[str] | None, libraries: dict[str, str]) -> Table | None:
    """Rank 0's table. A broken table is an error if it was named, and a warning if it was found in the cache."""
    path = _own_file(argument)
    if path is None:
        return None
    try:
        table = files.read(path)
    except InvalidArgumentError as error:
        if named_table(argument):
            raise
        _log.warning("%s; going on without a tuning table", error)
        return None
    running = software(libraries)
    if not named_table(argument) and files.outdated(table, host(), running):
        table = replace(table, scales=tuple(each for each in table.scales if not each.quick))
        if not table.scales:
            return None  # it will be measured again
    for problem in files.check(table, host(), running):
        _log.warning("%s", problem)
    return table


# ---- rank 0 decides


def _with_flat_part(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The points of a curve, with one more if it ends at a small size: larger calls take as long up to FLAT."""
    last = max(points, default=(0, 0))
    return [*points, (FLAT, last[1])] if 0 < last[0] < FLAT else points


def costs_of(scale: Scale) -> dict[str, Any]:
    """A scale in the form of ``Knowledge``, in JSON's types."""
    known = _C.operations()
    curves: dict[str, list[list[Any]]] = {"curves": [], "asynchronous": [], "codecs": []}
    for curve in scale.curves:
        if curve.operation in known:
            whose = [curve.operation, curve.dtype_class, curve.candidate, *([curve.codec] if curve.codec else ())]
            points = _with_flat_part([(s.bytes, cost_of(scale.time_of(s))) for s in curve.samples])
            kind = "codecs" if curve.codec else "asynchronous" if curve.async_op else "curves"
            curves[kind].append([*whose, points])
    trials = [
        [curve.operation, curve.async_op, curve.dtype, curve.candidate, sample.bytes, cost_of(sample.median_us)]
        for curve in scale.trials
        for sample in curve.samples
        if curve.operation in known
    ]
    excluded = [
        [each.operation, each.async_op, each.candidate]
        for each in scale.excluded
        if each.operation in known and not each.codec
    ]
    return {
        "ranks": scale.ranks,
        "nodes": scale.nodes,
        "ranks_per_node": scale.ranks_per_node,
        "device": scale.device,
        "name": scale.name,
        "quick": scale.quick,
        "candidates": sorted(scale.candidates),
        "trials": trials,
        "excluded": excluded,
        **curves,
    }


def _say_who_differs(values: list[dict[str, Any]], key: str, what: str) -> None:
    differing = [rank for rank, value in enumerate(values) if value[key] != values[0][key]]
    if differing:
        shown = ", ".join(map(str, differing[:8])) + (", ..." if len(differing) > 8 else "")
        _log.warning("%s: ranks %s have others than rank 0, or none; all ranks use rank 0's", what, shown)


def decider(
    argument: str | os.PathLike[str] | None, backends: list[str]
) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
    """The function with which rank 0 decides on all ranks' facts: an error, or the knowledge for all."""

    def decide(values: list[dict[str, Any]]) -> dict[str, Any]:
        require_equal("backend", [value["libraries"] for value in values])
        require_equal("MCR_DL_DEBUG", [value["debug"] for value in values])
        hosts = [value["node"] for value in values]
        text = values[0]["rules"]
        rules.parse(text, backends)  # raises here, for all ranks
        table = _load(argument, values[0]["libraries"])
        _say_who_differs(values, "table", "tuning table")
        _say_who_differs(values, "rules", rules.VARIABLE)
        return {
            "source": "" if table is None else table.source,
            "nodes": blocks.pack(blocks.numbered(hosts)),
            "crowded": blocks.pack(launcher.crowded(hosts, [value["cores"] for value in values])),
            "scales": [] if table is None else [costs_of(scale) for scale in table.scales],
            "rules_text": text,
            "seconds": 0.0 if named_table(argument) else SECONDS,
        }

    return decide


def knowledge_of(answer: dict[str, Any], backends: list[str] | None) -> Knowledge:
    """The agreed answer as a value; equal on all ranks. ``backends``: those that rules may name, or None for any."""
    nodes, crowded = blocks.unpack(answer["nodes"]), [bool(each) for each in blocks.unpack(answer["crowded"])]
    parsed = rules.parse(answer["rules_text"], backends)
    return Knowledge(**{**answer, "nodes": nodes, "crowded": crowded}, rules=parsed)


def answer_of(knowledge: Knowledge) -> dict[str, Any]:
    """The knowledge as such an answer."""
    told = {each.name: getattr(knowledge, each.name) for each in fields(knowledge) if each.name != "rules"}
    return {**told, "nodes": blocks.pack(knowledge.nodes), "crowded": blocks.pack(knowledge.crowded)}


# ---- groups


def common_candidates(values: list[list[str]]) -> list[str]:
    """The candidates of all ranks. Variants may differ: a host with more ranks than cores has none of ``mpi``."""
    return [name for name in values[0] if all(name in value for value in values)]


def keep_candidates(group: _C.Group, common: list[str]) -> None:
    """Remove the variants that some rank lacks from a group."""
    for name in set(group.candidates) - set(group.backends) - set(common):
        group._disconnect(name)


def check_rules(knowledge: Knowledge, group: _C.Group) -> None:
    """Raise InvalidArgumentError for a rule whose variant the default group does not have."""
    for rule in knowledge.rules:
        if not group._has(rule.candidate):
            expected = f"a candidate ({', '.join(group.candidates)})"
            raise rules.wrong(knowledge.rules_text, rule.place, expected, rule.candidate, group.candidates)


def tune(group: _C.Group, knowledge: Knowledge, *, derived: bool = False) -> None:
    """Give a group its part of the agreed knowledge.

    ``derived``: the group is a dimension of another one, whose scale says enough: no warning that its own is missing.
    """
    if len(group.candidates) < 2:
        return
    shape = knowledge.shape(group.ranks)
    costs, trials, excluded, exact = [], [], [], True
    for device in ("cpu", "cuda") if shape.ranks > 1 else ():  # a single rank has no choice to make
        scale = knowledge.scale_for(shape, device)
        if scale is None:
            continue
        costs += [
            (operation, async_op, device, types, candidate, points)
            for async_op, kind in ((False, "curves"), (True, "asynchronous"))
            for operation, types, candidate, points in scale[kind]
        ]
        excluded += [(operation, async_op, device, candidate) for operation, async_op, candidate in scale["excluded"]]
        if shape != Shape.of(scale):
            if not derived and not (device == "cpu" and knowledge.measures(shape)):
                _say_nearest(shape, scale, group.rank())
            exact = exact and device != "cpu"  # only host tensors are tried
        elif device == "cpu":
            trials = scale["trials"]
    given = [(rule.operation, rule.start, rule.end, rule.candidate) for rule in knowledge.rules]
    group._tune(costs, exact, given, trials, excluded)


_said: set[tuple[Shape, str]] = set()


def _say_nearest(shape: Shape, scale: dict[str, Any], rank: int) -> None:
    if rank == 0 and (shape, scale["name"]) not in _said:
        _said.add((shape, scale["name"]))
        level = logging.INFO if scale["quick"] else logging.WARNING
        _log.log(level, "tuning table: no measurements for %s; using those for %s", shape.unlike(scale), scale["name"])
