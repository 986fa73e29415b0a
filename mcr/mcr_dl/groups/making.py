# SPDX-License-Identifier: Apache-2.0
"""Making and splitting groups of ranks, as in torch.distributed."""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist
from torch.distributed import GroupMember

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError
from mcr_dl.groups import factory, torch_groups
from mcr_dl.groups.queries import get_process_group_ranks, get_world_size
from mcr_dl.libraries import registry
from mcr_dl.runtime import handles, lines, state

_LONGEST = 1000  # bytes of a description: torch's store refuses keys above 8 KiB


def _check_ranks(ranks: Iterable[int], size: int, what: str = "ranks") -> list[int]:
    given = list(ranks)
    try:
        checked = list(map(operator.index, given))
    except TypeError:
        message = f"{what}: expected whole numbers, got {given}"
        raise InvalidTypeError(message) from None
    if len(set(checked)) != len(checked):
        message = f"{what}: expected each rank once, got {checked}"
        raise InvalidArgumentError(message)
    for rank in checked:
        if not 0 <= rank < size:
            message = f"{what}: expected 0 to {size - 1}, got {rank}"
            raise InvalidArgumentError(message)
    return checked


def _check_description(text: str | None) -> None:
    """Check a description, which becomes part of a name that other ranks, C libraries and keys of the store have."""
    try:
        encoded = (text or "").encode()
    except UnicodeEncodeError:
        encoded = b"\x00"
    if b"\x00" in encoded:
        message = f"group_desc: expected a text without null characters and lone surrogates, got {text!r}"
        raise InvalidArgumentError(message)
    if len(encoded) > _LONGEST:
        message = f"group_desc: expected at most {_LONGEST} bytes of UTF-8, got {len(encoded)}"
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
        backend: names as for init_process_group; by default those of the default group that fit the ranks, and within
            one host those of its hierarchies, such as shm; with ``mpi_comm`` mpi alone.
        use_local_synchronization: True: only the members call.
        group_desc: a readable name of at most 1000 bytes, which becomes part of the group's name; equal on all ranks.
            It has no effect with ``use_local_synchronization`` or ``mpi_comm``.
        sort_ranks: False: group ranks follow the order of ``ranks``, if torch's ``new_group`` has this argument.
        mpi_comm: a communicator of mpi4py: its members call, the group takes its ranks and order, and mpi's operations
            run on a duplicate of it.
        pg_options: ``mcr_dl.Options``, whose backends apply where ``backend`` is not given, and whose ``uniform``
            describes torch.distributed's calls on the group; other options are accepted as in torch.
        device_id: accepted as in torch; all groups use the default group's device and streams.

    Returns: the group, or torch.distributed.GroupMember.NON_GROUP_MEMBER on ranks that are not members.

    Raises InvalidArgumentError for wrong ranks or backends, InvalidTypeError for ranks that are no whole numbers,
    BackendUnavailableError if a backend cannot be used, UnsupportedError for an order of ranks that torch cannot make.
    Source: torch.distributed.new_group.
    """
    del device_id
    current = state.current()
    if mpi_comm is None and not use_local_synchronization:
        current.groups_made += 1  # before anything can fail on this rank alone: later groups have equal names then
    number = current.groups_made
    _check_description(group_desc)
    names = _named(backend, pg_options)
    limit = current.timeout if timeout is None else _C.timeout(timeout)
    if mpi_comm is not None:
        return _group_of_mpi_comm(mpi_comm, names or None, limit, pg_options)
    members = _check_ranks(range(current.launch.size) if ranks is None else ranks, current.launch.size)
    if sort_ranks:
        members.sort()
    torch_groups.require_order(members)
    name = _local_name(members) if use_local_synchronization else f"{group_desc or 'group'}-{number}"
    if current.launch.rank not in members:
        return GroupMember.NON_GROUP_MEMBER
    names = names or lines.that_fit(current.backends, members)
    return torch_groups.publish(factory.make_group(name, members, names, limit), pg_options)


def _local_name(members: Sequence[int]) -> str:
    digest = hashlib.sha256(str(list(members)).encode()).hexdigest()[:16]
    return f"local-{digest}-{state.current().count_at_store(f'local/{digest}')}"


def _group_of_mpi_comm(comm: Any, backends: list[str] | None, timeout: timedelta, options: Any) -> Any:
    if not hasattr(comm, "Get_group") or not hasattr(comm, "handle"):
        message = f"mpi_comm: expected an mpi4py communicator, got {type(comm).__name__}"
        raise InvalidTypeError(message)
    from mpi4py import MPI

    owners = registry.taking_communicators()
    names = owners if backends is None else backends
    if not set(owners) & set(names):
        message = (
            f"backend: expected {', '.join(map(repr, owners))} among the backends of a group with mpi_comm, got {names}"
        )
        raise InvalidArgumentError(message)
    group = comm.Get_group()
    everyone = MPI.COMM_WORLD.Get_group()
    members = list(MPI.Group.Translate_ranks(group, list(range(comm.Get_size())), everyone))
    torch_groups.require_order(members)
    return torch_groups.publish(
        factory.make_group(_local_name(members), members, names, timeout, mpi_comm=comm.handle), options
    )


def new_subgroups(
    group_size: int | None = None,
    group: handles.Group = None,
    timeout: timedelta | float | None = None,
    backend: str | Iterable[str] | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Divide a group (None: the default group) into subgroups of ``group_size`` consecutive ranks.

    By default a subgroup has the ranks of one host. Returns this rank's subgroup and the list of all. Raises
    InvalidArgumentError if ``group_size`` does not divide the group's size, and without a size if the hosts have
    different numbers of ranks or their ranks are not consecutive.
    Source: torch.distributed.new_subgroups.
    """
    size = get_world_size(group)
    if group_size is None:
        group_size = _ranks_per_host(get_process_group_ranks(group))
    if group_size < 1 or size % group_size != 0:
        message = f"group_size: expected a divisor of the group's size ({size}), got {group_size}"
        raise InvalidArgumentError(message)
    ranks = get_process_group_ranks(group)
    parts = [ranks[start : start + group_size] for start in range(0, size, group_size)]
    return new_subgroups_by_enumeration(parts, timeout, backend, pg_options, group_desc)


