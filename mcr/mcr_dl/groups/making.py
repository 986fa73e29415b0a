# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks: making, splitting and querying them, as in torch.distributed."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist
from torch.distributed import GroupMember

from mcr_dl import _C, _backends, _launch, _runtime, _torch_groups, watch
from mcr_dl._errors import DesyncError, InvalidArgumentError, InvalidTypeError, NotInitializedError

Group = torch_dist.ProcessGroup | _C.Group | None


def _group(group: object) -> _C.Group:
    """The core's group behind the argument of a public function."""
    current = _runtime.state()
    if group is None:
        return current.groups["default"]
    found = _C.group_of(group)
    if found is None:
        message = f"group: expected a process group of mcr_dl or None, got {described(group)}"
        raise InvalidTypeError(message)
    if found._closed:
        message = f"group: expected a living group, got the destroyed {found!r}"
        raise NotInitializedError(message)
    return found


def described(group: object) -> str:
    """Describe a wrong group for an error text (also called by the C++ core)."""
    if not isinstance(group, torch_dist.ProcessGroup):
        return type(group).__name__
    kinds = {device.type: group._get_backend(device).name() for device in group._device_types}
    return "a process group of torch with " + ", ".join(f"{device}:{name}" for device, name in kinds.items())


def _not_a_member(group: object) -> bool:
    return type(group) is int and group == GroupMember.NON_GROUP_MEMBER


def _left_out(group: object, function: str) -> bool:
    """Whether this rank is outside the group; if so, warns as torch does that the function does nothing.

    Raises InvalidTypeError if the argument is not a group.
    """
    if not _not_a_member(group):
        _group(group)
        return False
    warnings.warn(f"Running {function} on a rank which does not belong to the given group.", stacklevel=3)
    return True


def get_rank(group: Group | str = None) -> int:
    """This process's rank in the group, -1 if it is not a member.

    A backend's name stands for the default group (MCR-DL paper, Listing 1). Source: torch.distributed.get_rank.
    """
    if _not_a_member(group):
        return -1
    return _group(_named(group)).rank()


def get_world_size(group: Group | str = None) -> int:
    """The number of ranks in the group, -1 if this process is not a member (torch.distributed.get_world_size)."""
    if _not_a_member(group):
        return -1
    return _group(_named(group)).size()


def _named(group: Group | str) -> Group:
    if not isinstance(group, str):
        return group
    if group != "auto" and _C.canonical(group) not in get_backends():
        message = f"backend: expected one of {', '.join(get_backends())}, auto, got {group!r}"
        raise (NotInitializedError if _backends.is_known(group) else InvalidArgumentError)(message)
    return None


get_size = get_world_size


def get_process_group_ranks(group: Group) -> list[int]:
    """Global ranks of the group in group order (torch.distributed.get_process_group_ranks)."""
    return list(_group(group).ranks)


def get_group_rank(group: Group, global_rank: int) -> int:
    """The group rank of a global rank; raises InvalidArgumentError for a rank outside the group."""
    rank: int = _group(group)._group_rank(global_rank)
    if rank < 0:
        message = f"global_rank: expected one of {get_process_group_ranks(group)}, got {global_rank}"
        raise InvalidArgumentError(message)
    return rank


def get_global_rank(group: Group, group_rank: int) -> int:
    """The global rank of a group rank; raises InvalidArgumentError for a rank outside the group."""
    ranks = get_process_group_ranks(group)
    if not 0 <= group_rank < len(ranks):
        message = f"group_rank: expected 0 to {len(ranks) - 1}, got {group_rank}"
        raise InvalidArgumentError(message)
    return ranks[group_rank]


def get_backend(group: Group = None) -> str:
    """The group's first backend (torch.distributed.get_backend); get_backends() returns all."""
    return _group(group).backends[0]


def get_backends(group: Group = None) -> list[str]:
    """Names of the group's backends (None: of all in use), in order of preference. Source: MCR-DL paper, Listing 1."""
    return list(_runtime.state().backends if group is None else _group(group).backends)


def get_backend_config(group: Group = None) -> str:
    """The group's backends by device, as ``cpu:mpi,cuda:nccl`` (torch.distributed.get_backend_config)."""
    made = _group(group)
    return ",".join(f"{made._streams(name) or 'cpu'}:{name}" for name in made.backends)


