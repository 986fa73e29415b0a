# SPDX-License-Identifier: Apache-2.0
"""Starting and ending the runtime: the default group, its store, its backends."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as torch_dist

from mcr_dl import (
    _C,
    _agreement,
    _backends,
    _dimensions,
    _exit,
    _launch,
    _meeting,
    _startup,
    _torch_backends,
    _variables,
    watch,
)
from mcr_dl import _devices as devices
from mcr_dl._errors import (
    BackendError,
    BackendUnavailableError,
    CollectiveTimeoutError,
    DesyncError,
    InvalidArgumentError,
    McrError,
    NotInitializedError,
)
from mcr_dl._pmi import PmiResponder
from mcr_dl.tuning import choice

DEFAULT_TIMEOUT: timedelta = torch_dist.default_pg_timeout
_DRAIN = timedelta(seconds=10)
_EXIT_DESYNC = 70  # as for a process that ends itself in a call that cannot continue


@dataclass
class _State:
    launch: _launch.Launch
    store: torch_dist.Store
    timeout: timedelta
    backends: list[str]
    device: int  # index of this process's CUDA device; -1 without one
    asked: list[str] = field(default_factory=list)  # backends without which init fails
    groups: dict[str, _C.Group] = field(default_factory=dict)
    groups_made: int = 0
    shadows: dict[str, list[str]] = field(default_factory=dict)  # by group: the groups that its passes use
    passes: list[Any] = field(default_factory=list)  # specifications for every new group
    counters: dict[str, int] = field(default_factory=dict)
    grid: _C.Topology | None = None  # the one that the user gave; None: derived from the hosts
    topologies: dict[str, _dimensions.Held] = field(default_factory=dict)  # by group
    knowledge: choice.Knowledge | None = None
    candidates: list[str] | None = None  # those that all ranks have; None before the default group is made
    staging: int | None = None  # bytes of one piece of a staged tensor; None if no rank has a device

    def count(self, key: str) -> int:
        """Count the uses of a key: equal on all ranks that use it equally often."""
        self.counters[key] = self.counters.get(key, -1) + 1
        return self.counters[key]


_state: _State | None = None
_responder: PmiResponder | None = None
_epoch = 0  # number of inits so far; keeps a second init from reading the first one's keys


def state() -> _State:
    """The state between init and finalize; raises NotInitializedError outside."""
    if _state is None:
        message = "the default group has not been initialized; call mcr_dl.init_process_group() first"
        raise NotInitializedError(message)
    return _state


def is_initialized() -> bool:
    """Whether the default group exists (torch.distributed.is_initialized)."""
    return _state is not None


# ---- communicators


def _prepare_mpi(current: _State) -> None:
    """Make sure that MPI_Init finds a process manager: the launcher's, or ``PmiResponder`` on torch's store."""
    global _responder
    if _responder is not None or current.launch.size == 1 or _launch.has_mpi_launcher():
        return
    _responder = PmiResponder(torch_dist.PrefixStore("pmi", current.store), current.launch.rank, current.launch.size)
    # Exit handlers run in reverse order: MPI must end while the responder still answers.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def connect(group: _C.Group, names: Iterable[str], *, mpi_comm: int | None = None) -> None:
    """Make the group's communicators. Collective over its members."""
    if watch.forked():
        raise NotInitializedError(watch.forked_text())
    current = state()
    for name in names:
        path = _backends.load(name)
        foreign: object = None
        if name == "mpi":
            if mpi_comm is None and name not in current.backends:
                message = "backend: 'mpi' starts on all ranks together, so it must be named at init_process_group()"
                raise NotInitializedError(message)
            _prepare_mpi(current)
            foreign = mpi_comm
        elif _backends.is_torch(name):
            store = torch_dist.PrefixStore(f"{group.name()}/{name}", current.store)
            foreign = _create_torch_backend(name, store, group)
        turn = current.count(f"connect {group.name()} {name}")
        meeting = torch_dist.PrefixStore(f"connect/{group.name()}/{name}/{turn}", current.store)
        group._connect(name, path, foreign, meeting)
        if name == "mpi" and _responder is not None:
            _responder.hide()


def _create_torch_backend(name: str, store: torch_dist.Store, group: _C.Group) -> object:
    try:
        return _torch_backends.create(name, store, group.rank(), group.size(), group.timeout)
    except McrError:
        raise
    except Exception as error:  # other packages' code may raise anything
        raise BackendUnavailableError(f"backend '{name}' cannot start: {error}") from error


