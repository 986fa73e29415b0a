# SPDX-License-Identifier: Apache-2.0
"""The communicators of a group: one per backend, made by all members together."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import torch.distributed as torch_dist

from mcr_dl import _C, watch
from mcr_dl.base import agreement
from mcr_dl.base.errors import (
    BackendUnavailableError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    NotInitializedError,
    PeerLostError,
    text_of,
)
from mcr_dl.libraries import registry
from mcr_dl.runtime import lines, rates, startup, state
from mcr_dl.runtime.rounds import Round, poll
from mcr_dl.runtime.watched_store import WatchedStore, require_all_ranks
from mcr_dl.watch import ranks_text

_NOTICE = 0.1  # seconds between two looks at the group, and for an action to end by itself after a loss
_LONGEST = 0.01  # seconds between two looks at the store
PATIENCE = 5.0  # seconds for a library that may wait for a rank that was lost before
# By library: the last action that was left while it ran. Until it ends, the library may be locked.
_left: dict[str, Future[object]] = {}


def is_stuck(name: str) -> bool:
    """Whether a thread of this process is still inside the library, which connects ranks of which some were lost."""
    return name in _left and not _left[name].done()


def holds_stuck(group: _C.Group) -> bool:
    """Whether a thread of this process is still inside a library of the group (``is_stuck``)."""
    return any(is_stuck(each) for name in group.backends for each in registry.together(name))


def is_broken(group: _C.Group) -> bool:
    """Whether a member's process has been lost since the group was made."""
    return _C.lost(group._label) is not None


def close(name: str) -> None:
    """End a group, as far as it was made, and the groups that belong to it, without waiting for anything."""
    current = state.current()
    for each in current.shadows.pop(name, []):
        close(each)
    current.endings.pop(name, None)
    current.broken = {each: count for each, count in current.broken.items() if not each.startswith(f"{name}/")}
    for key in [key for key in current.networks if key[0] == name]:
        del current.networks[key]
    group = current.groups.pop(name, None)
    if group is not None:
        end(group)


def end(group: _C.Group) -> None:
    """End a group's communicators, unless that may wait for a lost rank."""
    if (is_broken(group) and any(map(registry.of_all_ranks, group.backends))) or holds_stuck(group):
        _C.keep_forever(group)  # closing may wait for the lost rank, or for a thread that does
    else:
        group._close()


@contextlib.contextmanager
def undone(name: str) -> Iterator[None]:
    """If the block raises, end the groups that it has made for the group: a later try makes them again."""
    current = state.current()
    before = len(current.shadows.get(name, []))
    try:
        yield
    except BaseException:
        for each in current.shadows.get(name, [])[before:] if state.is_initialized() else []:
            current.shadows[name].remove(each)
            close(each)
        raise


def connect(
    group: _C.Group,
    names: Iterable[str],
    *,
    mpi_comm: int | None = None,
    patience: float | None = None,
    level: int = 0,
) -> None:
    """Make the group's communicators. Collective over its members.

    ``level``: of the lines that a hierarchy of the group begins with (``lines.of``).
    ``patience``: seconds for a library that starts on all ranks of a job together, as some ranks of the job are lost.
    All members give the same value and have just met. Raises CollectiveTimeoutError if they do not suffice.
    """
    watch.refuse_fork()
    turn = state.current().count(f"connect {group.name()}")  # all members call this equally often
    with undone(group.name()):
        for name in names:
            if not registry.is_hierarchical(name):
                _connect_library(group, name, turn, mpi_comm, patience)
            elif _C.Candidate(name).algorithm == "themis":
                _connect_themis(group, name, patience)
            else:
                _connect_hierarchy(group, name, patience, level)


def _connect_library(group: _C.Group, name: str, turn: int, mpi_comm: int | None, patience: float | None) -> None:
    """Make the communicator of one library, or of two that are striped.

    ``turn``: the number of the attempt to connect the group, which must not read the keys of an earlier one.
    """
    current = state.current()
    library = registry.describe(name)
    adopted = mpi_comm if library.communicators else None
    if library.together and adopted is None and name not in current.backends:
        message = f"backend: {name!r} starts on all ranks together, so it must be named at init_process_group()"
        raise NotInitializedError(message)
    later = library.reads_later(group.size())
    meeting = _meeting(group, f"meet/{group.name()}/{name}/{turn}")
    # A library that admits one thread at a time would keep other calls out while it waits for a member, and one that
    # reads the store later, from any thread, is to find all there.
    meets = (library.together or later) and group.size() > 1 and not (library.together and patience is not None)
    try:
        path = registry.load(name)
        library.start(current.store, current.launch.rank, current.launch.size)
        store = _store(group, f"{group.name()}/{name}/{turn}", apart=later)
        argument = _unless_lost(group, partial(library.argument, store, group)) if adopted is None else adopted
    except Exception as error:
        if meets:
            _meet(group, meeting, text_of(error))
        raise
    connecting = partial(group._connect, name, path, argument, _store(group, f"connect/{group.name()}/{name}/{turn}"))
    if library.together and patience is not None:
        _connect_patiently(group, name, connecting, patience)
    else:
        with _kept(argument):
            if meets:
                _meet(group, meeting)
            connecting()
    library.started()


