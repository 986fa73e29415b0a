# SPDX-License-Identifier: Apache-2.0
"""Starting and ending the runtime: the default group, its store, its backends."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as torch_dist

from mcr_dl import _C, watch
from mcr_dl.base import agreement, launcher, stores, variables
from mcr_dl.base.arguments import whole
from mcr_dl.base.errors import (
    BackendError,
    BackendUnavailableError,
    CollectiveTimeoutError,
    DesyncError,
    InvalidArgumentError,
    McrError,
    PeerLostError,
    text_of,
)
from mcr_dl.base.warning import warn
from mcr_dl.groups import factory, first_start, group_options, process_end, start_log, trial_results
from mcr_dl.libraries import registry
from mcr_dl.passes import chain
from mcr_dl.runtime import (
    communicators,
    core_groups,
    devices,
    exit_steps,
    lines,
    lives,
    rendezvous,
    startup,
    state,
    topologies,
)
from mcr_dl.runtime.attempts import own_text
from mcr_dl.runtime.watched_store import WatchedStore
from mcr_dl.tables import choice
from mcr_dl.trace import saving

_T = TypeVar("_T")

# A backend that fails with one of these at its start, or with an error of the system, does not work.
_FAILURES = (BackendUnavailableError, BackendError, CollectiveTimeoutError)


def launch_of(rank: int, world_size: int) -> launcher.Launch:
    """The launch that the arguments describe; what they leave out is that of the environment."""
    if rank < 0 and world_size < 0:
        found = launcher.detect()
        if found.launcher == "none":
            launcher.require_both()
        return found
    if rank < 0 or world_size < 0:
        found = launcher.read()
        if found.launcher == "none":
            message = f"rank and world_size: expected both or none, got rank={rank}, world_size={world_size}"
            raise InvalidArgumentError(message)
        rank, world_size = (found.rank, world_size) if rank < 0 else (rank, found.size)
    return launcher.stated(rank, world_size)


def launch_at(
    init_method: str | None, rank: int, world_size: int, store: torch_dist.Store | None, limit: timedelta
) -> tuple[launcher.Launch, torch_dist.Store | None]:
    """The launch that the arguments describe, and the store, if they give one: the URL may be that of both."""
    rank, world_size = whole("rank", rank), whole("world_size", world_size)
    if init_method is not None and store is not None:
        message = f"init_method and store: expected one of the two, got {init_method!r} and a store"
        raise InvalidArgumentError(message)
    if store is None and rendezvous.names_ranks(init_method):
        return rendezvous.meet_at(init_method, rank, world_size, limit)
    return launch_of(rank, world_size), store


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
    automatic: startup.Automatic = startup.AUTOMATIC,
) -> None:
    """Do the work of init_process_group(), except for torch's process group."""
    watch.refuse_fork()
    if state.has_begun():
        message = "init_process_group: the default group is initialized already; call destroy_process_group() first"
        raise InvalidArgumentError(message)
    exit_steps.prepare()
    wanted, specifications, mistake = _asked(backend, pg_options, passes, tuning_table)
    usual = state.DEFAULT_TIMEOUT
    limit, mistake = _tried(lambda: usual if timeout is None else _C.timeout(timeout), usual, mistake)
    launch, store = launch_at(init_method, rank, world_size, store, limit)
    if mistake is None:
        start_log.show(launch.rank)
    if launch.rank == 0:
        variables.warn_of_unknown()
    if launch.local_rank <= 0:
        watch.prepare_folder()
        saving.prepare_folder()
    if store is None:
        store = rendezvous.meet(launch, init_method, limit)
    _C.prefer_high_priority(bool(getattr(pg_options, "is_high_priority_stream", False)))
    with rendezvous.named_end():
        store = lives.separate(store, launch, limit)
        device, mistake = _tried(partial(devices.own, device_id), -1, mistake)
        current = state.begin(launch, store, limit, wanted, device)
        current.passes = specifications
        _begin(current, tuning_table, mistake, automatic)


def _begin(
    current: state.State,
    tuning_table: str | os.PathLike[str] | None,
    mistake: Exception | None,
    automatic: startup.Automatic,
) -> None:
    """Begin a life of the runtime, once the ranks have met."""
    try:
        if mistake is None:
            rank, size = current.launch.rank, current.launch.size
            current.detail = os.environ.get("MCR_DL_DEBUG", "").lower() == "detail"
            watch.start(current.store, rank, size, state.living, detail=current.detail, awaited=process_end.ends_all())
        _agree(current, tuning_table, mistake, automatic)
        watch.watch_processes(current.knowledge.nodes)
        current.staging = devices.agree(current)
        _C.set_world(_make_world(current))
        start_log.started(current)
    except BaseException as error:
        core_groups.forget(error)
        raise


