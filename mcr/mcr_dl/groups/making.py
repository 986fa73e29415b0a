# SPDX-License-Identifier: Apache-2.0
"""Making and splitting groups of ranks, as in torch.distributed."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist
from torch.distributed import GroupMember

from mcr_dl import _C
from mcr_dl.base.arguments import whole
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError
from mcr_dl.groups import factory, group_options, torch_groups
from mcr_dl.libraries import registry
from mcr_dl.runtime import attempts, handles, lines, state

_LONGEST = 1000  # bytes of a description: torch's store refuses keys above 8 KiB


def _check_ranks(ranks: Iterable[Any], size: int, what: str = "ranks") -> list[int]:
    try:
        given = list(ranks)
    except TypeError:
        message = f"{what}: expected a list of whole numbers, got {ranks!r}"
        raise InvalidTypeError(message) from None
    checked = [whole(what, rank) for rank in given]
    if len(set(checked)) != len(checked):
        message = f"{what}: expected each rank once, got {checked}"
        raise InvalidArgumentError(message)
    for rank in checked:
        if not 0 <= rank < size:
            message = f"{what}: expected 0 to {size - 1}, got {rank}"
            raise InvalidArgumentError(message)
    return checked


def _check_description(text: Any) -> None:
    """Check a description, which becomes part of a name that other ranks, C libraries and keys of the store have."""
    if text is not None and not isinstance(text, str):
        message = f"group_desc: expected a text or None, got {text!r}"
        raise InvalidTypeError(message)
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
            describes torch.distributed's calls on the group; options of torch's own backends have no effect.
        device_id: accepted as in torch; all groups use the default group's device and streams.

    Returns: the group, or torch.distributed.GroupMember.NON_GROUP_MEMBER on ranks that are not members.

    Raises InvalidArgumentError for wrong ranks or backends, InvalidTypeError for ranks that are no whole numbers
    and options of another class, BackendUnavailableError if a backend cannot be used, NotInitializedError for an MPI
    library that was not named at init_process_group, as it starts on all ranks together, UnsupportedError for an order
    of ranks that torch cannot make.
    Source: torch.distributed.new_group.
    """
    del device_id
    current = state.current()
    local = use_local_synchronization or mpi_comm is not None
    # The group is counted before anything else can fail on this rank alone: later groups have equal names then.
    current.groups_made += not local
    number = current.groups_made
    if mpi_comm is not None:
        members = _members_of(mpi_comm)
    else:
        members = _check_ranks(range(current.launch.size) if ranks is None else ranks, current.launch.size)
        if sort_ranks:
            members.sort()
    name = _local_name(members) if local else f"{group_desc or 'group'}-{number}"
    _check_description(group_desc)
    names = group_options.named(backend, pg_options)
    limit = current.default_timeout if timeout is None else _C.timeout(timeout)
    torch_groups.require_order(members)
    if mpi_comm is not None:
        names = _taking_communicators(names)
    elif current.launch.rank not in members:
        return GroupMember.NON_GROUP_MEMBER
    else:
        names = names or lines.that_fit(current.backends, members)
    handle = None if mpi_comm is None else mpi_comm.handle
    return torch_groups.publish(factory.make_group(name, members, names, limit, mpi_comm=handle), pg_options)


def _local_name(members: Sequence[int]) -> str:
    digest = hashlib.sha256(str(list(members)).encode()).hexdigest()[:16]
    return attempts.next_name(f"local/{digest}", lambda number: f"local-{digest}-{number}", (members or [0])[0])


def _members_of(comm: Any) -> list[int]:
    """Global ranks of a communicator of mpi4py, in its order."""
    if not hasattr(comm, "Get_group") or not hasattr(comm, "handle"):
        message = f"mpi_comm: expected an mpi4py communicator, got {type(comm).__name__}"
        raise InvalidTypeError(message)
    from mpi4py import MPI

    everyone = MPI.COMM_WORLD.Get_group()
    return list(MPI.Group.Translate_ranks(comm.Get_group(), list(range(comm.Get_size())), everyone))


def _taking_communicators(names: list[str]) -> list[str]:
    """The backends of a group with a communicator of mpi4py; without names, those that can work on it."""
    owners = registry.taking_communicators()
    if names and not set(owners) & set(names):
        message = (
            f"backend: expected {', '.join(map(repr, owners))} among the backends of a group with mpi_comm, got {names}"
        )
        raise InvalidArgumentError(message)
    return names or owners


