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
from typing import Any

import torch
import torch.distributed as torch_dist

from mcr_dl import _C, _agreement, _backends, _exit, _launch, _mpi_library, _torch_backends, watch
from mcr_dl import _devices as devices
from mcr_dl._errors import BackendUnavailableError, InvalidArgumentError, NotInitializedError
from mcr_dl._pmi import PmiResponder
from mcr_dl.tuning import choice

DEFAULT_TIMEOUT: timedelta = torch_dist.default_pg_timeout
_DRAIN = timedelta(seconds=10)


@dataclass
class _State:
    launch: _launch.Launch
    store: torch_dist.Store
    timeout: timedelta
    backends: list[str]
    device: int  # index of this process's CUDA device; -1 without one
    groups: dict[str, _C.Group] = field(default_factory=dict)
    groups_made: int = 0
    shadows: dict[str, list[str]] = field(default_factory=dict)  # by group: those that its passes use
    passes: list[Any] = field(default_factory=list)  # specifications for every new group
    counters: dict[str, int] = field(default_factory=dict)
    knowledge: choice.Knowledge | None = None
    candidates: list[str] | None = None  # those that all ranks have; None before the default group is made
    staging: int | None = None  # bytes of a piece of a staged tensor; None where no rank has a device

    def count(self, key: str) -> int:
        """Count the uses of a key: equal on all ranks that use it equally often."""
        self.counters[key] = self.counters.get(key, -1) + 1
        return self.counters[key]


_state: _State | None = None
_responder: PmiResponder | None = None
_epoch = 0  # how often init has run, so that a second life does not read the first one's keys
# Stores by meeting point, as long as the process: rank 0 must not close one that others still read or come back to.
_stores: dict[tuple[object, ...], torch_dist.Store] = {}


def state() -> _State:
    """The state between init and finalize; raises NotInitializedError outside."""
    if _state is None:
        message = "the default group has not been initialized; call mcr_dl.init_process_group() first"
        raise NotInitializedError(message)
    return _state


def is_initialized() -> bool:
    """Whether the default group exists (torch.distributed.is_initialized)."""
    return _state is not None


# ---- the store


def _store_over_mpi(launch: _launch.Launch, timeout: timedelta) -> torch_dist.Store:
    """Under mpiexec nobody names a meeting point: rank 0 opens one and tells the others by an MPI broadcast."""
    try:
        path = _backends.load("mpi")
    except BackendUnavailableError as error:
        message = f"no MASTER_ADDR and MASTER_PORT are set, and MPI cannot agree on them: {error}"
        raise BackendUnavailableError(message) from error
    group = _C.Group("bootstrap", list(range(launch.size)), launch.rank, timeout)
    group._connect("mpi", path, None)
    address = torch.zeros(256, dtype=torch.uint8)
    store = None
    if launch.rank == 0:
        text, store = _launch.listen(launch.size, timeout)
        address[: len(text)] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    _C.broadcast(address, src=0, group=group)
    group._close()
    if store is not None:
        return store
    host, _, port = bytes(address.tolist()).rstrip(b"\0").decode().rpartition(":")
    return _launch.tcp_store(host, int(port), launch.rank, launch.size, timeout)


def _rendezvous(
    launch: _launch.Launch, init_method: str | None, timeout: timedelta, environment: dict[str, str]
) -> torch_dist.Store:
    url = init_method or "env://"
    if url != "env://" or ("MASTER_ADDR" in environment and "MASTER_PORT" in environment):
        store: torch_dist.Store
        store, _, _ = next(iter(torch_dist.rendezvous(url, launch.rank, launch.size, timeout=timeout)))
        return store
    if launch.launcher == "none":
        return torch_dist.HashStore()
    if launch.launcher.startswith("mpiexec"):
        return _store_over_mpi(launch, timeout)
    if launch.launcher == "srun":
        return _launch.tcp_store(*_launch.slurm_address(environment), launch.rank, launch.size, timeout)
    message = "rank and size are set, but not where the ranks meet: set MASTER_ADDR and MASTER_PORT"
    raise InvalidArgumentError(message)


def _meet(
    launch: _launch.Launch, init_method: str | None, timeout: timedelta, environment: dict[str, str]
) -> torch_dist.Store:
    """The store of the launch: that of an earlier life if it met at the same point."""
    point = (launch, init_method, environment.get("MASTER_ADDR"), environment.get("MASTER_PORT"))
    if point not in _stores:
        _stores[point] = _rendezvous(launch, init_method, timeout, environment)
    _stores[point].set_timeout(timeout)
    return _stores[point]


# ---- communicators


