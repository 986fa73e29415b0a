# SPDX-License-Identifier: Apache-2.0
"""Decides which backends a job starts: each rank reports what it can use, and all ranks start the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.base import agreement, blocks, launcher
from mcr_dl.base.errors import BackendUnavailableError, InvalidArgumentError, McrError
from mcr_dl.base.warning import warn
from mcr_dl.libraries import registry
from mcr_dl.watch import ranks_text

_Answer = dict[str, Any]
_AUTO = "auto"


@dataclass(frozen=True)
class Agreed:
    """The agreement of all ranks.

    ``asked``: the backends without which init fails, as they were asked for by name or by a variable that names their
    library. ``local``: backends that connect only ranks of one host, in a job of several, with a number for each rank's
    domain, packed (``blocks``). ``networks``: the number of networks that every host has at least.
    """

    backends: list[str]
    asked: list[str]
    local: dict[str, list[list[int]]]
    networks: int


@dataclass(frozen=True)
class Automatic:
    """The backends of ``auto``, for a job that names none: equal on all ranks.

    ``memory``: of a device, as "cpu": only backends that take it; ``also``: backends that all ranks must start, too.
    """

    memory: str | None = None
    also: tuple[str, ...] = ()


AUTOMATIC = Automatic()


def agree(
    store: torch_dist.Store,
    rank: int,
    size: int,
    wanted: list[str],
    problem: str = "",
    automatic: Automatic = AUTOMATIC,
) -> Agreed:
    """The backends that all ranks start: the named ones, or else those of ``auto`` that every rank can use.

    Every rank calls this, also one with a ``problem``, which all ranks then raise as an InvalidArgumentError. Warns on
    every rank of a backend that is left out although some rank has it. Raises BackendUnavailableError on every rank if
    some rank cannot use a requested backend, or if no backend is left, and InvalidArgumentError if the names differ
    between the ranks.
    """
    conditions, problem = ({}, problem) if problem else _conditions(wanted, size, automatic)
    named = ",".join(wanted or [_AUTO, *automatic.also])
    facts = {"problem": problem, "named": named, "conditions": conditions, "networks": launcher.networks()}
    answer = agreement.agree(store, rank, size, "backends", facts, _decide)
    if answer["failed"]:
        raise BackendUnavailableError(answer["failed"])
    for text in answer["left_out"]:
        warn_left_out(text)
    return Agreed(answer["backends"], answer["asked"], answer["local"], answer["networks"])


def _conditions(wanted: list[str], size: int, automatic: Automatic) -> tuple[dict[str, Any], str]:
    """This rank's report on each backend, and the error of a variable that cannot be read, such as a launcher's."""
    try:
        names = dict.fromkeys(wanted or (*registry.automatic(automatic.memory), *automatic.also))
        return {name: asdict(_condition(name, size, wanted, automatic.also)) for name in names}, ""
    except McrError as error:
        return {}, str(error)


def _condition(name: str, size: int, wanted: Sequence[str], also: Sequence[str]) -> registry.Condition:
    found = registry.condition(name, size, named=bool(wanted) or name in also)
    return replace(found, asked=True) if name in also else found


def combined(agreed: Agreed, rows: list[list[int]]) -> list[str]:
    """The backends made of others that ``auto`` adds in a job of several hosts, for lines of these ranks.

    Hierarchies have a backend of one host within the lines, where that can connect each of them; stripes come where
    every host has several networks. Loads them.
    """
    fits = len(rows) > 1 and max(map(len, rows)) > 1
    local = [name for name, packed in agreed.local.items() if fits and _in_domains(rows, blocks.unpack(packed))]
    names = [name for name in possible(agreed) if not registry.is_hierarchical(name) or _inner(name) in local]
    for name in names:
        registry.load(name)
    return names


def _in_domains(rows: Iterable[Sequence[int]], domains: list[int]) -> bool:
    return all(len({domains[rank] for rank in row}) == 1 for row in rows)


def _inner(name: str) -> str:
    return _C.CandidateName(name).parts[0]


def serving(agreed: Agreed, grid: _C.Topology, index: int) -> list[str]:
    """The backends that a dimension of the job's topology can name.

    They are those that start and their parts, stripes that ``auto`` can add, and backends of one host if each of the
    dimension's lines lies in one.
    """
    rows = {tuple(grid.line(rank, index)) for rank in grid.ranks}
    local = [name for name, packed in agreed.local.items() if _in_domains(rows, blocks.unpack(packed))]
    parts = [part for name in agreed.backends for part in registry.parts_of(name)]
    return [*dict.fromkeys((*_of_all(agreed), *parts, *local))]


def over_dimensions(grid: _C.Topology | None, agreed: Agreed) -> list[str]:
    """The candidate of Themis that ``auto`` adds for a topology whose dimensions of several ranks all name a backend.

    All must be host backends that can serve the dimension, and the outermost one must connect all ranks. Loads it.
    """
    rows = [] if grid is None else [(index, row[4]) for index, row in enumerate(grid.dimensions) if row[1] > 1]
    parts = [name for _, name in reversed(rows)]  # innermost first
    if grid is None or not 1 < len(parts) <= _C.themis_limits()["dimensions"] or parts[-1] not in _of_all(agreed):
        return []
    if not all(_on_host(name) and name in serving(agreed, grid, index) for index, name in rows):
        return []
    name = _C.CandidateName(f"themis({','.join(parts)})").backend
    registry.load(name)
    return [name]


def _of_all(agreed: Agreed) -> list[str]:
    """The backends that connect all ranks of the job."""
    return [*agreed.backends, *(name for name in possible(agreed) if not registry.is_hierarchical(name))]


def _on_host(name: str) -> bool:
    return bool(name) and all("cpu" in registry.describe(each).devices for each in registry.parts_of(name) or (name,))


def possible(agreed: Agreed) -> list[str]:
    """The backends that ``combined`` returns for some lines."""
    several_networks = bool(agreed.local) and agreed.networks > 1
    return registry.combined(agreed.backends, agreed.local, several_networks=several_networks)


def warn_left_out(text: str) -> None:
    """Warn that a backend which was not named does not start."""
    warn(f"{text}; it is left out (MCR_DL_BACKENDS names the backends to start)")


def _decide(values: list[_Answer]) -> _Answer:
    if problem := problem_of([value["problem"] for value in values]):
        raise InvalidArgumentError(problem)
    agreement.require_equal("backend", [value["named"] for value in values])
    named = values[0]["named"].split(",")[0] != _AUTO
    backends, asked, left_out = [], [], []
    local: dict[str, list[list[int]]] = {}
    for name in values[0]["conditions"]:
        conditions = [value["conditions"][name] for value in values]
        requested = named or any(condition["asked"] for condition in conditions)
        if not requested and len({condition["domain"] for condition in conditions if condition["library"]}) > 1:
            if len({condition["library"] for condition in conditions}) == 1:
                local[name] = blocks.pack(blocks.numbered(condition["domain"] for condition in conditions))
            continue  # a backend of one host in a job of several, which is normal
        libraries = [condition["library"] for condition in conditions]
        if named and all(libraries):
            agreement.require_equal(f"backend '{name}'", libraries)
        if all(libraries):
            problem = _difference(name, libraries) or _apart(name, [condition["running"] for condition in conditions])
        else:
            problem = problem_of([condition["problem"] for condition in conditions])
        if requested:
            asked.append(name)
            if problem:
                return {"failed": problem}
        if not problem:
            backends.append(name)
        elif not all(condition["absent"] for condition in conditions):
            left_out.append(problem)
    failed = "" if backends else "; ".join(["no backend can be used by all ranks", *left_out])
    networks = min(value["networks"] for value in values)
    agreed = {"backends": backends, "asked": asked, "local": local, "networks": networks}
    return {"failed": failed, "left_out": left_out, **agreed}


def problem_of(problems: Sequence[str], ranks: Sequence[int] | None = None) -> str:
    """The first problem, with the ranks that have it unless all do; empty if no rank has one.

    ``ranks``: the global ranks, in the order of the problems; by default these are all ranks of the job.
    """
    first = next(filter(None, problems), "")
    with_it = [rank for rank, problem in zip(ranks or range(len(problems)), problems, strict=True) if problem == first]
    return first if not first or len(with_it) == len(problems) else f"{ranks_text(with_it)}: {first}"


def _difference(name: str, libraries: list[str]) -> str:
    other = next((rank for rank, library in enumerate(libraries) if library != libraries[0]), 0)
    if other == 0:
        return ""
    both = f"{libraries[0]} on rank 0 and {libraries[other]} on rank {other}"
    return f"backend '{name}': expected the same library on all ranks, got {both}"


def _apart(name: str, running: list[str]) -> str:
    """The problem of a library that starts once in a process, if it runs in some without the others."""
    if len(set(running)) == 1:
        return ""
    first = next(rank for rank, each in enumerate(running) if each)
    other = next(rank for rank, each in enumerate(running) if each != running[first])
    return (
        f"backend '{name}' is unavailable: it starts once in a process; expected all processes to start it together, "
        f"got that of rank {first}, where it runs since an earlier start, without that of rank {other}; start new ones"
    )