@contextlib.contextmanager
def _kept(argument: object) -> Iterator[None]:
    """Never destroy the object if the block raises: that may wait for a rank which is lost, or does not take part."""
    try:
        yield
    except BaseException:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(argument))
        raise


def _meeting(group: _C.Group, name: str) -> Round:
    store = torch_dist.PrefixStore(f"{name}/{group.ranks[0]}", state.current().store)  # parts of a group share names
    return Round(store, "0", group.rank(), group.size())


@contextlib.contextmanager
def all_or_none(group: _C.Group, backends: Sequence[str]) -> Iterator[None]:
    """Make the block, which connects these backends, succeed on all members or on none; they run it equally often.

    If one of them raises in it, the others raise BackendUnavailableError with its text. Raises InvalidArgumentError, on
    all members, if their backends differ, PeerLostError if the group loses a rank, and CollectiveTimeoutError if one
    does not come within the group's timeout.
    """
    if group.size() == 1:
        yield
        return
    turn = state.current().count(f"made {group.name()}")
    _meet(group, _meeting(group, f"make/{group.name()}/{turn}"), backends=backends)
    meeting = _meeting(group, f"made/{group.name()}/{turn}")
    try:
        yield
    except PeerLostError:  # which every member finds by itself
        raise
    except Exception as error:
        with contextlib.suppress(*agreement.STORE_ERRORS):
            _meet(group, meeting, text_of(error))
        raise
    _meet(group, meeting)


def _meet(group: _C.Group, meeting: Round, problem: str = "", backends: Sequence[str] = ()) -> None:
    """Return when all members are here with the same backends and no problem; a member that has one does not wait.

    A member may still wait for an earlier call before it comes. Raises BackendUnavailableError on the other members if
    one has a problem, and on all members InvalidArgumentError if their backends differ, and CollectiveTimeoutError if
    one does not come within the group's timeout.
    """
    if meeting.arrive(agreement.encode([problem, ", ".join(backends)])):
        meeting.answer(agreement.encode(_answer(group, meeting)))
    if problem:
        return
    limit = group.timeout.total_seconds()
    check = partial(require_all_ranks, group._label)
    there = poll(meeting.answered, limit, _LONGEST, check, size=group.size())
    if not there and meeting.close():
        absent = [rank for rank, value in zip(group.ranks, meeting.values(), strict=True) if value is None]
        meeting.answer(agreement.encode({"late": f"{ranks_text(absent)} did not come within {limit:g} s"}))
    elif not there and not poll(meeting.answered, PATIENCE, _LONGEST, check, size=group.size()):
        raise CollectiveTimeoutError(
            f"group {group.name()!r}: connecting timed out: no answer of the last rank to come"
        )
    answer = agreement.decode(meeting.result(), f"the answer for group {group.name()!r}")
    meeting.leave()
    if "late" in answer:
        raise CollectiveTimeoutError(f"group {group.name()!r}: connecting timed out: {answer['late']}")
    if "differ" in answer:
        raise InvalidArgumentError(f"group {group.name()!r}: {answer['differ']}")
    if answer["problem"]:
        raise BackendUnavailableError(f"group {group.name()!r} cannot be made: {answer['problem']}")


def _answer(group: _C.Group, meeting: Round) -> dict[str, str]:
    """The answer of the last member to come: equal on all, as one gives it."""
    values = [agreement.decode(value or b"", "a member's part in the meeting") for value in meeting.values()]
    problem = startup.problem_of([each for each, _ in values], group.ranks)
    for rank, (_, names) in zip(group.ranks, values, strict=True):
        if not problem and names != values[0][1]:
            first = f"{values[0][1]} on rank {group.ranks[0]}"
            return {"differ": f"backend: expected the same on all ranks, got {first} and {names} on rank {rank}"}
    return {"problem": problem}


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


def _store(group: _C.Group, name: str, *, apart: bool = False) -> torch_dist.Store:
    """A part of the job's store. Once ranks have been lost, more may be: waits for them then end at once.

    ``apart``: for use while a thread waits at the store.
    """
    current = state.current()
    if not watch.has_lost():
        return torch_dist.PrefixStore(name, current.apart() if apart else current.store)
    made = WatchedStore(name, current.store, group)
    current.stores.append(made)
    return made


