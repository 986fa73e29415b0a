# SPDX-License-Identifier: Apache-2.0
"""Plans of collectives on networks of several dimensions: which order of the dimensions each chunk takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal, get_args

from mcr_dl import _C
from mcr_dl.base.arguments import whole
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError
from mcr_dl.networks.network import PS_PER_US, Network

__all__ = ["CHUNKS", "OPERATIONS", "POLICIES", "Plan", "Policy", "Step", "plan"]

Policy = Literal["baseline", "themis-fifo", "themis-scf", "auto"]

POLICIES: tuple[str, ...] = get_args(Policy)
OPERATIONS = tuple(row["name"] for row in _C.ops() if row["hierarchical"] and row["cuttable"] and not row["rooted"])
CHUNKS = tuple(_C.themis_chunk_counts())
"""The numbers of chunks that ``auto`` tries: powers of two, and those times one and a half."""
_USUAL_CHUNKS = 64  # the paper's
_AUTO = "auto"
_LIMITS = _C.themis_limits()
MOST_BYTES = _LIMITS["bytes"]


@dataclass(frozen=True)
class Step:
    """One step of one chunk. Times are picoseconds from the start of the call.

    Attributes:
        chunk: from 0.
        index: of the chunk's steps, from 0.
        dimension: from 1.
        ready: the time at which the chunk's previous step has ended.
        start: the time at which the step is issued.
        end: the time at which it has ended.
    """

    chunk: int
    index: int
    dimension: int
    ready: int
    start: int
    end: int


@dataclass(frozen=True)
class Plan:
    """A collective in chunks, each with its order of the dimensions, and when each step runs.

    Attributes:
        operation: the collective.
        nbytes: the whole data of a rank: the input, or the output of an all_gather.
        in_flight: steps that run at once in a dimension.
        policy: baseline, themis-fifo or themis-scf.
        chunks: the number of chunks.
        orders: of each chunk, its dimensions, from 1, in the order in which it goes through them. Of an all_reduce,
            those of the reduce_scatters; the all_gathers follow in reverse.
        makespan: picoseconds.
        utilization: the bytes that a rank sends, by what it could send over all dimensions in that time (Themis,
            section 3).
    """

    operation: str
    nbytes: int
    in_flight: int
    policy: str
    chunks: int
    orders: tuple[tuple[int, ...], ...]
    makespan: int
    utilization: float
    _found: _C.ThemisPlan = field(repr=False, compare=False)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """All steps, in the order in which every rank issues them."""
        return tuple(Step(chunk, index, k + 1, *times) for chunk, index, k, *times in self._found.steps())

    @property
    def makespan_us(self) -> float:
        """Microseconds from the start to the end of the last step."""
        return self.makespan / PS_PER_US


def plan(
    network: Network,
    operation: str,
    nbytes: int,
    *,
    policy: str = _AUTO,
    chunks: int | None = None,
    in_flight: int = 1,
) -> Plan:
    """Plan a collective over all dimensions of a network. Equal arguments give equal plans on all ranks.

    Args:
        network: the dimensions.
        operation: all_reduce, reduce_scatter, all_gather or all_to_all.
        nbytes: the whole data of a rank: the input, or the output of an all_gather.
        policy: ``baseline``: every chunk goes through the dimensions from the first to the last (an all_gather in
            reverse), first come first served. ``themis-fifo``, ``themis-scf``: Algorithm 1 of Themis (ISCA'22), and in
            each dimension first come first served, or smallest chunk first. ``auto``: the best of all policies and all
            numbers of chunks in ``CHUNKS``.
        chunks: the number of equal chunks, 1 to 512 (64, as in the paper); for ``auto`` a number to try in addition.
        in_flight: steps that run at once in a dimension: they share its bandwidth, and their latencies overlap.

    Returns: the plan; of equal plans, the one that comes first by policies in the above order, then by chunks.

    Raises InvalidArgumentError for arguments out of range, InvalidTypeError for numbers that are not whole ones.
    """
    if not isinstance(operation, str):
        raise InvalidTypeError(f"operation: expected a name, got {operation!r}")
    nbytes, in_flight = whole("nbytes", nbytes), whole("in_flight", in_flight)
    chunks = None if chunks is None else whole("chunks", chunks)
    for name, value, key in (
        ("chunks", chunks, "chunks"),
        ("steps in flight", in_flight, "in_flight"),
        ("bytes", nbytes, "bytes"),
    ):
        if value is not None and not 1 <= value <= _LIMITS[key]:  # also numbers that the core's types cannot hold
            raise InvalidArgumentError(f"{name}: expected 1 to {_LIMITS[key]}, got {value}")
    if policy not in POLICIES:
        raise InvalidArgumentError(f"policy: expected one of {', '.join(POLICIES)}, got {policy!r}")
    if policy == _AUTO:
        counts = CHUNKS if chunks is None else tuple(sorted({*CHUNKS, chunks}))
        return best(network, operation, nbytes, tuple(each for each in POLICIES if each != _AUTO), counts, in_flight)
    return best(network, operation, nbytes, (policy,), (_USUAL_CHUNKS if chunks is None else chunks,), in_flight)


@lru_cache(maxsize=256)
def best(
    network: Network,
    operation: str,
    nbytes: int,
    policies: tuple[str, ...],
    chunks: tuple[int, ...] = CHUNKS,
    in_flight: int = 1,
) -> Plan:
    """The plan with the shortest makespan over some policies and numbers of chunks. Cached."""
    rows = [each.row for each in network.dimensions]
    found = _C.ThemisPlan(rows, operation, nbytes, list(policies), list(chunks), in_flight)
    sent = [work * row[2] for work, row in zip(found.work, rows, strict=True)]
    return Plan(
        operation=operation,
        nbytes=nbytes,
        in_flight=in_flight,
        policy=found.policy,
        chunks=found.chunks,
        orders=tuple(tuple(k + 1 for k in order) for order in found.orders),
        makespan=found.makespan,
        utilization=sum(sent) / (sum(row[2] for row in rows) * found.makespan),
        _found=found,
    )
