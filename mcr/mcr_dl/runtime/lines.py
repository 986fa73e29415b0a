# SPDX-License-Identifier: Apache-2.0
"""The lines of a group's ranks, which hierarchical candidates use: those of the innermost dimension, or the hosts'."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.libraries import registry
from mcr_dl.runtime import state, topologies


def of(ranks: Sequence[int], level: int = 0) -> list[list[int]]:
    """The group ranks of each line of a group of these global ranks: of the job's topology, else of each host.

    ``level``: 0 for the job's innermost dimension of several ranks, 1 for all ranks that differ in the next one too.
    All ranks are one line at levels that the job does not have. Lines may have different lengths, for example of hosts
    with different numbers of ranks.
    """
    current = state.current()
    places: list[tuple[tuple[int, ...], tuple[int, ...]]]  # the line, and the place in it
    if current.given_grid is None:
        nodes = current.knowledge.nodes
        places = [((0 if level else nodes[rank],), (index,)) for index, rank in enumerate(ranks)]
    else:
        # Of the job, and not of these ranks: groups with one rank of each host have no line within a host.
        width = next(iter(_wide(current.given_grid)[level:]), 0)
        coordinates = [tuple(current.given_grid.coordinates(rank)) for rank in ranks]
        places = [(one[:width], one[width:]) for one in coordinates]
    rows: dict[object, list[int]] = {}
    for rank in sorted(range(len(ranks)), key=lambda index: places[index]):
        rows.setdefault(places[rank][0], []).append(rank)
    return list(rows.values())


def _steps(ranks: Sequence[int], count: int, level: int = 0) -> list[list[list[int]]]:
    """The lines of a hierarchy of ``count`` backends at each level: of the ranks, then of one rank of each line, ...

    They have one shape for every rank that communicates with the other lines, as the ranks of a line do not differ in
    outer dimensions.
    """
    found = []
    for each in range(level, level + count - 1):
        rows = of(ranks, each)
        found.append(rows)
        ranks = [ranks[row[0]] for row in rows]
    return found


def _flat(rows: list[list[int]]) -> bool:
    return len(rows) < 2 or max(map(len, rows)) < 2


def require(ranks: Sequence[int], count: int, what: str, level: int = 0) -> list[list[int]]:
    """The lines of a hierarchy of ``count`` backends on these global ranks. ``level``: as for ``of``.

    Raises InvalidArgumentError unless there are several lines, and several ranks in one of them, for each backend but
    the last one.
    """
    steps = _steps(ranks, count, level)
    if not any(map(_flat, steps)):
        return steps[0]
    wanted = "two dimensions, such as several hosts with several ranks each"
    if count > 2:
        wanted = f"{count} dimensions of several ranks, one for each backend"
    shapes = ", and across these lines of ".join(", ".join(str(len(row)) for row in rows) for rows in steps)
    message = (
        f"{what}: expected a topology of {wanted}, got lines of {shapes} ranks; name the topology's file in "
        f"{topologies.VARIABLE}, or leave this backend out"
    )
    raise InvalidArgumentError(message)


def _grids_of(ranks: Sequence[int]) -> list[_C.Topology]:
    """The topologies of a group of these global ranks: its part of the one that was set for the default group, if one
    was, and its part of the job's, or the one from the hosts."""
    current = state.current()
    default = topologies.grid_of(current.default_document, current.launch.size)
    found = [] if default is None else [default.of_members(list(ranks))]
    return [*found, topologies.grid_of_members(current.given_grid, current.knowledge.nodes, list(ranks))]


def _wide(grid: _C.Topology) -> list[int]:
    """The dimensions with several ranks, innermost first."""
    return [index for index, row in reversed(list(enumerate(grid.dimensions))) if row[1] > 1]


def _grid_with(ranks: Sequence[int], count: int) -> _C.Topology | None:
    """The topology of these global ranks with ``count`` dimensions of several ranks, if there is one."""
    return next((grid for grid in _grids_of(ranks) if len(_wide(grid)) == count), None)


