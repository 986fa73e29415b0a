# SPDX-License-Identifier: Apache-2.0
"""Groups on which ByteScheduler alone makes calls."""

from __future__ import annotations

from collections.abc import Iterable

from mcr_dl import _C
from mcr_dl.groups import default_group, making
from mcr_dl.passes import chain
from mcr_dl.runtime import handles, state


def like(group: _C.Group) -> _C.Group:
    """Make a group with the ranks of this one, in their order, and its backends: collective over it."""
    made = making.new_group(
        group.ranks, group.timeout, group.backends, use_local_synchronization=True, sort_ranks=False
    )
    core = handles.core_group(made)
    chain.reserve(core)
    return core


def end(groups: Iterable[_C.Group]) -> None:
    """End those that have not ended yet: collective over them."""
    for group in groups:
        if not state.has_ended(group):
            default_group.destroy_process_group(group)
