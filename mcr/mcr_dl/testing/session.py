# SPDX-License-Identifier: Apache-2.0
"""The runtime of a rank process: started once and kept for later cases, with groups of every kind."""

from __future__ import annotations

from collections import Counter

from torch.distributed import GroupMember

import mcr_dl
from mcr_dl.groups import torch_groups
from mcr_dl.runtime import state

__all__ = ["group", "groups", "members", "start", "stop"]

# By world size: overlapping, of one rank, not contiguous, in another order than the global ranks (if torch can).
SUBGROUPS: dict[int, dict[str, list[int]]] = {
    1: {},
    2: {"reversed": [1, 0], "first": [0], "last": [1]},
    3: {"ends": [0, 2], "tail": [1, 2], "turned": [2, 0, 1], "middle": [1]},
    4: {"even": [0, 2], "tail": [1, 2, 3], "turned": [3, 0, 1], "odd": [1, 3], "one": [2]},
    **{
        size: {
            "even": list(range(0, size, 2)),
            "tail": list(range(1, size)),
            "turned": [size - 1, *range(size - 2)],
            "odd": list(range(1, size, 2)),
            "one": [2],
        }
        for size in range(5, 17)
    },
}

if not torch_groups.ANY_ORDER:
    SUBGROUPS = {size: {name: sorted(ranks) for name, ranks in rows.items()} for size, rows in SUBGROUPS.items()}

_groups: dict[str, mcr_dl.ProcessGroup | None] = {}
_meetings: Counter[str] = Counter()


def start(*backends: str) -> None:
    """Initialize with these backends, unless they already run."""
    wanted = list(backends)
    if mcr_dl.is_initialized():
        if mcr_dl.get_backends() == wanted:
            return
        stop()
    mcr_dl.init_process_group(wanted)


def stop() -> None:
    """Finalize, if initialized."""
    _groups.clear()
    _meetings.clear()
    if mcr_dl.is_initialized():
        mcr_dl.finalize()


def group(name: str) -> mcr_dl.ProcessGroup | None:
    """A group by its name in SUBGROUPS, or "world"; None on ranks that are not members."""
    return groups()[name]


def groups() -> dict[str, mcr_dl.ProcessGroup | None]:
    """All groups of this world size, made on first use by all ranks together."""
    if not _groups:
        _groups["world"] = mcr_dl.group.WORLD
        for name, ranks in SUBGROUPS[mcr_dl.get_world_size()].items():
            made = mcr_dl.new_group(ranks, sort_ranks=False, group_desc=name)
            _groups[name] = None if made == GroupMember.NON_GROUP_MEMBER else made
    return _groups


def members(name: str, world: int) -> list[int]:
    """Global ranks of a group, in group order."""
    return list(range(world)) if name == "world" else SUBGROUPS[world][name]


class Meeting:
    """Shows whether a call of a group waited for all members: each arrives before it makes the call, and checks after
    it that all had arrived. It needs the store, not the group's communicators.
    """

    def __init__(self, name: str) -> None:
        _meetings[name] += 1
        self.ranks = members(name, mcr_dl.get_world_size())
        self.key = f"testing/{name}/{_meetings[name]}"

    def arrive(self) -> None:
        """Note that this rank is about to make the call."""
        key = f"{self.key}/{mcr_dl.get_rank()}"
        state.current().store.set(key, "here")
        state.current().store.check([key])  # set() does not wait for the server, an answer comes after it

    def absent(self) -> list[int]:
        """The global ranks of members that have not arrived."""
        return [rank for rank in self.ranks if not state.current().store.check([f"{self.key}/{rank}"])]