def require_grid(ranks: Sequence[int], count: int, what: str) -> tuple[_C.Topology, list[int]]:
    """A topology of these global ranks with ``count`` dimensions of several ranks, and these dimensions, innermost
    first. Raises InvalidArgumentError if there is none.

    ``set_topology`` is a collective of the default group, so all ranks get an equal one.
    """
    found = _grid_with(ranks, count)
    if found is not None:
        return found, _wide(found)
    shapes = " and ".join(" x ".join(str(row[1]) for row in grid.dimensions) for grid in _grids_of(ranks))
    message = (
        f"{what}: expected a topology of {count} dimensions of several ranks, one for each backend, got {shapes}; name "
        f"the topology's file in {topologies.VARIABLE}, give the default group one with set_topology(), or leave this "
        f"backend out"
    )
    raise InvalidArgumentError(message)


def that_fit(names: Iterable[str], ranks: Sequence[int]) -> list[str]:
    """The backends that a group of these global ranks takes over from another: those over dimensions only if it has
    them, and those of one host only where their ranks are on one, except for the backends that the job was asked for.
    If that has all of a job's backends, a group within one host also gets those of one host (``_inner``)."""
    names = list(names)
    found = _fitting(names, ranks)
    inner = [name for name in _inner(ranks) if name not in found]
    if not inner or not set(_fitting(state.current().backends, ranks)) <= set(names):
        return found
    order = registry.automatic()
    return sorted([*inner, *found], key=lambda name: order.index(name) if name in order else len(order))


def _fitting(names: Iterable[str], ranks: Sequence[int]) -> list[str]:
    asked = state.current().asked
    return [name for name in names if _has_dimensions(name, ranks) and (name in asked or _is_within_hosts(name, ranks))]


def _has_dimensions(name: str, ranks: Sequence[int]) -> bool:
    """Whether the ranks have a dimension for each part of the backend, if it needs them."""
    candidate = _C.CandidateName(name)
    if candidate.algorithm == "themis":
        return _grid_with(ranks, len(candidate.parts)) is not None
    return not candidate.hierarchical or not any(map(_flat, _steps(ranks, len(candidate.parts))))


def _is_within_hosts(name: str, ranks: Sequence[int]) -> bool:
    """Whether the backend, or each part of it, connects ranks of one host only, if it cannot connect others.

    A process that has taken a lost rank's place may be on another host than the lost one was. For backends whose
    dimensions the ranks have. All ranks decide alike: by the job's topology and the nodes, on which they agree.
    """
    candidate, nodes = _C.CandidateName(name), state.current().knowledge.nodes
    whole = [[*range(len(ranks))]]
    if not candidate.hierarchical:
        connected = [(name, whole)]
    elif candidate.algorithm == "themis":
        grid = _grid_with(ranks, len(candidate.parts))
        assert grid is not None
        rows = [[grid.line(rank, index) for rank in grid.ranks] for index in _wide(grid)]
        connected = list(zip(candidate.parts, rows, strict=True))
    else:
        rows = [*(of(ranks, level) for level in range(len(candidate.parts) - 1)), whole]
        connected = list(zip(candidate.parts, rows, strict=True))
    return all(
        len({nodes[ranks[rank]] for rank in row}) == 1
        for part, rows in connected
        if registry.is_of_one_host(part)
        for row in rows
    )


def _inner(ranks: Sequence[int]) -> list[str]:
    """The inner backends of the hierarchies that ``auto`` has started, for several ranks in one of their lines: they
    have connected that line, so they can connect its parts."""
    current = state.current()
    started = [_C.CandidateName(name) for name in current.backends if name not in current.asked]
    found = dict.fromkeys(each.parts[0] for each in started if each.algorithm == "hier")
    if not found or len(ranks) < 2:
        return []
    line = next(row for row in of(range(current.launch.size)) if ranks[0] in row)
    return [name for name in found if set(ranks) <= set(line) and _is_within_hosts(name, ranks)]