def new_subgroups(
    group_size: int | None = None,
    group: handles.Group = None,
    timeout: timedelta | float | None = None,
    backend: str | Iterable[str] | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Divide a group (None: the default group) into subgroups of ``group_size`` consecutive ranks.

    The members of the group call this; another rank gets (None, []), with a warning. By default a subgroup has the
    ranks of one host, and the timeout of the group that is divided and those of its backends that fit.

    Returns this rank's subgroup and the list of all. Raises InvalidArgumentError if ``group_size`` does not divide the
    group's size, and without a size if the hosts have different numbers of ranks or their ranks are not consecutive,
    InvalidTypeError if it is no whole number, and the errors of ``new_group`` for the backends.
    Source: torch.distributed.new_subgroups.
    """
    if handles.left_out(group, "new_subgroups"):
        return None, []
    parent = handles.core_group(group)
    number = _count_parts(parent)
    size, ranks = parent.size(), list(parent.ranks)
    length = _ranks_per_host(ranks) if group_size is None else whole("group_size", group_size)
    if length < 1 or size % length != 0:
        message = f"group_size: expected a divisor of the group's size ({size}), got {length}"
        raise InvalidArgumentError(message)
    parts = [sorted(ranks[start : start + length]) for start in range(0, size, length)]
    _check_description(group_desc)
    name = f"{parent.name()}/{group_desc or 'sub'}-{number}"
    return _parts(name, parts, timeout, backend, pg_options, parent)


def _count_parts(parent: _C.Group) -> int:
    """The number of this call among those that divide the group: equal on all its ranks, which make the same calls.

    Count before anything can fail on this rank alone: later parts have equal names then.
    """
    return state.current().count("split", parent.name())


def _parts(
    name: str,
    parts: list[list[int]],
    timeout: timedelta | float | None,
    backend: str | Iterable[str] | None,
    pg_options: Any,
    parent: _C.Group | None = None,
) -> tuple[Any, list[Any]]:
    """Make the group of these parts (global ranks) that has this rank, and return it and the list of all.

    ``parent``: the group whose backends, timeout and form the parts have by default, in place of the job's.
    """
    current = state.current()
    names = group_options.named(backend, pg_options)
    usual = current.default_timeout if parent is None else parent.timeout
    limit = usual if timeout is None else _C.timeout(timeout)
    mine: Any = None
    groups: list[Any] = []
    for index, members in enumerate(parts):
        groups.append(GroupMember.NON_GROUP_MEMBER)
        if current.launch.rank in members:
            fitting = names or lines.that_fit(current.backends if parent is None else parent.backends, members)
            made = factory.make_group(f"{name}-{index}", members, fitting, limit)
            mine = groups[-1] = torch_groups.publish(made, pg_options, parent)
    return mine, groups


def _ranks_per_host(ranks: Sequence[int]) -> int:
    nodes = state.current().knowledge.nodes
    hosts = [nodes[rank] for rank in ranks]
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

    Every rank of the job calls this. Returns this rank's subgroup (None if it is in none) and the list of all. Raises
    InvalidArgumentError and InvalidTypeError for wrong lists, and the errors of ``new_group`` for the backends.
    """
    parent = handles.core_group(None)
    number = _count_parts(parent)
    parts = _check_lists(ranks_per_subgroup_list, parent.size(), "ranks_per_subgroup_list")
    _check_description(group_desc)
    name = f"{parent.name()}/{group_desc or 'sub'}-{number}"
    return _parts(name, parts, timeout, backend, pg_options)


def _check_lists(given: Any, size: int, what: str) -> list[list[int]]:
    """Lists of ranks below ``size``, each of them sorted; no rank is in two."""
    try:
        parts = [] if given is None else [list(part) for part in given]
    except TypeError:
        message = f"{what}: expected a list of lists of ranks, got {given!r}"
        raise InvalidTypeError(message) from None
    if not parts:
        message = f"{what}: expected at least one list of ranks, got none"
        raise InvalidArgumentError(message)
    checked = iter(_check_ranks([rank for part in parts for rank in part], size, what))
    return [sorted(itertools.islice(checked, len(part))) for part in parts]


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
    outside the parent, and the errors of ``new_group`` for the backends. Source: torch.distributed.split_group.
    """
    parent = handles.core_group(parent_pg)
    made = _count_parts(parent)
    _check_description(group_desc)
    parts = _check_lists(split_ranks, parent.size(), "split_ranks")
    # With the parent's name: another parent may be split with the same description.
    name = f"{parent.name()}/{group_desc or 'split'}-{made}"
    members = [[parent.ranks[rank] for rank in part] for part in parts]
    mine: torch_dist.ProcessGroup | None = _parts(name, members, timeout, backend, pg_options, parent)[0]
    return mine