def get_default_backend_for_device(device: str | torch.device) -> str:
    """The backend that is tried first for a device (torch.distributed.get_default_backend_for_device).

    Raises InvalidArgumentError for a device that no backend here serves.
    """
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        message = f"device: expected cpu or cuda, got {kind}"
        raise InvalidArgumentError(message)
    return "nccl" if kind == "cuda" else _backends.known_names()[0]


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """This process's rank on its host, from the launcher (torch.distributed.get_node_local_rank).

    Raises InvalidArgumentError if the launcher does not set it and no fallback is given.
    """
    local = _launch.number(os.environ, "LOCAL_RANK", _launch.detect().local_rank)
    if local >= 0:
        return local
    if fallback_rank is None:
        message = "LOCAL_RANK is not set; pass fallback_rank"
        raise InvalidArgumentError(message)
    return int(fallback_rank)


def _check_ranks(ranks: Iterable[int], size: int) -> list[int]:
    checked = [int(rank) for rank in ranks]
    if len(set(checked)) != len(checked):
        message = f"ranks: expected different ranks, got {checked}"
        raise InvalidArgumentError(message)
    for rank in checked:
        if not 0 <= rank < size:
            message = f"ranks: expected 0 to {size - 1}, got {rank}"
            raise InvalidArgumentError(message)
    return checked


def _check_description(text: str | None) -> None:
    """Check a description, which becomes part of a name that other ranks and C libraries see."""
    try:
        usable = "\x00" not in (text or "").encode().decode()
    except UnicodeEncodeError:
        usable = False
    if not usable:
        message = f"group_desc: expected a text without null characters and lone surrogates, got {text!r}"
        raise InvalidArgumentError(message)


def new_group(
    ranks: Iterable[int] | None = None,
    timeout: timedelta | float | None = None,
    backend: str | Iterable[str] | None = None,
    pg_options: Any | None = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: torch.device | None = None,
    sort_ranks: bool = True,
    *,
    mpi_comm: Any | None = None,
) -> Any:
    """Make a group of some of the ranks; every rank of the job calls this, in the same order.

    Args:
        ranks: global ranks of the members; None: all.
        timeout: how long an operation of the group may take, a timedelta or seconds; the default group's by default.
        backend: names as for init_process_group; the default group's by default.
        use_local_synchronization: True: only the members call.
        group_desc: a readable name, which becomes part of the group's name; equal on all ranks.
        sort_ranks: False: group ranks follow the order of ``ranks``.
        mpi_comm: a communicator of mpi4py: its members call, the group takes its ranks and order, and mpi's operations
            run on a duplicate of it.
        pg_options: ``mcr_dl.Options``, whose backends apply where ``backend`` is not given, and whose ``uniform``
            describes torch.distributed's calls on the group; other options are accepted as in torch.
        device_id: accepted as in torch; all groups use the default group's device and streams.

    Returns: the group, or torch.distributed.GroupMember.NON_GROUP_MEMBER on ranks that are not members.

    Raises InvalidArgumentError for wrong ranks or backends. Source: torch.distributed.new_group.
    """
    del device_id
    _check_description(group_desc)
    current = _runtime.state()
    if backend is None and isinstance(pg_options, _C.Options):
        backend = pg_options.backends or None
    names = ([] if backend is None else _backends.parse_for_group(backend)) or list(current.backends)
    limit = current.timeout if timeout is None else _C.timeout(timeout)
    if mpi_comm is not None:
        return _group_of_mpi_comm(mpi_comm, names if backend is not None else None, limit, pg_options)
    members = _check_ranks(range(current.launch.size) if ranks is None else ranks, current.launch.size)
    if sort_ranks:
        members.sort()
    if use_local_synchronization:
        name = _local_name(members)
    else:
        current.groups_made += 1
        name = f"{group_desc or 'group'}-{current.groups_made}"
    if current.launch.rank not in members:
        return GroupMember.NON_GROUP_MEMBER
    return _torch_groups.publish(_runtime.make_group(name, members, names, limit), pg_options)


def _local_name(members: Sequence[int]) -> str:
    digest = hashlib.sha256(str(list(members)).encode()).hexdigest()[:16]
    return f"local-{digest}-{_runtime.state().count(digest)}"


def _group_of_mpi_comm(comm: Any, backends: list[str] | None, timeout: timedelta, options: Any) -> Any:
    if not hasattr(comm, "Get_group") or not hasattr(comm, "handle"):
        message = f"mpi_comm: expected an mpi4py communicator, got {type(comm).__name__}"
        raise InvalidTypeError(message)
    from mpi4py import MPI

    names = ["mpi"] if backends is None else backends
    if "mpi" not in names:
        message = f"backend: expected 'mpi' among the backends of a group with mpi_comm, got {names}"
        raise InvalidArgumentError(message)
    group = comm.Get_group()
    everyone = MPI.COMM_WORLD.Get_group()
    members = list(MPI.Group.Translate_ranks(group, list(range(comm.Get_size())), everyone))
    return _torch_groups.publish(
        _runtime.make_group(_local_name(members), members, names, timeout, mpi_comm=comm.handle), options
    )