def make_group(
    name: str,
    ranks: list[int],
    backends: Iterable[str],
    timeout: timedelta,
    *,
    mpi_comm: int | None = None,
    passes: bool = True,
    line: bool = False,
) -> _C.Group:
    """A connected group of global ranks that includes this process, with the job's passes."""
    current = state()
    names = list(backends)
    group = _C.Group(name, ranks, ranks.index(current.launch.rank), timeout, max(current.device, 0))
    connect(group, names, mpi_comm=mpi_comm)
    _equip(group, names, passes=passes)
    if passes:
        add_dimensions(group, given=None if mpi_comm is None and not line else {})
    return group


def add_dimensions(
    group: _C.Group, grid: _C.Topology | None = None, *, given: dict[str, _C.Group] | None = None, turn: int = -1
) -> None:
    """Give a group its topology (None: the part that the job's gives it) and groups of its dimensions (``hold``)."""
    current = state()
    if grid is None:
        nodes = [] if current.knowledge is None else current.knowledge.nodes
        grid = _dimensions.grid_of_members(current.grid, nodes, group.ranks)
    current.topologies[group.name()] = _dimensions.hold(group, grid, partial(make_group, line=True), given, turn)


def end_dimensions(group: _C.Group) -> None:
    """End the groups that were made for a group's dimensions."""
    _dimensions.end(state().topologies.pop(group.name(), None), end_group)


def _equip(group: _C.Group, names: list[str], *, passes: bool) -> None:
    current = state()
    if current.staging is not None:
        devices.stage(group, names, current.staging)
    if current.candidates is not None:
        choice.keep_candidates(group, current.candidates)
    if current.knowledge is not None:
        choice.tune(group, current.knowledge)
    current.groups[group.name()] = group
    if passes and current.passes:
        from mcr_dl.passes import chain

        chain.apply(group, current.passes)