def _prepare_mpi(current: _State) -> None:
    """See to it that MPI_Init finds a process manager: the launcher's, or ours in front of torch's store."""
    global _responder
    if _responder is not None or current.launch.size == 1 or _launch.has_mpi_launcher():
        return
    library = _mpi_library.load()
    if library.family == "openmpi":
        message = (
            "Open MPI cannot start under this launcher, as it needs its own; run `mpiexec -n "
            f"{current.launch.size} python script.py`, or use MPICH under torchrun: `pip install mpich` and "
            "`MCR_DL_MPI_LIB=mpich torchrun ...`"
        )
        raise BackendUnavailableError(message)
    _responder = PmiResponder(torch_dist.PrefixStore("pmi", current.store), current.launch.rank, current.launch.size)
    # Exit handlers run last come, first served: MPI must end while the responder still answers.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def connect(group: _C.Group, names: Iterable[str], *, mpi_comm: int | None = None) -> None:
    """Make the group's communicators: a collective over its members."""
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
            foreign = _torch_backends.create(name, store, group.rank(), group.size(), group.timeout)
        turn = current.count(f"connect {group.name()} {name}")
        meeting = torch_dist.PrefixStore(f"connect/{group.name()}/{name}/{turn}", current.store)
        group._connect(name, path, foreign, meeting)
        if name == "mpi" and _responder is not None:
            _responder.hide()


def make_group(
    name: str,
    ranks: list[int],
    backends: Iterable[str],
    timeout: timedelta,
    *,
    mpi_comm: int | None = None,
    passes: bool = True,
) -> _C.Group:
    """A connected group of global ranks that has this process as a member, with the job's passes."""
    current = state()
    names = list(backends)
    group = _C.Group(name, ranks, ranks.index(current.launch.rank), timeout, max(current.device, 0))
    connect(group, names, mpi_comm=mpi_comm)
    if current.staging is not None:
        devices.stage(group, names, current.staging)
    if current.candidates is not None:
        choice.keep_candidates(group, current.candidates)
    if current.knowledge is not None:
        choice.tune(group, current.knowledge)
    current.groups[name] = group
    if passes and current.passes:
        from mcr_dl.passes import chain

        chain.apply(group, current.passes)
    return group


def _launch_of(rank: int, world_size: int, environment: dict[str, str]) -> _launch.Launch:
    found = _launch.detect(environment)
    if (rank < 0) != (world_size < 0):
        message = f"rank and world_size: expected both or none, got rank={rank}, world_size={world_size}"
        raise InvalidArgumentError(message)
    if world_size < 0:
        return found
    if rank >= world_size:
        message = f"rank: expected 0 to {world_size - 1}, got {rank}"
        raise InvalidArgumentError(message)
    return _launch.Launch(
        "arguments" if found.launcher == "none" else found.launcher, rank, world_size, found.local_rank
    )


