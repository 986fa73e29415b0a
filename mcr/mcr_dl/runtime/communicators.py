# SPDX-License-Identifier: Apache-2.0
"""The communicators of a group: one per backend, made by all members together."""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as torch_dist

from mcr_dl import _C, watch
from mcr_dl.base.errors import NotInitializedError
from mcr_dl.libraries import registry
from mcr_dl.runtime import lines, state


def connect(group: _C.Group, names: Iterable[str], *, mpi_comm: int | None = None) -> None:
    """Make the group's communicators. Collective over its members."""
    if watch.forked():
        raise NotInitializedError(watch.forked_text())
    current = state.current()
    for name in names:
        if registry.is_hierarchical(name):
            _connect_hierarchy(group, name)
            continue
        path, library = registry.load(name), registry.describe(name)
        adopted = mpi_comm if library.communicators else None
        if library.together and adopted is None and name not in current.backends:
            message = f"backend: {name!r} starts on all ranks together, so it must be named at init_process_group()"
            raise NotInitializedError(message)
        library.start(current.store, current.launch.rank, current.launch.size)
        store = torch_dist.PrefixStore(f"{group.name()}/{name}", current.store)
        argument = library.argument(store, group) if adopted is None else adopted
        turn = current.count(f"connect {group.name()} {name}")
        meeting = torch_dist.PrefixStore(f"connect/{group.name()}/{name}/{turn}", current.store)
        group._connect(name, path, argument, meeting)
        library.started()


def _connect_hierarchy(group: _C.Group, name: str) -> None:
    """Make the communicators of the group's lines, in one order on all ranks, and the candidate that uses them.

    Raises InvalidArgumentError, on all ranks, if the group's topology has one dimension only.
    """
    registry.load(name)
    current = state.current()
    rows = lines.of(group.ranks)
    lines.require(rows, f"backend: {name!r}")
    inner, *outer = _C.Candidate(name).parts
    across = outer[0] if len(outer) == 1 else f"hier({','.join(outer)})"
    parts: list[tuple[_C.Group | None, str]] = []
    for index, members in enumerate(_C.members_of_lines(rows, group.rank())):
        candidate = across if index == 1 else inner
        made = None
        if len(members) > 1:
            ranks = [group.ranks[rank] for rank in members]
            title = f"{group.name()}/{name}-{index}-{ranks[0]}"
            made = _C.Group(title, ranks, ranks.index(current.launch.rank), group.timeout)
            names = [*registry.with_parts(outer[-1:]), across] if index == 1 else registry.with_parts([inner])
            connect(made, dict.fromkeys(names))
            current.groups[title] = made
            current.shadows.setdefault(group.name(), []).append(title)
        parts.append((made, candidate))
    group._connect_hierarchy(name, rows, parts)
