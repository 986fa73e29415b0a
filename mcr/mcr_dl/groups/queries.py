# SPDX-License-Identifier: Apache-2.0
"""Ranks, sizes and backends of groups, as in torch.distributed."""

from __future__ import annotations

import os

import torch

from mcr_dl import _C
from mcr_dl.base import launcher
from mcr_dl.base.arguments import whole
from mcr_dl.base.errors import InvalidArgumentError, NotInitializedError
from mcr_dl.libraries import registry
from mcr_dl.runtime import handles, state


def get_rank(group: handles.Group | str = None) -> int:
    """This process's rank in the group, -1 if it is not a member.

    A backend's name stands for the default group (MCR-DL paper, Listing 1). Source: torch.distributed.get_rank.
    """
    if handles.not_a_member(group):
        return -1
    return handles.core_group(_named(group)).rank()


def get_world_size(group: handles.Group | str = None) -> int:
    """The number of ranks in the group, -1 if this process is not a member (torch.distributed.get_world_size)."""
    if handles.not_a_member(group):
        return -1
    return handles.core_group(_named(group)).size()


def _named(group: handles.Group | str) -> handles.Group:
    if not isinstance(group, str):
        return group
    if group.strip().lower() != "auto" and _C.canonical(group) not in get_backends():
        message = f"backend: expected one of {', '.join(get_backends())}, auto, got {group!r}"
        raise (NotInitializedError if registry.is_known(group) else InvalidArgumentError)(message)
    return None


get_size = get_world_size


def get_process_group_ranks(group: handles.Group) -> list[int]:
    """Global ranks of the group in group order (torch.distributed.get_process_group_ranks)."""
    return list(handles.core_group(group).ranks)


def get_group_rank(group: handles.Group, global_rank: int) -> int:
    """The group rank of a global rank; raises InvalidArgumentError for a rank outside the group."""
    return group_rank_of(handles.core_group(group), "global_rank", global_rank)


def group_rank_of(members: _C.Group, argument: str, global_rank: int) -> int:
    """As ``get_group_rank``, for a rank that another argument gives."""
    number = whole(argument, global_rank)
    rank: int = members._group_rank(number) if 0 <= number < state.current().launch.size else -1
    if rank < 0:
        message = f"{argument}: expected one of {list(members.ranks)}, got {number}"
        raise InvalidArgumentError(message)
    return rank


def get_global_rank(group: handles.Group, group_rank: int) -> int:
    """The global rank of a group rank; raises InvalidArgumentError for a rank outside the group."""
    return global_rank_of(handles.core_group(group), "group_rank", group_rank)


def global_rank_of(members: _C.Group, argument: str, group_rank: int) -> int:
    """As ``get_global_rank``, for a rank that another argument gives."""
    ranks, number = members.ranks, whole(argument, group_rank)
    if not 0 <= number < len(ranks):
        message = f"{argument}: expected 0 to {len(ranks) - 1}, got {number}"
        raise InvalidArgumentError(message)
    return ranks[number]


def get_backend(group: handles.Group = None) -> str:
    """The group's first backend (torch.distributed.get_backend); get_backends() returns all.

    Raises NotInitializedError if none of the group's backends runs (any more).
    """
    made = handles.core_group(group)
    if not made.backends:
        raise NotInitializedError(f"get_backend: expected a backend of group {made.name()!r}, got none that runs")
    return made.backends[0]


def get_backends(group: handles.Group = None) -> list[str]:
    """Names of the group's backends, in order of preference (MCR-DL paper, Listing 1).

    None: of the job's, which new groups have by default. Other groups may have more, which they name themselves.
    """
    return list(state.current().backends if group is None else handles.core_group(group).backends)


def get_backend_config(group: handles.Group = None) -> str:
    """The group's backends by device, as ``cpu:mpi,cuda:nccl`` (torch.distributed.get_backend_config)."""
    made = handles.core_group(group)
    return ",".join(f"{made._streams(name) or 'cpu'}:{name}" for name in made.backends)


def get_default_backend_for_device(device: str | torch.device) -> str:
    """The first backend for a device, of those that reach all hosts (torch.distributed.get_default_backend_for_device).

    It may be unusable here: ``is_backend_available`` tells. Raises InvalidArgumentError for other devices than cpu and
    cuda.
    """
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError):  # torch knows no such device
        kind = ""
    if kind not in ("cpu", "cuda"):
        message = f"device: expected cpu or cuda, got {device!r}"
        raise InvalidArgumentError(message)
    return registry.first_for(kind)


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """This process's rank on its host, from the launcher (torch.distributed.get_node_local_rank).

    Without a launcher: the fallback, or the index among the host's ranks once the default group is initialized. Raises
    InvalidArgumentError if neither is there.
    """
    launch = launcher.detect()
    local = launcher.number(os.environ, "LOCAL_RANK", -1 if launch.launcher == "none" else launch.local_rank)
    if local >= 0:
        return local
    if fallback_rank is not None:
        return int(fallback_rank)
    if state.is_initialized():
        current = state.current()
        return current.knowledge.same_node(current.launch.rank).index(current.launch.rank)
    message = "LOCAL_RANK is not set; pass fallback_rank, or initialize the default group first"
    raise InvalidArgumentError(message)
