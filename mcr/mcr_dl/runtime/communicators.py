# SPDX-License-Identifier: Apache-2.0
"""The communicators of a group: one per backend, made by all members together."""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as torch_dist

from mcr_dl import _C, watch
from mcr_dl.base.errors import NotInitializedError
from mcr_dl.libraries import registry
from mcr_dl.runtime import state


def connect(group: _C.Group, names: Iterable[str], *, mpi_comm: int | None = None) -> None:
    """Make the group's communicators. Collective over its members."""
    if watch.forked():
        raise NotInitializedError(watch.forked_text())
    current = state.current()
    for name in names:
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