def _asked(
    backend: str | Iterable[str] | None,
    pg_options: Any,
    passes: Iterable[Any] | None,
    tuning_table: str | os.PathLike[str] | None,
) -> tuple[list[str], list[chain.Specification], Exception | None]:
    """The backends and passes that the program names, and the first error in them, in the name of the table or in the
    environment's variables."""
    if problem := variables.problem():
        return [], [], InvalidArgumentError(problem)
    try:
        backends, specifications = _named(backend, pg_options), specified(passes)
        choice.named_table(tuning_table)
        stores.encode(chain.terms_of(specifications))
    except Exception as error:  # any, such as one of an iterator or a pass of the program
        return [], [], error
    return backends, specifications, None


def _named(backend: str | Iterable[str] | None, pg_options: Any) -> list[str]:
    """The backends that the argument names, or mcr_dl's options where it leaves the choice to them."""
    options = group_options.in_options(pg_options)
    wanted = registry.parse_for_job(options) if options else []
    if options and backend is None:
        return wanted
    named = registry.parse_for_job(backend, wanted)
    if wanted and named != wanted:
        message = (
            f"backend: expected {', '.join(wanted)}, as in pg_options, or None, got {', '.join(named) or backend!r}"
        )
        raise InvalidArgumentError(message)
    return named


def specified(passes: Iterable[Any] | None) -> list[chain.Specification]:
    """The passes that the program and the environment ask for."""
    return chain.with_scheduler(saving.with_log(chain.specify(passes)))


def _tried(make: Callable[[], _T], otherwise: _T, mistake: Exception | None) -> tuple[_T, Exception | None]:
    """The value of an argument, or another one, and the first error: one rank's alone must reach all."""
    try:
        return make(), mistake
    except McrError as error:
        return otherwise, mistake or error


def start_again(former: watch.Former, begin: Callable[[], state.State]) -> state.State:
    """Start the runtime in the place of a lost rank, without the default group."""
    exit_steps.prepare()
    current = begin()
    rank, size = current.launch.rank, current.launch.size
    watch.start(current.store, rank, size, state.living, detail=current.detail, former=former)
    watch.watch_processes(current.knowledge.nodes)
    return current


def _agree(
    current: state.State,
    tuning_table: str | os.PathLike[str] | None,
    mistake: Exception | None,
    automatic: startup.Automatic,
) -> None:
    """Make all ranks start the same backends on the same libraries, and choose by the same table.

    Otherwise their calls would not meet. All ranks raise the ``mistake`` of any rank, as an InvalidArgumentError, and
    the rank itself the mistake, also if the others do not come.
    """
    store, rank, size = torch_dist.PrefixStore("init", current.store), current.launch.rank, current.launch.size
    unnamed = not current.backends
    try:
        problem = "" if mistake is None else text_of(mistake)
        agreed = startup.agree(store, rank, size, current.backends, problem, automatic)
    except Exception as error:
        if mistake is None:
            raise
        both = isinstance(error, InvalidArgumentError) and isinstance(mistake, InvalidArgumentError)
        raise (error if both else mistake) from None
    current.backends, current.asked = agreed.backends, agreed.asked
    status = _C.backend_status()
    libraries = {name: status[name] for name in current.backends}
    facts = {**choice.facts(libraries, tuning_table), "debug": "detail" if current.detail else "off"}
    facts |= {"topology": topologies.own(), "job": uuid.uuid4().hex, "passes": chain.terms_of(current.passes)}
    facts["variables"] = registry.equal_variables()

    def themis(grid: _C.Topology | None) -> list[str]:
        return startup.over_dimensions(grid, agreed) if unnamed else []

    def possible(grid: _C.Topology | None) -> list[str]:  # in rules
        return [*agreed.backends, *startup.possible(agreed), *themis(grid)]

    def answered(values: list[dict[str, Any]]) -> dict[str, Any]:
        agreement.require_equal("passes", [value["passes"] for value in values])
        for name in values[0]["variables"]:
            agreement.require_equal(name, [value["variables"][name] for value in values])
        document = topologies.decide([value["topology"] for value in values], size)
        grid = topologies.grid_of(document, size)
        if document is not None and grid is not None:
            topologies.check_backends(document, partial(startup.serving, agreed, grid), agreed.local)
        return {**choice.decider(tuning_table, possible(grid))(values), "topology": document, "job": values[0]["job"]}

    answer = agreement.agree(store, rank, size, "facts", facts, answered)
    current.job = answer.pop("job")
    watch.set_job(current.job)
    current.given_document = answer.pop("topology")
    current.given_grid = topologies.grid_of(current.given_document, size)
    current.knowledge = choice.knowledge_of(answer, possible(current.given_grid))
    added = (*startup.combined(agreed, lines.of(range(size))), *themis(current.given_grid))
    current.backends = [*dict.fromkeys((*agreed.backends, *added))]
    if current.knowledge.crowded[rank]:
        for library in registry.DESCRIBED:
            library.share_cores()