def init_process_group(
    backend: str | Iterable[str] | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
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

    The default group is torch.distributed's too, unless that has one already.

    Args:
        backend: one name, a list of names in order of preference, ``"cpu:mpi"`` style pairs, or ``"auto"`` for all
            that can be used here; None and ``"mcr"`` stand for what ``MCR_DL_BACKENDS`` names, else for ``"auto"``.
        init_method: a torch rendezvous URL; by default the launcher's environment (torchrun, mpiexec, srun).
        timeout: how long an operation may take; torch's 30 minutes by default.
        world_size, rank: for programs that nobody launched; both or none.
        store: a torch store that all ranks reach; together with rank and world_size.
        group_name: accepted as in torch, where it has no effect either.
        device_id: this process's CUDA device; by default the current one.
        pg_options: torch's ``ProcessGroupNCCL.Options``, of which ``is_high_priority_stream`` counts: the streams of
            asynchronous calls then come first on the device.
        tuning_table: the file that ``auto`` goes by, or ``"none"``; by default the one that ``MCR_DL_TUNING_TABLE``
            names, else this machine's in the user's cache, else a shipped one of such a machine. Rank 0's counts.
        passes: what the calls of this and every later group go through, as for ``set_passes``; by default those that
            ``MCR_DL_PASSES`` names.

    Raises:
        InvalidArgumentError: an argument, the table or ``MCR_DL_TUNE`` is wrong, an argument differs between ranks, or
            the runtime is running already.
        BackendUnavailableError: a backend cannot be used here; the text says why.

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
        _torch_groups.publish(state().groups["default"])
    except BaseException:
        forget()
        raise


def start(
    backend: str | Iterable[str] | None,
    *,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: torch_dist.Store | None = None,
    pg_options: Any | None = None,
    device_id: torch.device | int | None = None,
    tuning_table: str | os.PathLike[str] | None = None,
    passes: Iterable[Any] | None = None,
) -> None:
    """What init_process_group() does, but for torch's process group."""
    global _state, _epoch
    if _state is not None:
        message = "init_process_group: the default group is initialized already; call destroy_process_group() first"
        raise InvalidArgumentError(message)
    from mcr_dl import trace
    from mcr_dl.passes import chain

    _exit.prepare()
    wanted = _backends.parse_for_group(backend)
    specifications = trace.with_log(chain.specify(passes))
    limit = DEFAULT_TIMEOUT if timeout is None else timeout
    environment = dict(os.environ)
    launch = _launch_of(rank, world_size, environment)
    if store is None:
        store = _meet(launch, init_method, limit, environment)
    _epoch += 1
    device = devices.own(device_id)
    _state = _State(launch, torch_dist.PrefixStore(f"life-{_epoch}", store), limit, wanted, device)
    _state.passes = specifications
    try:
        watch.start(_state.store, launch.rank, launch.size, _living, detail=_debug() == "detail")
        if getattr(pg_options, "is_high_priority_stream", False):
            devices.raise_priority()
        _state.backends = wanted or _backends.usable()
        _agree(_state, tuning_table)
        _state.staging = devices.agree(_state)
        _C.set_world(_make_world(_state))
    except BaseException:
        forget()
        raise


def _living() -> list[_C.Group]:
    return [] if _state is None else list(_state.groups.values())


def _debug() -> str:
    """What MCR_DL_DEBUG says: "off", or "detail" where all calls are compared over the ranks."""
    value = os.environ.get("MCR_DL_DEBUG", "").lower() or "off"
    if value not in ("off", "detail"):
        raise InvalidArgumentError(f"MCR_DL_DEBUG: expected off or detail, got {value!r}")
    return value


def _agree(current: _State, tuning_table: str | os.PathLike[str] | None) -> None:
    """All ranks must start the same backends on the same libraries, and choose by the same table.

    Else their calls would not meet.
    """
    libraries = {}
    problem: BackendUnavailableError | None = None
    for name in current.backends:
        try:
            _backends.load(name)
            libraries[name] = _C.backend_status()[name]
        except BackendUnavailableError as error:
            libraries[name] = str(error)
            problem = error
    store, rank, size = torch_dist.PrefixStore("init", current.store), current.launch.rank, current.launch.size
    facts = {**choice.facts(libraries, tuning_table), "debug": _debug()}
    try:
        answer = _agreement.settle(store, rank, size, "facts", facts, choice.decider(tuning_table, current.backends))
    except InvalidArgumentError:
        if problem is not None:
            raise problem from None
        raise
    if problem is not None:
        raise problem
    current.knowledge = choice.knowledge_of(answer, current.backends)
    if current.knowledge.crowded[rank]:
        _backends.share_cores()


def _make_world(current: _State) -> _C.Group:
    """The default group, and what the ranks can choose from: variants are known once the libraries have started."""
    launch = current.launch
    world = make_group("default", list(range(launch.size)), current.backends, current.timeout)
    if launch.size > 1:
        store = torch_dist.PrefixStore("init", current.store)
        decide = choice.common_candidates
        common = _agreement.settle(store, launch.rank, launch.size, "candidates", world.candidates, decide)
        current.candidates = common
        choice.keep_candidates(world, common)
    if current.knowledge is not None:
        choice.check_rules(current.knowledge, world.candidates)
    return world


def forget() -> None:
    """Give everything up at once; what has been started may not complete."""
    global _state
    watch.stop()
    if _state is not None:
        for group in _state.groups.values():
            group._close()
    _C.set_world(None)
    _state = None


def forget_group(group: _C.Group) -> None:
    """The same for one group and those that its passes use."""
    current = state()
    for name in [*current.shadows.pop(group.name(), []), group.name()]:
        current.groups.pop(name)._close()


def end_group(group: _C.Group) -> None:
    """End a group other than the default one, when its passes hold no call any more."""
    from mcr_dl.passes import chain

    chain.settle(group)
    forget_group(group)


def end() -> None:
    """End the runtime: what has been started is completed first, for at most ten seconds."""
    if not _C.drain(state().backends, _DRAIN):
        warnings.warn("destroy_process_group: some operations were still running and are abandoned", stacklevel=3)
    _C.drain_futures(_DRAIN)
    from mcr_dl import trace

    trace.finish(together=True)
    forget()


def finalize(backends: Iterable[str] | None = None) -> None:
    """End the named backends (None: all of them, and the runtime). Source: MCR-DL paper, Listing 1."""
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
    names = _backends.parse_backends(backends) or current.backends
    if not _C.drain(list(names), current.timeout):
        from mcr_dl._errors import CollectiveTimeoutError

        message = f"synchronize({', '.join(names)}): operations still running after {current.timeout}"
        raise CollectiveTimeoutError(message)


# ---- the end of the process


def _at_exit() -> None:
    if watch.forked():
        _C.leave()
        return
    error = getattr(sys, "last_value", None)
    watch.stop("it has ended" if error is None else f"it has raised {type(error).__name__}: {error}")
    if _state is not None:
        from mcr_dl import trace

        trace.finish(together=False)
    # Libraries end together. After an uncaught exception, or without a rank, the others may never come to that: then
    # this one leaves at once, so that the launcher ends them.
    together = watch.leave_together(error is None)
    if _responder is not None:
        _responder.leave()
    if together and _state is not None:
        _exit.bounded(forget)
    _C.leave()  # what has not ended by now is left to the system
    if together:
        _exit.bounded(_C.shutdown)
    if not _launch.store_outlives():
        watch.close()


atexit.register(_at_exit)
