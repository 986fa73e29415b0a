# SPDX-License-Identifier: Apache-2.0
"""A training iteration as a graph of computation and calls, with the channels that the calls may use; its JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcr_dl import _C
from mcr_dl.base import documents
from mcr_dl.base.errors import InvalidArgumentError

FORMAT, VERSION = "mcr-dl graph", 1
LARGEST = 64 * documents.MIB
BACK = "@-1"  # behind the key of a node: of the previous iteration
MOST_OPTIONS = 256
_LONGEST = 1 << 40  # ns: 18 minutes
_MOST, _MOST_RANKS = 1 << 50, 1 << 20
_MOST_INCAST = 1 << 20


@dataclass(frozen=True)
class Channel:
    """A candidate that works on its own. Channels that share a resource never work at the same time.

    ``incast``: thousandths by which a motif takes longer for each rank beyond the first that sends to one rank.
    """

    name: str
    resources: tuple[str, ...]
    incast: int = 0


@dataclass(frozen=True)
class Piece:
    """A motif with its channel and time in ns. ``after``: pieces of the same option, all of them earlier."""

    channel: str
    time: int
    after: tuple[int, ...] = ()
    what: str = ""


@dataclass(frozen=True)
class Option:
    """One way to do a call."""

    name: str
    pieces: tuple[Piece, ...]

    @property
    def form(self) -> str:
        """The name without the channels: "whole", "segment 2", ..."""
        return self.name.split(" on ")[0]


@dataclass(frozen=True)
class Call:
    """The operation of a captured call. ``count``: elements of the tensor, or of each rank's block."""

    op: str
    count: int
    dtype: str
    ranks: int
    root: int = 0


@dataclass(frozen=True)
class Node:
    """A computation of ``time`` ns on a thread or stream (``lane``), or a call, which has ``options`` or is a ``call``.

    ``after``: keys of nodes that must end before it, earlier ones or, with ``@-1`` behind them, of the previous
    iteration.
    """

    key: str
    after: tuple[str, ...] = ()
    time: int | None = None
    lane: str = "compute"
    options: tuple[Option, ...] = ()
    call: Call | None = None


@dataclass(frozen=True)
class Graph:
    """One iteration, in program order."""

    channels: tuple[Channel, ...]
    nodes: tuple[Node, ...]
    costs: tuple[dict[str, Any], ...] = field(default=())  # arguments of CostModel.add_cost, with the channel's name

    @property
    def calls(self) -> list[Node]:
        """The nodes that a plan decides on."""
        return [node for node in self.nodes if node.time is None]

    def model(self) -> _C.CostModel:
        """The costs of calls on the channels."""
        model = _C.CostModel()
        for cost in self.costs:
            points = [(nbytes, time) for nbytes, time in cost.get("points", [])]
            numbers = {name: cost[name] for name in ("alpha", "per_mib") if name in cost}
            model.add_cost("issue", cost["channel"], cost["op"], points=points, **numbers)
        return model

    def document(self) -> dict[str, Any]:
        """The graph in JSON's types."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "channels": [vars(channel) for channel in self.channels],
            "costs": list(self.costs),
            "nodes": [_node_document(node) for node in self.nodes],
        }

    def hash(self) -> str:
        """SHA-256 of the document, by which a plan names its graph."""
        return documents.hash_of(self.document())


def _node_document(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = {"key": node.key, "after": list(node.after)}
    if node.time is not None:
        return {**found, "time": node.time, "lane": node.lane}
    if node.call is not None:
        return {**found, "call": vars(node.call)}
    options = [{"name": each.name, "pieces": [vars(piece) for piece in each.pieces]} for each in node.options]
    return {**found, "options": options}


# ---- reading


def fields_of(value: Any, where: str, required: Mapping[str, type], optional: Mapping[str, type]) -> dict[str, Any]:
    """The fields of an object. Raises ValueError, naming the first one that is missing, unknown or of another type."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, got a {type(value).__name__}")
    for name in required:
        if name not in value:
            raise ValueError(f"{where}: expected the field {name!r}, got none")
    known = {**required, **optional}
    for name, each in value.items():
        if name not in known:
            raise ValueError(f"{where}: expected fields among {', '.join(known)}, got {name[:40]!r}")
        if type(each) is not known[name]:
            raise ValueError(f"{where}.{name}: expected a {known[name].__name__}, got a {type(each).__name__}")
    return dict(value)


def _texts(values: Sequence[Any], where: str) -> tuple[str, ...]:
    if not all(isinstance(each, str) for each in values):
        raise ValueError(f"{where}: expected strings")
    return tuple(values)


def _channel(value: Any, where: str) -> Channel:
    found = fields_of(value, where, {"name": str, "resources": list}, {"incast": int})
    if not 0 <= found.get("incast", 0) <= _MOST_INCAST:
        raise ValueError(f"{where}.incast: expected 0 to {_MOST_INCAST}, got {str(found['incast'])[:40]}")
    return Channel(found["name"], _texts(found["resources"], where), found.get("incast", 0))


def _piece(value: Any, where: str, place: int) -> Piece:
    found = fields_of(value, where, {"channel": str, "time": int}, {"after": list, "what": str})
    after = found.get("after", [])
    if not all(type(each) is int and 0 <= each < place for each in after):
        raise ValueError(f"{where}.after: expected the numbers of earlier pieces")
    if not 0 < found["time"] <= _LONGEST:
        raise ValueError(f"{where}.time: expected 1 to {_LONGEST} ns, got {str(found['time'])[:40]}")
    return Piece(found["channel"], found["time"], tuple(after), found.get("what", ""))