def new_subgroups(
    group_size: int | None = None,
    group: Group = None,
    timeout: timedelta | float | None = None,
    backend: str | Iterable[str] | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Divide the default group into subgroups of ``group_size`` neighbours (default: the ranks of one host).

    Returns this rank's subgroup and the list of all. Raises InvalidArgumentError if the sizes do not divide.
    Source: torch.distributed.new_subgroups.
    """
    size = get_world_size(group)
    if group_size is None:
        group_size = _launch.number(os.environ, "LOCAL_WORLD_SIZE", size)
    if group_size < 1 or size % group_size != 0:
        message = f"group_size: expected a divisor of {size}, got {group_size}"
        raise InvalidArgumentError(message)
    ranks = get_process_group_ranks(group)
    parts = [ranks[start : start + group_size] for start in range(0, size, group_size)]
    return new_subgroups_by_enumeration(parts, timeout, backend, pg_options, group_desc)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: timedelta | float | None = None,
    backend: str | Iterable[str] | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Make one group per entry; no rank may be in two (torch.distributed.new_subgroups_by_enumeration).

    Returns this rank's subgroup (None if it is in none) and the list of all.
    """
    if not ranks_per_subgroup_list:
        message = "ranks_per_subgroup_list: expected at least one list of ranks, got none"
        raise InvalidArgumentError(message)
    everyone = [rank for part in ranks_per_subgroup_list for rank in part]
    if len(set(everyone)) != len(everyone):
        message = f"ranks_per_subgroup_list: expected every rank once, got {list(ranks_per_subgroup_list)}"
        raise InvalidArgumentError(message)
    groups = [new_group(part, timeout, backend, pg_options, group_desc=group_desc) for part in ranks_per_subgroup_list]
    mine = [group for group in groups if not _not_a_member(group)]
    return (mine[0] if mine else None), groups


def split_group(
    parent_pg: Group = None,
    split_ranks: list[list[int]] | None = None,
    timeout: timedelta | float | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
    backend: str | Iterable[str] | None = None,
) -> torch_dist.ProcessGroup | None:
    """Split a group: all its members call, with lists of ranks of the parent group.

    Returns this rank's part, or None if it is in none. Raises InvalidArgumentError for lists that overlap or name ranks
    outside the parent. Source: torch.distributed.split_group.
    """
    _check_description(group_desc)
    parent = _group(parent_pg)
    if not split_ranks:
        message = "split_ranks: expected at least one list of ranks, got none"
        raise InvalidArgumentError(message)
    _check_ranks([rank for part in split_ranks for rank in part], parent.size())
    made = _runtime.state().count(f"split {parent.name()}")
    names = ([] if backend is None else _backends.parse_for_group(backend)) or list(parent.backends)
    limit = parent.timeout if timeout is None else _C.timeout(timeout)
    result = None
    for index, part in enumerate(split_ranks):
        if parent.rank() in part:
            name = f"{group_desc or parent.name()}/split-{made}-{index}"
            members = [parent.ranks[rank] for rank in sorted(part)]
            result = _torch_groups.publish(_runtime.make_group(name, members, names, limit), pg_options, parent)
    return result


def destroy_process_group(group: Group = None) -> None:
    """End one group, or the runtime with all groups (None or the default group).

    Completes started operations first, for at most ten seconds, and warns of those that do not complete.
    A rank that is not a member of the group has nothing to end. Raises NotInitializedError outside init and finalize,
    and DesyncError, after all groups have ended, if the ranks made different calls (``MCR_DL_DEBUG=detail``).
    Source: torch.distributed.destroy_process_group.
    """
    if _not_a_member(group):
        return
    members = _group(group)
    everything = members is _C.world()
    desync = watch.compare_last() if everything else ""
    ending = reversed(list(_runtime.state().groups.values())) if everything else [members]
    handles = [_C.handle_of(each) for each in ending]
    default = everything and _torch_groups.is_torch_default(members)
    if desync:
        _runtime.forget()  # pending operations may never complete
    if default:
        torch_dist.destroy_process_group()  # ends the groups of mcr_dl behind torch's
    for handle in [] if default else handles:
        if isinstance(handle, torch_dist.ProcessGroup):
            torch_dist.destroy_process_group(handle)
    if everything and _runtime.is_initialized():
        _runtime.end()
    if desync:
        raise DesyncError(desync)
