# SPDX-License-Identifier: Apache-2.0
"""Collectives on picklable Python objects, as in torch.distributed.

Unpickling runs code that the sender chose: use them only among processes that trust each other.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import torch

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.groups import queries
from mcr_dl.runtime import handles, state

_Group = handles.Group


def _device(group: _Group) -> torch.device:
    """The device for the bytes of objects: the host, unless all backends of the group need device memory."""
    members = handles.core_group(group)
    if members.backends and all(members._streams(name) == "cuda" for name in members.backends):
        return torch.device("cuda", state.current().device)
    return torch.device("cpu")


def _pack(obj: object, group: _Group) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8).to(_device(group))


def _unpack(data: torch.Tensor) -> Any:
    return pickle.loads(data.cpu().numpy().tobytes())


def _numbers(values: list[int], group: _Group) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=_device(group))


def _space(count: int, group: _Group, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, device=_device(group))


def _sizes(group: _Group, mine: int) -> list[int]:
    sizes = _space(queries.get_world_size(group), group, torch.int64)
    # A coalescing manager would leave a blocking call to the end of its block.
    _C.all_gather_single(sizes, _numbers([mine], group), group=group, async_op=True).wait()
    return [int(size) for size in sizes]


def _root(
    members: _C.Group, argument: str, rank: int | None, group_rank: int | None, default: int | None = None
) -> int:
    """The root as a group rank. ``argument``: the name of the one that gives its global rank."""
    by_group = f"group_{argument}"
    found = default if rank is None and group_rank is None else rank
    if found is None and group_rank is not None:
        found = queries.global_rank_of(members, by_group, group_rank)
    elif found is None or group_rank is not None:
        message = f"{argument} and {by_group}: expected one of the two, got {argument}={rank}, {by_group}={group_rank}"
        raise InvalidArgumentError(message)
    return queries.group_rank_of(members, argument, found)


def _expect_list(name: str, value: Sequence[Any] | None, size: int) -> None:
    if value is None or len(value) < size:
        got = "None" if value is None else str(len(value))
        message = f"{name}: expected a list of at least {size} entries (one per rank), got {got}"
        raise InvalidArgumentError(message)


def all_gather_object(object_list: list[Any], obj: Any, group: _Group = None) -> None:
    """Gather every rank's object into ``object_list`` on all ranks (torch.distributed.all_gather_object)."""
    if handles.left_out(group, "all_gather_object"):
        return
    size = queries.get_world_size(group)
    _expect_list("object_list", object_list, size)
    data = _pack(obj, group)
    sizes = _sizes(group, data.numel())
    everything = _space(sum(sizes), group)
    _C.all_gatherv(everything, data, sizes, group=group)
    object_list[:size] = [_unpack(part) for part in torch.split(everything, sizes)]


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: _Group = None,
    group_dst: int | None = None,
) -> None:
    """Gather every rank's object into a list on the root (torch.distributed.gather_object)."""
    if handles.left_out(group, "gather_object"):
        return
    members = handles.core_group(group)
    root = _root(members, "dst", dst, group_dst, default=0)
    if members.rank() == root:
        _expect_list("object_gather_list", object_gather_list, members.size())
    data = _pack(obj, group)
    sizes = _sizes(group, data.numel())
    everything = _space(sum(sizes), group) if members.rank() == root else None
    _C.gatherv(everything, data, members.ranks[root], sizes, group=group)
    if everything is not None and object_gather_list is not None:
        object_gather_list[: len(sizes)] = [_unpack(part) for part in torch.split(everything, sizes)]


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: _Group = None,
    device: torch.device | None = None,
    group_src: int | None = None,
) -> None:
    """Replace the objects in the list with the root's, rank 0's by default (torch's broadcast_object_list)."""
    del device
    if handles.left_out(group, "broadcast_object_list"):
        return
    members = handles.core_group(group)
    root = _root(members, "src", src, group_src, default=0)
    data = _pack(list(object_list), group) if members.rank() == root else _space(0, group)
    header = _numbers([data.numel(), len(object_list)], group)
    _C.broadcast(header, group=group, group_src=root)
    length, entries = (int(value) for value in header)
    if members.rank() != root:
        data = _space(length, group)
    _C.broadcast(data, group=group, group_src=root)
    if entries != len(object_list):
        message = f"object_list: expected {entries} entries as on the root, got {len(object_list)}"
        raise InvalidArgumentError(message)
    object_list[:] = _unpack(data)


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: _Group = None,
    group_src: int | None = None,
) -> None:
    """Put the i-th object of the root's list first into rank i's list (torch.distributed.scatter_object_list).

    Entries of the root's list beyond the group's size are ignored.
    """
    if handles.left_out(group, "scatter_object_list"):
        return
    if not scatter_object_output_list:
        message = "scatter_object_output_list: expected a list of at least one entry, got an empty one"
        raise InvalidArgumentError(message)
    members = handles.core_group(group)
    root = _root(members, "src", src, group_src, default=0)
    is_root = members.rank() == root
    sizes = _space(members.size(), group, torch.int64)
    everything = None
    if is_root:
        _expect_list("scatter_object_input_list", scatter_object_input_list, members.size())
        given = (scatter_object_input_list or [])[: members.size()]  # the other ranks have one size per rank
        parts = [_pack(obj, group) for obj in given]
        sizes = _numbers([part.numel() for part in parts], group)
        everything = torch.cat(parts)
    _C.broadcast(sizes, group=group, group_src=root)
    mine = _space(int(sizes[members.rank()]), group)
    _C.scatterv(mine, everything, members.ranks[root], sizes.tolist(), group=group)
    scatter_object_output_list[0] = _unpack(mine)


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: _Group = None,
    device: torch.device | None = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """Send the objects of a list to one rank (torch.distributed.send_object_list)."""
    del device, use_batch
    if handles.left_out(group, "send_object_list"):
        return
    data = _pack(list(object_list), group)
    peer = _root(handles.core_group(group), "dst", dst, group_dst)
    _C.send(_numbers([data.numel()], group), group=group, group_dst=peer)
    _C.send(data, group=group, group_dst=peer)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: _Group = None,
    device: torch.device | None = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> int:
    """Receive the objects of a list; returns the sender's global rank (torch.distributed.recv_object_list)."""
    del device, use_batch
    if handles.left_out(group, "recv_object_list"):
        return -1
    length = _space(1, group, torch.int64)
    unknown = src is None and group_src is None
    peer = None if unknown else _root(handles.core_group(group), "src", src, group_src)
    sender = _C.recv(length, group=group, group_src=peer)
    data = _space(int(length), group)
    _C.recv(data, sender, group=group)
    received = _unpack(data)
    if len(received) != len(object_list):
        message = f"object_list: expected {len(object_list)} entries, received {len(received)} from rank {sender}"
        raise InvalidArgumentError(message)
    object_list[:] = received
    return int(sender)
