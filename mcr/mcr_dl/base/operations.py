# SPDX-License-Identifier: Apache-2.0
"""The operations of benchmarks, tables and the log, by name, from the op table; and their bandwidths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError


@dataclass(frozen=True)
class Operation:
    """One line of a benchmark or a table: an operation of the op table, or its form with counts."""

    name: str
    op: str
    vectored: bool
    rooted: bool
    reduces: bool
    peer: bool
    blocks: bool  # the message has one block for each rank
    bus: str  # the op table's word for its bus bandwidth


def _operation(row: dict[str, Any], vectored: bool) -> Operation:
    name = row["name"] + ("v" if vectored else "")
    return Operation(
        name, row["name"], vectored, row["rooted"], row["reduces"], row["peer"], row["vectored"], row["bus"]
    )


@cache
def table() -> Mapping[str, Operation]:
    """All operations to measure, from the op table. A receive is measured with its send, which comes first."""
    result: dict[str, Operation] = {}
    for row in _C.ops():
        if row["peer"] and any(operation.peer for operation in result.values()):
            continue
        for vectored in (False, True) if row["vectored"] else (False,):
            operation = _operation(row, vectored)
            result[operation.name] = operation
    return MappingProxyType(result)


def operations() -> list[str]:
    """Names of all operations that can be measured, with a "v" for vectored ones, in the op table's order."""
    return list(table())


def frequent() -> list[str]:
    """The operations that carry most of a training's data: their asynchronous calls are measured too."""
    return [row["name"] for row in _C.ops() if row["compressible"] and not row["peer"]]


def operation_of(name: str) -> Operation:
    """An operation's properties; InvalidArgumentError lists the known operations if there is none of that name."""
    known = table()
    if name not in known:
        message = f"operation: expected one of {', '.join(known)}, got {name!r}"
        raise InvalidArgumentError(message)
    return known[name]


def dtype_class(operation: str, dtype: str) -> str:
    """The class of element types whose curves apply: "any" for operations that only move data."""
    return _C.dtype_class(dtype) if operation_of(operation).reduces else "any"


# Bus bandwidth over algorithm bandwidth on n ranks, by the op table's words. Source: nccl-tests, PERFORMANCE.md and
# getBw() of each test.
_BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "none": lambda _: 0.0,
    "once": lambda _: 1.0,
    "others": lambda n: (n - 1) / n,
    "twice": lambda n: 2 * (n - 1) / n,
}


def bandwidths(operation: str, nbytes: int, median_us: float, ranks: int) -> tuple[float, float]:
    """Algorithm and bus bandwidth in GB/s (10^9 bytes per second) of a message of `nbytes` that takes `median_us`."""
    algbw = nbytes / median_us / 1000
    return algbw, algbw * _BUS_FACTORS[operation_of(operation).bus](ranks)