def _launch_of(rank: int, world_size: int) -> _launch.Launch:
    if (rank < 0) != (world_size < 0):
        message = f"rank and world_size: expected both or none, got rank={rank}, world_size={world_size}"
        raise InvalidArgumentError(message)
    if world_size < 0:
        return _launch.detect()
    if rank >= world_size:
        message = f"rank: expected 0 to {world_size - 1}, got {rank}"
        raise InvalidArgumentError(message)
    found = _launch.read()
    return _launch.Launch(
        "arguments" if found.launcher == "none" else found.launcher, rank, world_size, found.local_rank
    )


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
    *,
    tuning_table: str | os.PathLike[str] | None = None,
    passes: Iterable[Any] | None = None,
) -> None:
    """Start the runtime: every rank of the job calls this once, with equal arguments.

    The default group is torch.distributed's too, unless torch already has one.

    Args:
        backend: one name, a list of names in order of preference, ``"cpu:mpi"`` style pairs, or ``"auto"`` for mpi,
            nccl and gloo where all ranks can use them; None and ``"mcr"`` stand for ``MCR_DL_BACKENDS``, else auto.
        init_method: a torch rendezvous URL; by default the launcher's environment (torchrun, mpiexec, srun).
        timeout: how long an operation may take, a timedelta or seconds; torch's 30 minutes by default.
        world_size, rank: for programs without a launcher; both or none.
        store: a torch store that all ranks can reach; give rank and world_size with it.
        group_name: accepted as in torch, where it has no effect either.
        device_id: this process's CUDA device; by default the current one.
        pg_options: torch's ``ProcessGroupNCCL.Options``, of which ``is_high_priority_stream`` is used: it gives the
            streams of asynchronous calls high priority. Or ``mcr_dl.Options``, of which ``uniform`` is used.
        tuning_table: the file that ``auto`` uses, or ``"none"``; by default the one in ``MCR_DL_TUNING_TABLE``, else
            this machine's in the user's cache, else a shipped one for such a machine. Rank 0's applies to all ranks.
        passes: the passes of this and every later group, as for ``set_passes``; by default those in
            ``MCR_DL_PASSES``.

    Raises:
        InvalidArgumentError: an argument or variable is wrong or differs between ranks, or the runtime already runs.
        BackendUnavailableError: some rank cannot use a named backend, or no backend can be used; raised on all ranks.

    Source: torch.distributed.init_process_group.
    """
    del group_name
    start(
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
    from mcr_dl import _torch_groups

    try:
        _torch_groups.publish(state().groups["default"], pg_options)
    except BaseException:
        forget()
        raise


def start(
    backend: str | Iterable[str] | None,
    *,
    init_method: str | None = None,
    timeout: timedelta | float | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: torch_dist.Store | None = None,
    pg_options: Any | None = None,
    device_id: torch.device | int | None = None,
    tuning_table: str | os.PathLike[str] | None = None,
    passes: Iterable[Any] | None = None,
) -> None:
    """Do the work of init_process_group(), except for torch's process group."""
    global _state, _epoch
    if _state is not None:
        message = "init_process_group: the default group is initialized already; call destroy_process_group() first"
        raise InvalidArgumentError(message)
    from mcr_dl import trace
    from mcr_dl.passes import chain

    _exit.prepare()
    wanted = _backends.parse_for_group(backend)
    specifications = trace.with_log(chain.specify(passes))
    limit = DEFAULT_TIMEOUT if timeout is None else _C.timeout(timeout)
    _variables.warn_of_unknown()
    launch = _launch_of(rank, world_size)
    if store is None:
        store = _meeting.meet(launch, init_method, limit)
    _epoch += 1
    device = devices.own(device_id)
    _state = _State(launch, torch_dist.PrefixStore(f"life-{_epoch}", store), limit, wanted, device)
    _state.passes = specifications
    try:
        groups = watch.Groups(_living, _is_shadow)
        watch.start(_state.store, launch.rank, launch.size, groups, detail=_debug() == "detail")
        if getattr(pg_options, "is_high_priority_stream", False):
            devices.raise_priority()
        _agree(_state, tuning_table)
        _state.staging = devices.agree(_state)
        _C.set_world(_make_world(_state))
    except BaseException:
        forget()
        raise


def _living() -> list[_C.Group]:
    return [] if _state is None else list(_state.groups.values())


def _is_shadow(name: str) -> bool:
    return _state is not None and any(name in shadows for shadows in _state.shadows.values())


def _debug() -> str:
    """The value of MCR_DL_DEBUG: "off", or "detail", which compares all calls over the ranks."""
    value = os.environ.get("MCR_DL_DEBUG", "").lower() or "off"
    if value not in ("off", "detail"):
        raise InvalidArgumentError(f"MCR_DL_DEBUG: expected off or detail, got {value!r}")
    return value


def _agree(current: _State, tuning_table: str | os.PathLike[str] | None) -> None:
    """Make all ranks start the same backends on the same libraries, and choose by the same table.

    Otherwise their calls would not meet.
    """
    store, rank, size = torch_dist.PrefixStore("init", current.store), current.launch.rank, current.launch.size
    current.backends, current.asked = _startup.agree(store, rank, size, current.backends)
    status = _C.backend_status()
    libraries = {name: status[name] for name in current.backends}
    facts = {**choice.facts(libraries, tuning_table), "debug": _debug(), "topology": _dimensions.own()}
    decide = _dimensions.decider(choice.decider(tuning_table, current.backends), current.backends)
    answer = _agreement.agree(store, rank, size, "facts", facts, decide)
    current.grid = _dimensions.grid_of(answer.pop("topology"), size)
    current.knowledge = choice.knowledge_of(answer, current.backends)
    if current.knowledge.crowded[rank]:
        _backends.share_cores()


def _make_world(current: _State) -> _C.Group:
    """Make the default group and the list of candidates; variants are known once the libraries have started."""
    launch = current.launch
    world = _C.Group("default", list(range(launch.size)), launch.rank, current.timeout, max(current.device, 0))
    _connect_world(world, current)
    _equip(world, current.backends, passes=True)
    if launch.size > 1:
        store = torch_dist.PrefixStore("init", current.store)
        decide = choice.common_candidates
        common = _agreement.agree(store, launch.rank, launch.size, "candidates", world.candidates, decide)
        current.candidates = common
        choice.keep_candidates(world, common)
    if current.knowledge is not None:
        choice.check_rules(current.knowledge, world.candidates)
    add_dimensions(world)
    return world


def _connect_world(world: _C.Group, current: _State) -> None:
    """Start the backends in turn; if one fails on some ranks, all ranks continue without it, or all raise."""
    store = torch_dist.PrefixStore("init", current.store)
    for name in list(current.backends):
        problem = ""
        try:
            connect(world, [name])
        except (BackendUnavailableError, BackendError) as error:
            problem = str(error)
        problems = _agreement.agree(store, current.launch.rank, current.launch.size, f"start/{name}", problem, list)
        told = _startup.problem_of(problems)
        if not told:
            continue
        current.backends.remove(name)
        if name in current.asked or not current.backends:
            raise BackendUnavailableError(told)
        world._disconnect(name)
        _startup.warn_left_out(told)


def forget() -> None:
    """Give up everything at once; pending operations may not complete."""
    global _state
    watch.stop()
    if _state is not None:
        for group in _state.groups.values():
            group._close()
    _C.set_world(None)
    _state = None


def forget_group(group: _C.Group) -> None:
    """As ``forget``, for one group and the groups that its passes use."""
    watch.compare()
    current = state()
    for name in [*current.shadows.pop(group.name(), []), group.name()]:
        current.groups.pop(name)._close()


def end_group(group: _C.Group) -> None:
    """End a group other than the default one, once its passes hold no calls."""
    from mcr_dl.passes import chain

    end_dimensions(group)
    chain.synchronize(group)
    forget_group(group)


def end() -> None:
    """End the runtime. Completes started operations first, for at most ten seconds.

    Raises DesyncError, after everything has ended, if the ranks made different calls (``MCR_DL_DEBUG=detail``).
    """
    desync = watch.compare_last()
    if desync:
        forget()
        raise DesyncError(desync)
    if not _C.drain(state().backends, _DRAIN):
        warnings.warn("destroy_process_group: some operations were still running and are abandoned", stacklevel=3)
    _C.drain_futures(_DRAIN)
    from mcr_dl import trace

    trace.finish(together=True)
    forget()


def finalize(backends: Iterable[str] | None = None) -> None:
    """End the named backends (None: all backends and the runtime). Source: MCR-DL paper, Listing 1."""
    current = state()
    names = current.backends if backends is None else _backends.parse_backends(backends)
    for name in names:
        if name not in current.backends:
            message = f"finalize: expected some of {', '.join(current.backends)}, got {name!r}"
            raise NotInitializedError(message)
    names = [name for name in current.backends if {name, *_backends.parts_of(name)} & set(names)]
    if set(names) == set(current.backends):
        from mcr_dl import _groups

        _groups.destroy_process_group()
        return
    _C.drain(list(names), _DRAIN)
    for group in current.groups.values():
        for name in names:
            group._disconnect(name)
    current.backends = [name for name in current.backends if name not in names]


def synchronize(backends: str | Iterable[str] | None = None) -> None:
    """Wait until all operations that this process started on the named backends (None: all) are complete.

    Raises CollectiveTimeoutError after the default group's timeout. Source: MCR-DL paper, Listing 1.
    """
    current = state()
    names = current.backends if backends is None else _backends.parse_backends(backends) or current.backends
    if not _C.drain(list(names), current.timeout):
        message = (
            f"synchronize({', '.join(names)}): timed out: operations are still running after the timeout of "
            f"{current.timeout}"
        )
        raise CollectiveTimeoutError(message)


# ---- the end of the process


def _at_exit() -> None:
    if watch.forked():
        _C.leave()
        return
    error = getattr(sys, "last_value", None)
    desync = watch.compare_last() if error is None else ""
    if desync:
        print(f"mcr_dl: DesyncError: {desync}", file=sys.stderr, flush=True)
        _C.fail_at_exit(_EXIT_DESYNC)
    watch.stop("it has ended" if error is None else f"it has raised {type(error).__name__}: {error}")
    if _state is not None:
        from mcr_dl import trace

        trace.finish(together=False)
    # Libraries end collectively. After an uncaught exception, or without a rank, the others may never get there: then
    # this process exits at once, so that the launcher ends the others.
    together = watch.leave_together(error is None and not desync)
    if _responder is not None:
        _responder.leave()
    if together and _state is not None:
        _exit.bounded(forget)
    _C.leave()  # the system cleans up the rest
    if together:
        _exit.bounded(_C.shutdown)
    if not _launch.store_outlives():
        watch.close()


atexit.register(_at_exit)
