# SPDX-License-Identifier: Apache-2.0
"""The lines of a group's ranks, which hierarchical candidates use: those of the innermost dimension, or the hosts'."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.libraries import registry
from mcr_dl.runtime import dimensions, state


def _nodes() -> list[int]:
    """The node of each rank of the job; empty while they are not known."""
    knowledge = state.current().knowledge
    return [] if knowledge is None else knowledge.nodes


def of(ranks: Sequence[int]) -> list[list[int]]:
    """The group ranks of each line of a group of these global ranks: of the job's topology, else of each host.

    Lines may have different lengths, for example of hosts with different numbers of ranks.
    """
    current = state.current()
    places: list[tuple[tuple[int, ...], tuple[int, ...]]]  # the line, and the place in it
    if current.grid is None:
        nodes = _nodes()
        places = [((nodes[rank] if nodes else 0,), (index,)) for index, rank in enumerate(ranks)]
    else:
        coordinates = [tuple(current.grid.coordinates(rank)) for rank in ranks]
        width = max((d for d in range(len(coordinates[0])) if len({one[d] for one in coordinates}) > 1), default=0)
        places = [(one[:width], one[width:]) for one in coordinates]
    rows: dict[object, list[int]] = {}
    for rank in sorted(range(len(ranks)), key=lambda index: places[index]):
        rows.setdefault(places[rank][0], []).append(rank)
    return list(rows.values())


def require(rows: list[list[int]], what: str) -> None:
    """Raise InvalidArgumentError unless there are several lines, and several ranks in one of them."""
    if len(rows) > 1 and max(map(len, rows)) > 1:
        return
    shape = ", ".join(str(len(row)) for row in rows)
    message = (
        f"{what}: expected a topology of two dimensions, such as several hosts with several ranks each, got lines of "
        f"{shape} ranks; name the topology's file in {dimensions.VARIABLE}, or leave this backend out"
    )
    raise InvalidArgumentError(message)


def _grids_of(ranks: Sequence[int]) -> list[_C.Topology]:
    """The topologies of a group of these global ranks: its part of the one that was set for the default group, if one
    was, and its part of the job's, or the one from the hosts."""
    current = state.current()
    arranged = dimensions.grid_of(current.arranged, current.launch.size)
    found = [] if arranged is None else [arranged.of_members(list(ranks))]
    return [*found, dimensions.grid_of_members(current.grid, _nodes(), list(ranks))]


def _wide(grid: _C.Topology) -> list[int]:
    """The dimensions with several ranks, innermost first."""
    return [index for index, row in reversed(list(enumerate(grid.dimensions))) if row[1] > 1]


def require_grid(ranks: Sequence[int], count: int, what: str) -> tuple[_C.Topology, list[int]]:
    """A topology of these global ranks with ``count`` dimensions of several ranks, and these dimensions, innermost
    first. Raises InvalidArgumentError if there is none.

    ``set_topology`` is a collective of the default group, so all ranks get an equal one.
    """
    grids = _grids_of(ranks)
    for grid in grids:
        if len(found := _wide(grid)) == count:
            return grid, found
    shapes = " and ".join(" x ".join(str(row[1]) for row in grid.dimensions) for grid in grids)
    message = (
        f"{what}: expected a topology of {count} dimensions of several ranks, one for each backend, got {shapes}; name "
        f"the topology's file in {dimensions.VARIABLE}, give the default group one with set_topology(), or leave this "
        f"backend out"
    )
    raise InvalidArgumentError(message)


def that_fit(names: Iterable[str], ranks: Sequence[int]) -> list[str]:
    """The backends that a group of these global ranks takes over from another: those over dimensions only if it has
    them. If that has all of a job's backends, a group within one host also gets those of one host (``_inner``)."""
    names = list(names)
    found = _fitting(names, ranks)
    inner = [name for name in _inner(ranks) if name not in found]
    if not inner or not set(_fitting(state.current().backends, ranks)) <= set(names):
        return found
    order = registry.automatic()
    return sorted([*inner, *found], key=lambda name: order.index(name) if name in order else len(order))


def _fitting(names: Iterable[str], ranks: Sequence[int]) -> list[str]:
    rows = of(ranks)
    flat = len(rows) < 2 or max(map(len, rows)) < 2
    wide = [len(_wide(grid)) for grid in _grids_of(ranks)]

    def fits(name: str) -> bool:
        candidate = _C.Candidate(name)
        if candidate.algorithm == "themis":
            return len(candidate.parts) in wide
        return not (flat and candidate.hierarchical)

    return [name for name in names if fits(name)]


def _inner(ranks: Sequence[int]) -> list[str]:
    """The inner backends of the hierarchies that ``auto`` has started, for several ranks in one of their lines: they
    have connected that line, so they can connect its parts."""
    current = state.current()
    started = [_C.Candidate(name) for name in current.backends if name not in current.asked]
    found = dict.fromkeys(each.parts[0] for each in started if each.algorithm == "hier")
    if not found or len(ranks) < 2:
        return []
    line = next(row for row in of(range(current.launch.size)) if ranks[0] in row)
    return [*found] if set(ranks) <= set(line) else []
