# SPDX-License-Identifier: Apache-2.0
"""The communicators of a group: one per backend, made by all members together."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as torch_dist

from mcr_dl import _C, watch
from mcr_dl.base.errors import (
    BackendUnavailableError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    NotInitializedError,
    PeerLostError,
)
from mcr_dl.libraries import registry
from mcr_dl.runtime import lines, rates, startup, state
from mcr_dl.runtime.attempts import Attempt, own_text
from mcr_dl.runtime.watched_store import require_all_ranks

_NOTICE = 0.1  # seconds between two looks at the group, and for an action to end by itself after a loss
PATIENCE = 5.0  # seconds for a library that may wait for a rank that was lost before
# By library: the last action that was left while it ran. Until it ends, the library may be locked.
_left: dict[str, Future[object]] = {}


def is_stuck(name: str) -> bool:
    """Whether a thread of this process is still inside the library, which connects ranks of which some were lost."""
    return name in _left and not _left[name].done()


def holds_stuck(group: _C.Group) -> bool:
    """Whether a thread of this process is still inside a library of the group (``is_stuck``)."""
    return any(is_stuck(each) for name in group.backends for each in registry.collective_starters(name))


def is_broken(group: _C.Group) -> bool:
    """Whether a member's process has been lost since the group was made."""
    return _C.lost(group._label) is not None


def close(name: str) -> None:
    """End a group, as far as it was made, and the groups that belong to it, without waiting for anything."""
    current = state.current()
    ours = current.peek(name)
    for each in list(ours.shadows):
        close(each)
    if ours.owner is not None and ours.owner in current.belongings:
        current.of(ours.owner).shadows.pop(name, None)
    group = current.groups.pop(name, None)
    if group is not None:
        end(group)


def close_parts(group: _C.Group, name: str) -> None:
    """End the groups that a candidate over the group's dimensions has used, as it has ended."""
    ours = state.current().belongings.get(group.name())
    if ours is None:
        return
    for each in [each for each in ours.shadows if each.startswith(f"{group.name()}/{name}-")]:
        close(each)
    ours.networks.pop(name, None)


def end(group: _C.Group, *, keep: bool = False) -> None:
    """End a group's communicators, unless that may wait for a lost rank, and forget what belongs to the group.

    ``keep``: it may wait, whatever is known of the ranks.
    """
    kept = keep or (is_broken(group) and any(map(registry.collective_starters, group.backends))) or holds_stuck(group)
    if kept:
        _C.keep_forever(group)  # closing may wait for the lost rank, or for a thread that does
    else:
        group._close()
    if state.has_begun():
        current = state.current()
        ours = current.belongings.pop(group.name(), None)
        if kept and ours is not None:
            current.kept_stores += ours.stores


@contextlib.contextmanager
def undone(name: str) -> Iterator[None]:
    """If the block raises, end the groups that it has made for the group: a later try makes them again."""
    current = state.current()
    before = len(current.peek(name).shadows)
    try:
        yield
    except BaseException:
        for each in list(current.peek(name).shadows)[before:] if state.has_begun() else []:
            close(each)
        raise


def make(
    name: str,
    ranks: list[int],
    backends: list[str],
    timeout: timedelta,
    finish: Callable[[_C.Group, Attempt], None],
    *,
    outer: Attempt | None = None,
    mpi_comm: int | None = None,
    patience: float | None = None,
) -> _C.Group:
    """A connected group of global ranks that includes this process. Collective over its members: on all or on none.

    ``finish``: the last step of making it. ``outer``: as for ``Attempt``; ``mpi_comm``, ``patience``: as for
    ``connect``.
    """
    current = state.current()
    group = _C.Group(name, ranks, ranks.index(current.launch.rank), timeout, max(current.device, 0))
    attempt = Attempt(group, outer)
    try:
        with undone(name), attempt.all_or_none(backends):
            connect(group, backends, attempt=attempt, mpi_comm=mpi_comm, patience=patience)
            finish(group, attempt)
    except BaseException:
        end(group)
        raise
    return group


def connect(
    group: _C.Group,
    names: Iterable[str],
    *,
    attempt: Attempt | None = None,
    mpi_comm: int | None = None,
    patience: float | None = None,
    level: int = 0,
) -> None:
    """Make the group's communicators. Collective over its members.

    ``attempt``: the one that this is a part of; by default, this is one by itself. If a member fails alone, those that
    would wait for it raise BackendUnavailableError with its text; others need not notice.
    ``level``: of the lines that a hierarchy of the group begins with (``lines.of``).
    ``patience``: seconds for a library that starts on all ranks of a job together, as some ranks of the job are lost.
    All members give the same value and have just met. Raises CollectiveTimeoutError if they do not suffice.
    """
    watch.refuse_fork()
    attempt = attempt or Attempt(group)
    with undone(group.name()), attempt.told():
        for name in names:
            candidate = _C.CandidateName(name)
            if not candidate.algorithm:
                _connect_library(attempt, name, mpi_comm, patience)
            elif candidate.algorithm == "stripe":
                registry.load(name)
                group._connect_striped(*candidate.parts)
            elif candidate.algorithm == "themis":
                _connect_themis(attempt, name, patience)
            else:
                _connect_hierarchy(attempt, name, patience, level)


