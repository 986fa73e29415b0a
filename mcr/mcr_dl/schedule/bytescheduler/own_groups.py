# SPDX-License-Identifier: Apache-2.0
"""Groups on which ByteScheduler alone makes calls."""

from __future__ import annotations

from collections.abc import Iterable

from mcr_dl import _C
from mcr_dl.groups import default_group, making
from mcr_dl.passes import chain
from mcr_dl.runtime import changes, handles, state


def like(group: _C.Group, owner: object) -> _C.Group:
    """Make a group with the ranks of this one, in their order, and its backends: collective over it.

    Groups like it whose owners are gone end first.
    """
    _end_abandoned(group)
    made = making.new_group(
        group.ranks, group.timeout, group.backends, use_local_synchronization=True, sort_ranks=False
    )
    core = handles.core_group(made)
    chain.reserve(core, owner)
    return core


def _end_abandoned(group: _C.Group) -> None:
    """End groups of the same ranks whose owners are gone on all ranks; they collect these at different times.

    Equal on all ranks, as the names of all decide.
    """
    ranks = list(group.ranks)
    mine = [each.name() for each in state.living() if chain.is_abandoned(each) and list(each.ranks) == ranks]
    names = changes.agree(group, "ByteScheduler", mine, _common)
    end(each for each in state.living() if each.name() in names)


def _common(values: list[list[str]]) -> list[str]:
    return [name for name in values[0] if all(name in value for value in values)]


def end(groups: Iterable[_C.Group]) -> None:
    """End those that have not ended yet: collective over them."""
    for group in groups:
        if not state.has_ended(group):
            default_group.destroy_process_group(group)