def _option(value: Any, where: str) -> Option:
    found = fields_of(value, where, {"name": str, "pieces": list}, {})
    return Option(
        found["name"], tuple(_piece(each, f"{where}.pieces", index) for index, each in enumerate(found["pieces"]))
    )


def _node(value: Any, where: str) -> Node:
    optional = {"after": list, "time": int, "lane": str, "options": list, "call": dict}
    found = fields_of(value, where, {"key": str}, optional)
    where = f"{where} ({found['key'][:40]!r})"
    if sum(name in found for name in ("time", "options", "call")) != 1:
        raise ValueError(f"{where}: expected one of time, options and call")
    options = tuple(_option(each, f"{where}.options") for each in found.get("options", []))
    call = None
    if "call" in found:
        numbers = {"count": int, "ranks": int}
        call = Call(**fields_of(found["call"], f"{where}.call", {"op": str, **numbers, "dtype": str}, {"root": int}))
        if call.dtype not in _C.dtypes():
            raise ValueError(f"{where}.call.dtype: expected one of {', '.join(_C.dtypes())}, got {call.dtype[:40]!r}")
        for name, number, least, most in (("count", call.count, 0, _MOST), ("ranks", call.ranks, 1, _MOST_RANKS)):
            if not least <= number <= most:
                raise ValueError(f"{where}.call.{name}: expected {least} to {most}, got {str(number)[:40]}")
        if call.count * call.ranks > _MOST:
            raise ValueError(f"{where}.call: expected at most {_MOST} elements of all ranks, got {call.count} of each")
    after = _texts(found.get("after", []), f"{where}.after")
    if not 0 <= found.get("time", 0) <= _LONGEST:
        raise ValueError(f"{where}.time: expected 0 to {_LONGEST} ns, got {str(found['time'])[:40]}")
    return Node(found["key"], after, found.get("time"), found.get("lane", "compute"), options, call)


def _cost(value: Any, where: str) -> dict[str, Any]:
    found = fields_of(value, where, {"channel": str, "op": str}, {"alpha": int, "per_mib": int, "points": list})
    for point in found.get("points", []):
        if not isinstance(point, list) or [type(each) for each in point] != [int, int]:
            raise ValueError(f"{where}.points: expected pairs of bytes and ns")
    numbers = [each for point in found.get("points", []) for each in point]
    for number in (*numbers, found.get("alpha", 0), found.get("per_mib", 0)):
        if not 0 <= number <= _MOST:
            raise ValueError(f"{where}: expected numbers from 0 to {_MOST}, got {str(number)[:40]}")
    return found


def of_document(document: Any) -> Graph:
    """The graph of a JSON document. Raises ValueError, naming the place of the first error."""
    known = {"channels": list, "nodes": list, "format": str, "version": int}
    found = fields_of(document, "graph", known, {"costs": list})
    if (found["format"], found["version"]) != (FORMAT, VERSION):
        raise ValueError(f"expected {FORMAT!r} of version {VERSION}, got {found['format'][:40]!r} {found['version']}")
    graph = Graph(
        tuple(_channel(each, f"channels[{index}]") for index, each in enumerate(found["channels"])),
        tuple(_node(each, f"nodes[{index}]") for index, each in enumerate(found["nodes"])),
        tuple(_cost(each, f"costs[{index}]") for index, each in enumerate(found.get("costs", []))),
    )
    _check_names(graph)
    return graph


def _check_names(graph: Graph) -> None:
    channels = {channel.name for channel in graph.channels}
    if len(channels) != len(graph.channels) or not channels:
        raise ValueError("channels: expected at least one, and different names")
    earlier: set[str] = set()
    keys = {node.key for node in graph.nodes}
    for node in graph.nodes:
        if node.key in earlier or BACK in node.key:
            raise ValueError(f"nodes: expected each key once, without {BACK}, got {node.key[:40]!r}")
        for before in node.after:
            if before not in earlier and not (before.endswith(BACK) and before.removesuffix(BACK) in keys):
                message = f"expected the key of an earlier node, or of any with {BACK} behind it"
                raise ValueError(f"{node.key[:40]!r}.after: {message}, got {before[:40]!r}")
        used = {piece.channel for option in node.options for piece in option.pieces}
        if unknown := used - channels:
            raise ValueError(f"{node.key[:40]!r}: expected channels of the graph, got {sorted(unknown)[0][:40]!r}")
        if len({option.name for option in node.options}) != len(node.options):
            raise ValueError(f"{node.key[:40]!r}.options: expected different names")
        if len(node.options) > MOST_OPTIONS:
            raise ValueError(f"{node.key[:40]!r}: expected at most {MOST_OPTIONS} options, got {len(node.options)}")
        earlier.add(node.key)


def read(path: str | os.PathLike[str]) -> Graph:
    """Read a graph. Raises InvalidArgumentError, in one line with the file's name."""
    make = f"make a graph with mcr-trace capture {path} -o graph.json" if os.path.isdir(path) else ""  # of traces
    document = documents.read(path, f"{path}: expected a graph of a training iteration", limit=LARGEST, make=make)
    try:
        return of_document(document)
    except ValueError as error:
        raise InvalidArgumentError(f"{path}: {error}") from error