def _connect_library(attempt: Attempt, name: str, mpi_comm: int | None, patience: float | None) -> None:
    """Make the communicator of one library."""
    current, group = state.current(), attempt.group
    library = registry.describe(name)
    adopted = mpi_comm if library.communicators else None
    if library.starts_collectively and adopted is None and name not in current.backends:
        message = f"backend: {name!r} starts on all ranks together, so it must be named at init_process_group()"
        raise NotInitializedError(message)
    later = library.reads_later(group.size())
    # A library that admits one thread at a time would keep other calls out while it waits for a member, and one that
    # reads the store later, from any thread, is to find all there.
    meets = library.starts_collectively or library.meets or later
    try:
        path = registry.load(name)
        argument: object = adopted
        if adopted is None:  # else it runs: the program has started it
            library.start(current.store, current.launch.rank, current.launch.size)
            store = _store(attempt, f"library/{name}", apart=later)
            argument = _unless_lost(group, partial(library.argument, store, group))
            if argument is not None:
                current.of(group.name()).stores.append(store)
        connecting = partial(group._connect, name, path, argument, attempt.store(f"connect/{name}"))
        try:
            if library.starts_collectively and patience is not None:
                _connect_patiently(group, name, connecting, patience)
            else:
                with _kept(argument):
                    if meets:
                        attempt.meet(f"meet/{name}")
                    connecting()
        finally:
            if adopted is None:
                library.started()
    except torch_dist.DistStoreError as error:
        message = f"group {group.name()!r}: connecting {name} timed out: {error}"
        raise CollectiveTimeoutError(message) from error


@contextlib.contextmanager
def _kept(argument: object) -> Iterator[None]:
    """Never destroy the object if the block raises: that may wait for a rank which is lost, or does not take part."""
    try:
        yield
    except BaseException:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(argument))
        raise


def _connect_patiently(group: _C.Group, name: str, connecting: Callable[[], None], patience: float) -> None:
    """Make the communicator of a library that may wait for a lost rank. Raises as ``_unless_lost``."""
    require_all_ranks(group._label)
    if is_stuck(name):
        message = f"backend '{name}' is unavailable: a thread of this process is still inside the library, after a loss"
        raise BackendUnavailableError(message)
    watch.tolerate(group._label, name)  # this thread goes on if that one does not return
    _unless_lost(group, connecting, name, patience)


def _unless_lost(
    group: _C.Group, action: Callable[[], object], library: str = "", patience: float | None = None
) -> object:
    """Run an action that connects the group, and that nothing can interrupt.

    Once ranks have been lost, more may be: then it runs on a thread of its own. Raises PeerLostError if the group loses
    a rank meanwhile; the thread goes on until the action ends by itself.

    ``library``: the one that the thread is in. Raises CollectiveTimeoutError after ``patience`` seconds, if given.
    """
    if patience is None and not watch.has_lost():
        return action()
    result: Future[object] = Future()

    def run() -> None:
        try:
            result.set_result(action())
        except BaseException as error:  # for the thread that waits
            result.set_exception(error)

    threading.Thread(target=run, name="mcr_dl connect", daemon=True).start()
    deadline = None if patience is None else time.monotonic() + patience
    while True:
        lost = _C.lost(group._label)
        wait([result], _NOTICE)
        if result.done():
            return result.result()
        overdue = deadline is not None and time.monotonic() > deadline
        if library and (overdue or lost is not None):
            _left[library] = result
        if lost is not None:
            raise PeerLostError(lost)
        if overdue:
            message = f"{library} does not connect the ranks that are left within {patience:g} s"
            raise CollectiveTimeoutError(message)


def _store(attempt: Attempt, what: str, *, apart: bool) -> torch_dist.Store:
    """A part of the job's store for a library. Waits at it end if the group loses a rank or another member fails.

    ``apart``: for use at any time, while a thread waits at the store, and without Python's lock until a rank is lost.
    """
    if apart and not watch.has_lost():
        return torch_dist.PrefixStore(attempt.name(what), state.current().second_store())
    return attempt.store(what)


