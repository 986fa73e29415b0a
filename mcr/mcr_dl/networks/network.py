# SPDX-License-Identifier: Apache-2.0
"""Networks of several dimensions, as ``mcr-tune simulate --topology`` reads them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

from mcr_dl import _C
from mcr_dl.base import documents
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.base.whole import is_whole

__all__ = ["Dimension", "Kind", "Network"]

Kind = Literal["switch", "ring", "fully_connected"]

_BYTES_PER_GBIT = 125_000_000
PS_PER_US = 1_000_000
_LIMITS = _C.themis_limits()
_LEAST_GBPS = 1 / _BYTES_PER_GBIT  # a byte per second
_MOST_GBPS = 1_000_000
_MOST_US = _LIMITS["latency"] // PS_PER_US
_SCHEMA_OF_DIMENSION: dict[str, Any] = {
    "type": "object",
    "required": ["kind", "size", "gbps", "latency_us", "links"],
    "additionalProperties": False,
    "properties": {
        "kind": {"enum": list(get_args(Kind))},
        "size": {"type": "integer", "minimum": 2, "maximum": _LIMITS["size"]},
        "gbps": {"type": "number", "minimum": _LEAST_GBPS, "maximum": _MOST_GBPS},
        "latency_us": {"type": "number", "minimum": 0, "maximum": _MOST_US},
        "links": {"type": "integer", "minimum": 1, "maximum": _LIMITS["links"]},
    },
}
_SCHEMA = {
    "type": "object",
    "required": ["dimensions"],
    "additionalProperties": False,
    "properties": {
        "dimensions": {
            "type": "array",
            "minItems": 1,
            "maxItems": _LIMITS["dimensions"],
            "items": _SCHEMA_OF_DIMENSION,
        }
    },
}


@dataclass(frozen=True)
class Dimension:
    """One dimension of a network: how many ranks communicate in it, and how fast.

    Attributes:
        kind: the links between the ranks that differ only in this dimension, which decide the algorithm (Themis,
            Table 1): ``ring``: ring; ``fully_connected``: direct; ``switch``: halving and doubling.
        size: ranks that differ only in this dimension, two or more.
        gbps: 10^9 bits per second of one rank in one direction, over all its links.
        latency_us: microseconds of one step of the algorithm.
        links: links of one rank. On a ring, an all_to_all uses one direction with one link, else both.
    """

    kind: Kind
    size: int
    gbps: float
    latency_us: float = 0.0
    links: int = 1

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for a value without a meaning."""
        if self.kind not in get_args(Kind):
            self._refuse("kind", f"one of {', '.join(get_args(Kind))}")
        for name, least, most in (("size", 2, _LIMITS["size"]), ("links", 1, _LIMITS["links"])):
            value = getattr(self, name)
            if not is_whole(value, least, most):
                self._refuse(name, f"a whole number from {least} to {most}")
        for name, least_float, most_float in (("gbps", _LEAST_GBPS, _MOST_GBPS), ("latency_us", 0, _MOST_US)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least_float <= value <= most_float:
                self._refuse(name, f"a number from {least_float:.9g} to {most_float:.9g}")

    def _refuse(self, name: str, expected: str) -> NoReturn:
        raise InvalidArgumentError(f"dimension: {name}: expected {expected}, got {getattr(self, name)!r}")

    @property
    def row(self) -> tuple[str, int, int, int, int]:
        """Whole numbers for the core: bytes per second and picoseconds, equal on all ranks."""
        bandwidth, latency = round(self.gbps * _BYTES_PER_GBIT), round(self.latency_us * PS_PER_US)
        return self.kind, self.size, bandwidth, latency, self.links


@dataclass(frozen=True)
class Network:
    """A network's dimensions, dimension 1 first. Rank numbers count along dimension 1 first."""

    dimensions: tuple[Dimension, ...]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        product = 1
        for each in self.dimensions:
            product *= each.size
        return product

    @property
    def name(self) -> str:
        """``16 x 64: switch 1200 Gb/s, switch 800 Gb/s``."""
        sizes = " x ".join(str(each.size) for each in self.dimensions)
        return f"{sizes}: " + ", ".join(f"{each.kind} {each.gbps:g} Gb/s" for each in self.dimensions)

    @classmethod
    def of(cls, dimensions: Iterable[Dimension]) -> Network:
        """A network with these dimensions."""
        return cls(tuple(dimensions))

    @classmethod
    def from_document(cls, document: Any, what: str = "topology") -> Network:
        """A network from a topology file's content.

        Raises InvalidArgumentError, in one line that begins with ``what``, for anything else.
        """
        if isinstance(document, dict) and "format" in document:
            keys = ", ".join(_SCHEMA_OF_DIMENSION["required"])
            message = f"{what}: expected dimensions with {keys}, innermost first, got a file as for MCR_DL_TOPOLOGY"
            raise InvalidArgumentError(message)
        rows = documents.check(document, _SCHEMA, what)["dimensions"]
        return cls.of(
            Dimension(each["kind"], int(each["size"]), each["gbps"], each["latency_us"], int(each["links"]))
            for each in rows
        )

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Network:
        """Read a topology file: ``{"dimensions": [{"kind", "size", "gbps", "latency_us", "links"}, ...]}``.

        Raises InvalidArgumentError for a file that cannot be read or is not a topology.
        """
        what = f"topology {os.fspath(path)}"
        return cls.from_document(documents.read(path, what, limit=documents.MIB), what)
