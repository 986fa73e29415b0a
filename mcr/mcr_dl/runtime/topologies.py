# SPDX-License-Identifier: Apache-2.0
"""Topologies as JSON: the file that MCR_DL_TOPOLOGY names, its checks, and the ranks' agreement on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcr_dl import _C
from mcr_dl.base import documents
from mcr_dl.base.errors import InvalidArgumentError

VARIABLE = "MCR_DL_TOPOLOGY"
FORMAT = "mcr-dl topology"
_MOST_RANKS = 1 << 24
_LIMITS = _C.themis_limits()
_PS_PER_NS = 1000
_SCHEMA = {
    "type": "object",
    "required": ["format", "version", "dimensions"],
    "additionalProperties": False,
    "properties": {
        "format": {"const": FORMAT},
        "version": {"const": 1},
        "dimensions": {
            "type": "array",
            "minItems": 1,
            "maxItems": 16,
            "items": {
                "type": "object",
                "required": ["name", "size"],
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string", "pattern": r"^[A-Za-z0-9_.-]{1,64}\Z"},
                    "size": {"type": "integer", "minimum": 1, "maximum": _MOST_RANKS},
                    "bandwidth": {"type": "integer", "minimum": 0, "maximum": _LIMITS["bandwidth"]},
                    "latency": {"type": "integer", "minimum": 0, "maximum": _LIMITS["latency"] // _PS_PER_NS},
                    "backend": {"type": "string", "maxLength": 64},
                },
            },
        },
        "ranks": {
            "type": "array",
            "maxItems": _MOST_RANKS,
            "items": {"type": "integer", "minimum": 0, "maximum": _MOST_RANKS},
        },
    },
}


def check(document: Any, what: str) -> dict[str, Any]:
    """Return the document if it is a valid topology. Raises InvalidArgumentError with the path of the wrong part."""
    return documents.check(document, _SCHEMA, what)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a topology document. Raises InvalidArgumentError for a file that cannot be read or is not a topology."""
    what = f"topology {os.fspath(path)}"
    return check(documents.read(path, what, limit=64 * documents.MIB), what)


def own(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """This rank's message to the others: its document, None if it has none, or its error."""
    path = environment.get(VARIABLE, "")
    try:
        return {"document": read(path) if path else None, "problem": ""}
    except InvalidArgumentError as error:
        return {"document": None, "problem": str(error)}


def _leaves(value: Any, path: str = "$") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        parts = [(f"{path}.{key}", each) for key, each in sorted(value.items())]
    elif isinstance(value, list) and value:
        parts = [(f"{path}[{index}]", each) for index, each in enumerate(value)]
    else:
        return {path: value}
    return {key: leaf for name, each in parts for key, leaf in _leaves(each, name).items()}


def _first_difference(one: Any, other: Any) -> str:
    ours, theirs = _leaves(one), _leaves(other)
    path = next(
        path for path in [*ours, *theirs] if (path in ours, ours.get(path)) != (path in theirs, theirs.get(path))
    )
    return f"{path}: {ours.get(path, 'nothing')} on rank 0 and {theirs.get(path, 'nothing')}"


def decide(values: list[dict[str, Any]], size: int) -> dict[str, Any] | None:
    """The document of all ranks. Raises InvalidArgumentError that names the first difference or error."""
    for rank, value in enumerate(values):
        if value["problem"]:
            raise InvalidArgumentError(f"rank {rank}: {value['problem']}")
    document: dict[str, Any] | None = values[0]["document"]
    for rank, value in enumerate(values):
        if value["document"] != document:
            difference = _first_difference(document, value["document"])
            raise InvalidArgumentError(f"topology: expected the same on all ranks, got {difference} on rank {rank}")
    if document is not None:
        grid_of(document, size)
    return document


def grid_of(document: dict[str, Any] | None, size: int) -> _C.Topology | None:
    """The topology of a document, if there is one. Raises InvalidArgumentError if it does not fit ``size`` ranks."""
    if document is None:
        return None
    rows = [
        (
            each["name"],
            int(each["size"]),
            *(int(each.get(key, 0)) for key in ("bandwidth", "latency")),
            _C.canonical(each.get("backend", "")),
        )
        for each in document["dimensions"]
    ]
    return _C.Topology(rows, size, [int(rank) for rank in document.get("ranks", [])])


def check_backends(
    document: dict[str, Any], serving: Callable[[int], list[str]], of_one_host: Container[str] = ()
) -> None:
    """Raise InvalidArgumentError for a dimension whose backend is not among those that serve it.

    ``of_one_host``: the backends that serve a dimension only if no line of it crosses hosts.
    """
    for index, each in enumerate(document["dimensions"]):
        name = _C.canonical(each.get("backend", ""))
        if name and name not in (backends := serving(index)):
            message = f"topology: $.dimensions[{index}].backend: expected one of {', '.join(backends)}, got {name!r}"
            if name in of_one_host:
                message += f", which connects the ranks of one host: this dimension ({each['name']!r}) crosses hosts"
            raise InvalidArgumentError(message)


# ---- groups


@dataclass
class Held:
    """A group's topology, and the groups of this rank's dimensions. Those in ``owned`` end with the group."""

    grid: _C.Topology
    groups: dict[str, _C.Group] = field(default_factory=dict)
    owned: list[_C.Group] = field(default_factory=list)


def grid_of_members(given: _C.Topology | None, nodes: list[int], ranks: list[int]) -> _C.Topology:
    """The topology of a group of global ranks: part of the job's topology if one was given, else from the hosts."""
    if given is not None:
        return given.of_members(ranks)
    return _C.Topology.of_hosts([nodes[rank] for rank in ranks])


def with_groups(grid: _C.Topology, size: int) -> list[int]:
    """The dimensions that have groups of their own: those that are neither one rank nor all."""
    return [index for index, row in enumerate(grid.dimensions) if 1 < row[1] < size]
