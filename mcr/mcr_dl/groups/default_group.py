# SPDX-License-Identifier: Apache-2.0
"""The default group: starting the job, waiting for its operations, ending it or one of its groups."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist

from mcr_dl import _C, watch
from mcr_dl.base.errors import CollectiveTimeoutError, DesyncError, NotInitializedError
from mcr_dl.base.warning import warn
from mcr_dl.groups import factory, lifecycle, torch_groups
from mcr_dl.libraries import registry
from mcr_dl.runtime import communicators, core_groups, handles, state


def init_process_group(
    backend: str | Iterable[str] | None = None,
    init_method: str | None = None,
    timeout: timedelta | float | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: torch_dist.Store | None = None,
    group_name: str = "",
    pg_options: Any | None = None,
    device_id: torch.device | int | None = None,
    _ranks: list[int] | None = None,
    *,
    tuning_table: str | os.PathLike[str] | None = None,
    passes: Iterable[Any] | None = None,
) -> None:
    """Start the runtime: every rank of the job calls this once, with equal arguments.

    The default group is torch.distributed's too, unless torch already has one.

    Args:
        backend: one name, a list of names in order of preference, ``"cpu:mpi"`` style pairs, or ``"auto"`` for mpi,
            nccl, gloo and shm where all ranks can use them, and in jobs of several hosts for hierarchies and stripes of
            these; None and ``"mcr"`` stand for those of ``pg_options``, else ``MCR_DL_BACKENDS``, else auto.
        init_method: a torch rendezvous URL, also one that has the rank or is served by a handler of the program's own;
            by default the launcher's environment (torchrun, mpiexec, srun).
        timeout: how long an operation may take, a timedelta or seconds; torch's 30 minutes by default.
        world_size: the number of ranks, for programs without a launcher, or to replace the launcher's.
        rank: this process's rank, for programs without a launcher, or to replace the launcher's.
        store: a torch store that all ranks can reach, in place of ``init_method``; give rank and world_size with it.
        group_name: accepted as in torch, where it has no effect either.
        device_id: this process's CUDA device; by default the current one.
        _ranks: accepted as in torch, where it only names the group.
        pg_options: torch's ``ProcessGroupNCCL.Options``, of which ``is_high_priority_stream`` is used: it gives the
            streams of asynchronous calls high priority. Or ``mcr_dl.Options``; ``backend`` names the same
            backends as these, if both name some.
        tuning_table: the file that ``auto`` uses, or ``"none"``; by default the one in ``MCR_DL_TUNING_TABLE``, else
            this machine's in the user's cache. Rank 0's applies to all ranks. If none is named and the cache has no
            measurements of this scale, the ranks measure for up to three seconds.
        passes: the passes of this and every later group, as for ``set_passes``; by default those in
            ``MCR_DL_PASSES``.

    Raises:
        InvalidArgumentError: an argument or variable is wrong or differs between ranks, or the runtime already runs.
        InvalidTypeError: an argument of this rank is of a wrong type; the others raise InvalidArgumentError.
        BackendUnavailableError: some rank cannot use a named backend, or no backend can be used; raised on all ranks.

    Source: torch.distributed.init_process_group.
    """
    del group_name, _ranks
    lifecycle.start(
        backend,
        init_method=init_method,
        timeout=timeout,
        world_size=world_size,
        rank=rank,
        store=store,
        pg_options=pg_options,
        device_id=device_id,
        tuning_table=tuning_table,
        passes=passes,
    )
    try:
        torch_groups.publish(state.current().world, pg_options)
    except BaseException as error:
        core_groups.forget(error)
        raise


def destroy_process_group(group: handles.Group = None) -> None:
    """End one group, or the runtime with all groups (None or the default group).

    Completes started operations first, for at most ten seconds, and warns of those that do not complete.
    A rank that is not a member of the group has nothing to end. Raises NotInitializedError before init, after finalize
    and in a forked process, and DesyncError, after all groups have ended, if the ranks made different calls
    (``MCR_DL_DEBUG=detail``).
    Source: torch.distributed.destroy_process_group.
    """
    watch.refuse_fork()
    if handles.not_a_member(group):
        return
    where = handles.core_group(group)
    everything = where is _C.world()
    state.run_endings(None if everything else where.name())
    desync = watch.compare_last() if everything else ""
    ending = reversed(list(state.current().groups.values())) if everything else [where]
    published = [(each, _C.handle_of(each)) for each in ending]
    default = everything and torch_groups.is_torch_default(where)
    if desync:
        lifecycle.abandon()  # pending operations may never complete
    if default:
        torch_dist.destroy_process_group()  # ends the groups of mcr_dl behind torch's
    for each, handle in [] if default else published:
        if torch_groups.is_registered(handle):
            torch_dist.destroy_process_group(handle)
        elif not everything:
            torch_groups.on_shutdown(each)
    if everything and state.has_begun():
        lifecycle.end()
    if desync:
        raise DesyncError(desync)


def finalize(backends: str | Iterable[str] | None = None) -> None:
    """End the named backends (None and "auto": all backends and the runtime). Source: MCR-DL paper, Listing 1."""
    watch.refuse_fork()
    current = state.current()
    names = (registry.parse_backends(backends) if backends is not None else []) or current.backends
    for name in names:
        if name not in current.backends:
            message = f"finalize: expected some of {', '.join(current.backends)}, got {name!r}"
            raise NotInitializedError(message)
    names = [name for name in state.backends_in_use() if {name, *registry.parts_of(name)} & set(names)]
    if set(names) >= set(current.backends):
        destroy_process_group()
        return
    for planner in current.planners:
        planner.backends_end(names)
    if not _C.drain(list(names), factory.DRAIN):
        warn(f"finalize({', '.join(names)}): some operations were still running and are abandoned")
    groups = list(current.groups.values())
    for group in groups:
        for name in names:
            group._disconnect(name)
    for group in groups:
        for name in filter(registry.is_hierarchical, names):
            communicators.close_parts(group, name)
    current.backends = [name for name in current.backends if name not in names]


def synchronize(backends: str | Iterable[str] | None = None) -> None:
    """Wait until all operations that this process started on the named backends (None: all) are complete.

    An operation that has ended with an error counts as complete. Raises CollectiveTimeoutError after the default
    group's timeout, and NotInitializedError for a backend that no group has. Source: MCR-DL paper, Listing 1.
    """
    watch.refuse_fork()
    current = state.current()
    known = state.backends_in_use()
    names = (registry.parse_backends(backends) if backends is not None else []) or known
    for name in names:
        if name not in known:
            message = f"synchronize: expected some of {', '.join(known)}, got {name!r}"
            raise NotInitializedError(message)
    if not _C.drain(list(names), current.default_timeout):
        message = (
            f"synchronize({', '.join(names)}): timed out: operations are still running after the timeout of "
            f"{current.default_timeout}"
        )
        raise CollectiveTimeoutError(message)
