# SPDX-License-Identifier: Apache-2.0
"""Several operations at once: batches of sends and receives, and the coalescing manager."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError
from mcr_dl.groups import queries
from mcr_dl.runtime import handles

_SENDS = (_C.isend, torch_dist.isend)
_RECEIVES = (_C.irecv, torch_dist.irecv)
_ARRAYS = ("__dlpack__", "__array_interface__")  # attributes, of which tensors and arrays have one


class P2POp:
    """One send or receive of a batch (torch.distributed.P2POp, for groups of mcr_dl).

    Args:
        op: isend or irecv, of mcr_dl or of torch.distributed.
        tensor: dense tensor to send or to receive into.
        peer: the peer's global rank; give this or group_peer.
        group: group to work in; None: the default group.
        tag: number that matches a send with its receive.
        group_peer: the peer's rank in the group; give this or peer.
        backend: as for isend.

    Raises InvalidTypeError and InvalidArgumentError for a wrong argument; batch_isend_irecv checks the tensor's memory.
    """

    def __init__(
        self,
        op: Callable[..., Any],
        tensor: torch.Tensor,
        peer: int | None = None,
        group: handles.Group = None,
        tag: int = 0,
        group_peer: int | None = None,
        *,
        backend: str | None = None,
    ) -> None:
        if op not in _SENDS and op not in _RECEIVES:
            message = f"op: expected isend or irecv, got {op!r}"
            raise InvalidTypeError(message)
        if (peer is None) == (group_peer is None):
            message = f"peer and group_peer: expected one of the two, got peer={peer}, group_peer={group_peer}"
            raise InvalidArgumentError(message)
        if not any(hasattr(tensor, name) for name in _ARRAYS):
            message = f"tensor: expected a torch.Tensor, a NumPy array or a DLPack object, got {type(tensor).__name__}"
            raise InvalidTypeError(message)
        members = None if handles.not_a_member(group) else handles.core_group(group)
        self.op = _C.isend if op in _SENDS else _C.irecv
        self.tensor = tensor
        self.group = group
        self.tag = tag
        self.backend = backend
        if members is not None and group_peer is not None:
            peer = queries.global_rank_of(members, "group_peer", group_peer)
        elif members is not None and peer is not None:
            group_peer = queries.group_rank_of(members, "peer", peer)
        self.peer, self.group_peer = peer, group_peer

    def _check(self) -> None:
        """Raise what ``start`` would raise for wrong arguments, but for those that only the library refuses."""
        function: Any = self.op  # its annotation does not show this attribute
        function._check(self.tensor, self.peer, self.group, self.tag, backend=self.backend)

    def start(self) -> _C.Work:
        """Issue the operation."""
        return self.op(self.tensor, self.peer, self.group, self.tag, backend=self.backend)

    def __repr__(self) -> str:
        return f"P2POp({self.op.__name__}, {tuple(self.tensor.shape)}, peer={self.peer}, tag={self.tag})"


def batch_isend_irecv(p2p_op_list: Sequence[Any]) -> list[_C.Work]:
    """Start all sends and receives of the list and return their works, in the order of the list.

    Entries for groups that this rank does not belong to are left out, with a warning. Raises InvalidTypeError if an
    entry is not a P2POp, InvalidArgumentError inside a coalescing block of the thread, mcr_dl's or torch's, and as
    isend and irecv do; a wrong argument before any entry has started. Source: torch.distributed.batch_isend_irecv.
    """
    entries = [_own(entry, position) for position, entry in enumerate(p2p_op_list)]
    operations = [entry for entry in entries if not handles.left_out(entry.group, entry.op.__name__)]
    for operation in operations:
        operation._check()
    with _batch():
        return [operation.start() for operation in operations]


def _own(entry: Any, position: int) -> P2POp:
    if isinstance(entry, P2POp):
        return entry
    if isinstance(entry, torch_dist.P2POp):
        return P2POp(entry.op, entry.tensor, entry.peer, entry.group, entry.tag)
    message = f"p2p_op_list[{position}]: expected a P2POp of mcr_dl or torch, got {type(entry).__name__}"
    raise InvalidTypeError(message)


@contextmanager
def _batch() -> Iterator[None]:
    """Start the block's operations together, on libraries whose messages would otherwise wait for each other."""
    _C.begin_batch()
    try:
        yield
    finally:
        _C.end_batch()


class CoalescingManager:
    """The object that the coalescing manager yields. It holds the works of the calls in its block."""

    def __init__(self) -> None:
        self.works: list[_C.Work] = []

    def append(self, work: _C.Work) -> None:
        """Add a work to wait for."""
        self.works.append(work)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all works and return True; ``timeout`` is that of all together. Raises as a work does."""
        end = None if timeout is None else time.monotonic() + timeout.total_seconds()
        for work in self.works:
            if end is None:
                work.wait()
            else:
                work.wait(timedelta(seconds=max(end - time.monotonic(), 0.001)))  # 0 would be the call's own
        return True

    def is_completed(self) -> bool:
        """Whether all works have ended."""
        return all(work.is_completed() for work in self.works)


_active = threading.local()


@contextmanager
def coalescing_manager(
    group: handles.Group = None, device: torch.device | None = None, async_ops: bool = False
) -> Iterator[CoalescingManager]:
    """Start the calls of the block together and wait for them at its end, or in ``manager.wait()`` if ``async_ops``.

    These are the group's asynchronous calls, which also return their works, and its all_reduces, all_gathers and
    reduce_scatters of one tensor. On devices they are all calls but ``recv`` and ``barrier``. Other calls are done as
    usual; on a device's streams they are refused, since the library starts all calls at the end of the block. All ranks
    use it around the same calls. On a rank that is not a member of the group, a block holds no calls. Raises
    InvalidArgumentError if blocks are nested, as ``batch_isend_irecv`` does in a block.
    Source: torch.distributed._coalescing_manager.
    """
    del device
    where = None if handles.not_a_member(group) else handles.core_group(group)
    if getattr(_active, "manager", None) is not None:
        message = "coalescing managers cannot be nested"
        raise InvalidArgumentError(message)
    manager = CoalescingManager()
    works = manager.works
    _active.manager = manager
    _C.set_coalescing(None if where is None else works, where)
    try:
        with _batch():
            yield manager
    finally:
        _C.set_coalescing(None, None)
        _active.manager = None
        if manager.works is not works:  # the program has put another list there
            manager.works = [*works, *manager.works]
    if not async_ops:
        manager.wait()