def _ranks_per_host(ranks: Sequence[int]) -> int:
    knowledge = state.current().knowledge
    assert knowledge is not None
    hosts = [knowledge.nodes[rank] for rank in ranks]
    sizes = [len(list(run)) for _, run in itertools.groupby(hosts)]
    if len(sizes) != len(set(hosts)) or len(set(sizes)) != 1:
        message = f"group_size: expected a number, as the ranks lie on hosts {hosts}, got None"
        raise InvalidArgumentError(message)
    return sizes[0]


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
    mine = [group for group in groups if not handles.not_a_member(group)]
    return (mine[0] if mine else None), groups


def _named(backend: str | Iterable[str] | None, pg_options: Any) -> list[str]:
    """The backends that a call names, by itself or in mcr_dl's options; empty if it names none."""
    if backend is None and isinstance(pg_options, _C.Options):
        backend = pg_options.backends or None
    return [] if backend is None else registry.parse_for_group(backend)


def split_group(
    parent_pg: handles.Group = None,
    split_ranks: list[list[int]] | None = None,
    timeout: timedelta | float | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
    backend: str | Iterable[str] | None = None,
) -> torch_dist.ProcessGroup | None:
    """Split a group: all its members call, with lists of ranks of the parent group.

    ``backend`` and ``pg_options``: as of ``new_group``; by default, the parts have the parent's backends that fit.

    Returns this rank's part, or None if it is in none. Raises InvalidArgumentError for lists that overlap or name ranks
    outside the parent, BackendUnavailableError if a backend cannot be used. Source: torch.distributed.split_group.
    """
    parent = handles.core_group(parent_pg)
    made = state.current().count(f"split {parent.name()}")  # before anything can fail on this rank alone
    _check_description(group_desc)
    if not split_ranks:
        message = "split_ranks: expected at least one list of ranks, got none"
        raise InvalidArgumentError(message)
    _check_ranks([rank for part in split_ranks for rank in part], parent.size(), "split_ranks")
    names = _named(backend, pg_options)
    limit = parent.timeout if timeout is None else _C.timeout(timeout)
    result = None
    for index, part in enumerate(split_ranks):
        if parent.rank() in part:
            # With the parent's name: another parent may be split with the same description.
            name = f"{parent.name()}/{group_desc or 'split'}-{made}-{index}"
            members = [parent.ranks[rank] for rank in sorted(part)]
            fitting = names or lines.that_fit(parent.backends, members)
            result = torch_groups.publish(factory.make_group(name, members, fitting, limit), pg_options, parent)
    return result