def _connect_hierarchy(group: _C.Group, name: str, patience: float | None, level: int) -> None:
    """Make the communicators of the group's lines, in one order on all ranks, and the candidate that uses them.

    Raises InvalidArgumentError, on all ranks, if the group's topology has too few dimensions.
    """
    registry.load(name)
    inner, *outer = _C.Candidate(name).parts
    rows = lines.require(group.ranks, 1 + len(outer), f"backend: {name!r}", level)
    across = outer[0] if len(outer) == 1 else f"hier({','.join(outer)})"
    together = _Together(group, name)
    parts: list[tuple[_C.Group | None, str]] = []
    for index, members in enumerate(_C.members_of_lines(rows, group.rank())):
        candidate = across if index == 1 else inner
        names = [*registry.with_parts(outer[-1:]), across] if index == 1 else registry.with_parts([inner])
        made = together.part(f"{name}-{index}", members if len(members) > 1 else [], names, patience, level + 1)
        parts.append((made, candidate))
    group._connect_hierarchy(name, rows, parts)


def _connect_themis(group: _C.Group, name: str, patience: float | None) -> None:
    """Make the communicator of the rank's line in each dimension, and the candidate that uses them.

    Raises, on all ranks, InvalidArgumentError if the group's topology has another number of dimensions, and
    BackendUnavailableError if a dimension is too slow for a plan.
    """
    registry.load(name)
    current = state.current()
    backends = _C.Candidate(name).parts
    grid, inner_first = lines.require_grid(group.ranks, len(backends), f"backend: {name!r}")
    assert current.knowledge is not None
    nodes = [current.knowledge.nodes[rank] for rank in group.ranks]
    parts, times = [], []
    barrier = partial(_C.barrier, group=group, backend=backends[-1])
    together = _Together(group, name)
    for backend, index in zip(backends, inner_first, strict=True):
        names = registry.with_parts([backend])
        made = together.part(f"{name}-{index}", grid.line(group.rank(), index), names, patience)
        assert made is not None  # the dimension has several ranks
        given = all(grid.dimensions[index][2:4])
        times.append([] if given else rates.measure(made, backend, barrier))
        parts.append((made, backend))

    def decide(values: list[Any]) -> list[rates.Rates]:
        columns = zip(inner_first, zip(*values, strict=True), strict=True)
        return [rates.agreed(*grid.dimensions[index][1:4], column, nodes) for index, column in columns]

    answer = together.agree("rates", times, decide)
    network = [rates.Row(*row) for row, _ in answer]
    try:
        group._connect_themis(name, [*network], grid.ranks, [exchanges for _, exchanges in answer], parts)
    except InvalidArgumentError as error:  # about the agreed rates, so on all ranks: `auto` goes on without it
        raise BackendUnavailableError(str(error)) from error
    current.networks[group.name(), name] = network


class _Together:
    """Makes the parts of a candidate over dimensions: each on all ranks of the group, or an error on all.

    A rank that fails would leave the others waiting for it in the next dimension.
    """

    def __init__(self, group: _C.Group, name: str) -> None:
        self._group, self._name = group, name
        turn = state.current().count(f"dimensions {group.name()} {name}")
        # Also if no rank has been lost yet: one may be, and the others would wait for it until the timeout.
        self._store = WatchedStore(f"dimensions/{group.name()}/{name}/{turn}", state.current().store, group)

    def agree(self, key: str, value: Any, decide: Callable[[list[Any]], Any]) -> Any:
        """As ``agreement.agree``, over the group. Raises PeerLostError if the group loses a rank."""
        function = "new_group" if _C.world() is not None else "init_process_group"
        group = self._group
        return agreement.agree(self._store, group.rank(), group.size(), key, value, decide, function=function)

    def part(
        self, title: str, members: list[int], names: Iterable[str], patience: float | None, level: int = 0
    ) -> _C.Group | None:
        """The connected group of these ranks of the group; None without ranks. Collective over the group.

        ``level``: as for ``connect``.

        Raises BackendUnavailableError on all ranks, with the cause, if one of them cannot connect. A rank that is lost
        does not come to the agreement: the others find that by themselves.
        """
        made, problem = None, ""
        try:
            made = _part(self._group, title, members, names, patience, level) if members else None
        except PeerLostError:
            raise
        except Exception as error:
            problem = text_of(error)
        told = self.agree(title, problem, partial(startup.problem_of, ranks=self._group.ranks))
        if told:
            raise BackendUnavailableError(f"group {self._group.name()!r}: backend {self._name!r}: {told}")
        return made


def _part(
    group: _C.Group, title: str, members: list[int], names: Iterable[str], patience: float | None, level: int
) -> _C.Group:
    """A connected group of some ranks of a group, which ends with it. Collective over them."""
    current = state.current()
    ranks = [group.ranks[rank] for rank in members]
    name = f"{group.name()}/{title}-{ranks[0]}"
    made = _C.Group(name, ranks, ranks.index(current.launch.rank), group.timeout)
    connect(made, dict.fromkeys(names), patience=patience, level=level)
    current.add_shadow(group.name(), made)
    return made
