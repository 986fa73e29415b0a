# SPDX-License-Identifier: Apache-2.0
"""The meeting point of the ranks: the store of a launch, for ``init_process_group`` and for torch's ``env://``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeGuard
from urllib.parse import parse_qsl, urlsplit

import torch
import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.base import launcher
from mcr_dl.base.errors import (
    BackendUnavailableError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    InvalidTypeError,
)
from mcr_dl.base.stores import STORE_ERRORS
from mcr_dl.libraries import registry

# Stores by meeting point, kept until the process ends: other ranks may still read rank 0's, or come back to it.
_stores: dict[tuple[object, ...], torch_dist.Store] = {}


def _store_over_mpi(launch: launcher.Launch, timeout: timedelta) -> torch_dist.Store:
    """The store under mpiexec, which sets no meeting point: rank 0 opens one and broadcasts its address over MPI."""
    try:
        name = registry.rendezvous()
        path = registry.load(name)
    except BackendUnavailableError as error:
        message = f"MASTER_ADDR and MASTER_PORT are not set, and MPI cannot agree on them: {error}"
        raise BackendUnavailableError(message) from error
    group = _C.Group("bootstrap", list(range(launch.size)), launch.rank, timeout)
    address = torch.zeros(256, dtype=torch.uint8, device="cpu")
    store = None
    try:
        try:
            group._connect(name, path, None)
        finally:
            registry.describe(name).started()
        if launch.rank == 0:
            text, store = launcher.listen(launch.size, timeout)
            address[: len(text)] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        _C.broadcast(address, src=0, group=group, backend=name)
    finally:
        group._close()
    if store is not None:
        return store
    host, _, port = bytes(address.tolist()).rstrip(b"\0").decode().rpartition(":")
    return launcher.tcp_store(host, int(port), launch.rank, launch.size, timeout)


def _is_named(init_method: str | None) -> bool:
    """Whether the program or the environment names the meeting point."""
    named = "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ
    return named or init_method not in (None, "", "env://")


def _rendezvous(launch: launcher.Launch, init_method: str | None, timeout: timedelta) -> torch_dist.Store:
    launcher.make_room(launch)
    if _is_named(init_method):
        store: torch_dist.Store
        url = init_method or "env://"
        store, _, _ = next(iter(torch_dist.rendezvous(url, launch.rank, launch.size, timeout=timeout)))
        return store
    if launch.launcher == "none":
        return torch_dist.HashStore()
    if launch.launcher.startswith("mpiexec"):
        return _store_over_mpi(launch, timeout)
    if launch.launcher == "srun":
        return launcher.slurm_store(launch, timeout)
    message = "rank and size are set, but not where the ranks meet: set MASTER_ADDR and MASTER_PORT"
    raise InvalidArgumentError(message)


@contextmanager
def _named_timeouts(problem: str, *, unreachable: bool = False) -> Iterator[None]:
    """Raise CollectiveTimeoutError for the block's timeouts, and, with ``unreachable``, for errors of the network."""
    try:
        yield
    except torch_dist.DistError as error:
        told = str(error).partition("\n")[0]
        if "timed out" not in told.lower() and not (unreachable and isinstance(error, torch_dist.DistNetworkError)):
            raise
        message = f"init_process_group: timed out: {problem}: {told}"
        raise CollectiveTimeoutError(message) from error


@contextmanager
def named_end() -> Iterator[None]:
    """Raise CollectiveTimeoutError if the store ends in the block, as its server does where rank 0 gives up."""
    try:
        yield
    except torch_dist.DistNetworkError as error:
        told = str(error).partition("\n")[0]
        message = (
            f"init_process_group: timed out: the job's store cannot be reached any more, as the process that holds it "
            f"has given up or ended: {told}"
        )
        raise CollectiveTimeoutError(message) from error


def _answers(store: torch_dist.Store) -> bool:
    try:
        store.check(["answers"])
    except STORE_ERRORS:
        return False
    return True


def meet(launch: launcher.Launch, init_method: str | None, timeout: timedelta) -> torch_dist.Store:
    """The store of the launch; reuses the store of an earlier init at the same point. Every rank calls this.

    Raises CollectiveTimeoutError if ranks are missing, or if rank 0 cannot be reached.
    """
    address = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    point = (launch, init_method, *address)
    # Rank 0 may have given up before, and its store with it. Over MPI the ranks can only meet together.
    alone = _is_named(init_method) or not launch.launcher.startswith("mpiexec")
    if point in _stores and alone and not _answers(_stores[point]):
        del _stores[point]
    if point not in _stores:
        where = init_method or ":".join(filter(None, address)) or "the launcher's address"
        # Rank 0's own errors of the network are those of its address.
        with _named_timeouts(f"the {launch.size} ranks have not met at {where}", unreachable=launch.rank != 0):
            _stores[point] = _rendezvous(launch, init_method, timeout)
    _stores[point].set_timeout(timeout)
    return _stores[point]


def names_ranks(url: Any) -> TypeGuard[str]:
    """Whether a rendezvous URL gives this process's rank: in its query, or by a handler that the program registered.

    Raises InvalidTypeError if it is no text.
    """
    if url is not None and not isinstance(url, str):
        message = f"init_method: expected a URL as a text, got {url!r}"
        raise InvalidTypeError(message)
    parts = urlsplit(url or "env://")
    return parts.scheme not in ("env", "tcp", "file") or "rank=" in parts.query or "world_size=" in parts.query


def _require_rank(rank: str, size: str) -> None:
    """Raise InvalidArgumentError unless the rank that a URL gives is one of the job's: it would wait for the others."""
    if not all(re.fullmatch(r"-?[0-9]{1,18}", each) for each in (rank, size)):
        message = f"init_method: expected whole numbers as rank and world_size, got {rank!r} and {size!r}"
        raise InvalidArgumentError(message)
    if not 0 <= int(rank) < int(size):
        message = f"init_method: expected a rank from 0 to {int(size) - 1}, got {rank}"
        raise InvalidArgumentError(message)


def meet_at(url: str, rank: int, world_size: int, timeout: timedelta) -> tuple[launcher.Launch, torch_dist.Store]:
    """The launch and the store at such a URL; ``rank`` and ``world_size`` are the caller's, or -1.

    Raises InvalidArgumentError for a rank outside the job: before it connects, if the URL says so by itself.
    """
    stated = dict(parse_qsl(urlsplit(url).query))
    if {"rank", "world_size"} <= stated.keys():
        _require_rank(stated["rank"], stated["world_size"])
    with _named_timeouts(f"the ranks have not met at {url}"):
        store, rank, size = next(iter(torch_dist.rendezvous(url, rank, world_size, timeout=timeout)))
    launch = launcher.stated(rank, size)
    store.set_timeout(timeout)
    _stores[url, rank, size] = store
    launcher.make_room(launch)
    return launch, store


def meet_for_torch(timeout: timedelta, world_size: int) -> Iterator[tuple[torch_dist.Store, int, int]] | None:
    """The result of torch's ``env://`` under mpiexec and srun; None if no launcher started this process.

    ``world_size`` is the caller's, or -1: the launcher's. Raises InvalidArgumentError on ranks that are not in it.
    """
    launch = launcher.detect()
    if launch.launcher == "none":
        return None
    if world_size >= 0:
        launch = launcher.stated(launch.rank, world_size)
    store = meet(launch, None, timeout)
    turn = store.add(f"torch-env/{launch.rank}", 1)
    return iter([(torch_dist.PrefixStore(f"torch-env/{turn}", store), launch.rank, launch.size)])