def _connect_hierarchy(attempt: Attempt, name: str, patience: float | None, level: int) -> None:
    """Make the communicators of the group's lines, in one order on all ranks, and the candidate that uses them.

    Raises InvalidArgumentError, on all ranks, if the group's topology has too few dimensions.
    """
    registry.load(name)
    group = attempt.group
    inner, *outer = _C.CandidateName(name).parts
    rows = lines.require(group.ranks, 1 + len(outer), f"backend: {name!r}", level)
    across = outer[0] if len(outer) == 1 else f"hier({','.join(outer)})"
    parts: list[tuple[_C.Group | None, str]] = []
    for index, members in enumerate(_C.members_of_lines(rows, group.rank())):
        candidate = across if index == 1 else inner
        names = [*registry.with_parts(outer[-1:]), across] if index == 1 else registry.with_parts([inner])
        made = _part(attempt, name, index, members if len(members) > 1 else [], names, patience, level + 1)
        parts.append((made, candidate))
    group._connect_hierarchy(name, rows, parts)


def _connect_themis(attempt: Attempt, name: str, patience: float | None) -> None:
    """Make the communicator of the rank's line in each dimension, and the candidate that uses them.

    Raises, on all ranks, InvalidArgumentError if the group's topology has another number of dimensions, and
    BackendUnavailableError if a dimension is too slow for a plan.
    """
    registry.load(name)
    current, group = state.current(), attempt.group
    backends = _C.CandidateName(name).parts
    grid, inner_first = lines.require_grid(group.ranks, len(backends), f"backend: {name!r}")
    nodes = [current.knowledge.nodes[rank] for rank in group.ranks]
    parts, times = [], []
    barrier = partial(_C.barrier, group=group, backend=backends[-1])
    for backend, index in zip(backends, inner_first, strict=True):
        names = registry.with_parts([backend])
        made = _part(attempt, name, index, grid.line(group.rank(), index), names, patience)
        assert made is not None  # the dimension has several ranks
        given = all(grid.dimensions[index][2:4])
        times.append([] if given else rates.measure(made, backend, barrier))
        parts.append((made, backend))

    def decide(values: list[Any]) -> list[rates.Rates]:
        columns = zip(inner_first, zip(*values, strict=True), strict=True)
        return [rates.agreed(*grid.dimensions[index][1:4], column, nodes) for index, column in columns]

    answer = attempt.agree(f"rates/{name}", times, decide, locate=True)
    network = [rates.Row(*row) for row, _ in answer]
    try:
        group._connect_themis(name, [*network], grid.ranks, [exchanges for _, exchanges in answer], parts)
    except InvalidArgumentError as error:  # about the agreed rates, so on all ranks: `auto` goes on without it
        raise BackendUnavailableError(str(error)) from error
    current.of(group.name()).networks[name] = network


def _part(
    attempt: Attempt,
    name: str,
    index: int,
    members: list[int],
    names: Iterable[str],
    patience: float | None,
    level: int = 0,
) -> _C.Group | None:
    """A part of a candidate over dimensions: the connected group of these ranks of the group; None without ranks.

    Collective over the group: on all of its ranks or, with an error, on none. A rank that fails would leave the others
    waiting for it in the next dimension. ``index``: of the part, in the candidate ``name``; ``level``: as of
    ``connect``.

    Raises BackendUnavailableError on all ranks, with the cause, if one of them cannot connect. A rank that is lost does
    not come to the agreement: the others find that by themselves.
    """
    group, title = attempt.group, f"{name}-{index}"
    made, problem = None, ""
    try:
        made = _connected(attempt, title, members, names, patience, level) if members else None
    except PeerLostError:
        raise
    except Exception as error:
        problem = own_text(error)
    told = attempt.agree(f"part/{title}", problem, partial(startup.problem_of, ranks=group.ranks), locate=True)
    if told:
        raise BackendUnavailableError(f"group {group.name()!r}: backend {name!r}: {told}")
    return made


def _connected(
    attempt: Attempt, title: str, members: list[int], names: Iterable[str], patience: float | None, level: int
) -> _C.Group:
    """A connected group of some ranks of a group, which ends with it. Collective over them."""
    current, group = state.current(), attempt.group
    ranks = [group.ranks[rank] for rank in members]
    name = f"{group.name()}/{title}-{ranks[0]}"
    made = _C.Group(name, ranks, ranks.index(current.launch.rank), group.timeout)
    try:
        connect(made, dict.fromkeys(names), attempt=Attempt(made, attempt), patience=patience, level=level)
    except BaseException:
        end(made)
        raise
    current.add_shadow(group.name(), made)
    return made