def _make_world(current: state.State) -> _C.Group:
    """Make the default group and the list of candidates; variants are known once the libraries have started."""
    launch = current.launch
    world = _C.Group("default", list(range(launch.size)), launch.rank, current.timeout, max(current.device, 0))
    current.groups[world.name()] = world  # a start that fails from here on ends it
    _connect_world(world, current)
    core_groups.equip(world)
    if launch.size > 1:
        store = WatchedStore("init", current.store, world)
        decide = choice.common_candidates
        common = agreement.agree(store, launch.rank, launch.size, "candidates", world.candidates, decide)
        current.candidates = common
        choice.keep_candidates(world, common)
        first_start.measure(world, store)
        trial_results.follow(world)
    factory.add_passes(world)
    choice.check_rules(current.knowledge, world)
    factory.add_dimensions(world)
    return world


def _connect_world(world: _C.Group, current: state.State) -> None:
    """Start the backends in turn; if one fails on some ranks, all ranks continue without it, or all raise."""
    store = WatchedStore("init", current.store, world)  # a rank may be lost meanwhile
    left_out: dict[str, str] = {}
    for name in list(current.backends):
        cause = next((left_out[part] for part in registry.parts_of(name) if part in left_out), "")
        told = cause or _connect_one(world, store, name)
        if not told:
            continue
        left_out[name] = told
        current.backends.remove(name)
        if name in current.asked or not current.backends:
            raise BackendUnavailableError(told)
        if not cause:
            world._disconnect(name)
            communicators.close_parts(world, name)
            startup.warn_left_out(told)


def _connect_one(world: _C.Group, store: WatchedStore, name: str) -> str:
    """Start a backend; why it does not work on some ranks, equal on all ranks, or an empty text."""
    problem, begin = "", time.monotonic()
    try:
        communicators.connect(world, [name])
    except PeerLostError:
        raise
    except Exception as error:
        # Wrong arguments, on all ranks. A backend that the program did not ask for is left out for them, too.
        if name in state.current().asked and isinstance(error, McrError) and not isinstance(error, _FAILURES):
            raise
        problem = own_text(error)
        if not isinstance(error, McrError):
            problem = f"backend {name!r} cannot start: {problem}"
    # The others may wait for the whole timeout in the library, for a rank that has failed at once.
    waited = min(timedelta(seconds=time.monotonic() - begin), world.timeout)
    store.set_timeout(world.timeout + world.timeout - waited)
    return str(agreement.agree(store, world.rank(), world.size(), f"start/{name}", problem, startup.problem_of))


def end() -> None:
    """End the runtime. Completes started operations first, for at most ten seconds.

    Raises DesyncError, after everything has ended, if the ranks made different calls (``MCR_DL_DEBUG=detail``).
    """
    watch.refuse_fork()
    desync = watch.compare_last()
    if desync:
        abandon()
        raise DesyncError(desync)
    try:
        if not _drained():
            warn("destroy_process_group: some operations were still running and are abandoned")
        core_groups.end_works(state.living())  # before the callbacks that they still have
        _C.drain_futures(factory.DRAIN)
        saving.finish(together=True)
    finally:
        core_groups.abandon()


def abandon() -> None:
    """As ``end``, without waiting for anything: operations that are still running fail."""
    try:
        saving.finish(together=False)
    finally:
        core_groups.abandon()


def _drained() -> bool:
    """Wait until started operations have ended; False if they take too long."""
    unbroken = [each for each in state.living() if not communicators.is_broken(each)]
    if len(unbroken) == len(state.living()):
        return _C.drain(state.backends_in_use(), factory.patience())
    # Operations of groups with a lost rank may never complete inside their library.
    return _C.drain_groups([each._label for each in unbroken], factory.patience())
