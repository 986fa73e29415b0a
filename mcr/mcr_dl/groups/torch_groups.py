# SPDX-License-Identifier: Apache-2.0
"""Groups of mcr_dl as process groups of torch, and torch's backend "mcr" as groups of mcr_dl."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist

from mcr_dl import _C, watch
from mcr_dl.base.errors import InvalidArgumentError, NotInitializedError, UnsupportedError
from mcr_dl.base.warning import warn
from mcr_dl.groups import factory, group_options, lifecycle, survivors
from mcr_dl.libraries.c10d import OURS
from mcr_dl.runtime import attempts, changes, core_groups, lines, state

# Whether torch can make groups whose ranks are in another order than the global ones.
ANY_ORDER = "sort_ranks" in inspect.signature(torch_dist.new_group).parameters

# Whether torch counts the groups that have names like those of ``_standing_for``, too.
_COUNTS_ALL = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)

_LONGEST = 32  # characters of a part's ranks in its name
_FOR_HOOKS = timedelta(seconds=1)  # for completion hooks to run, if their operations get no more time


class _Making(threading.local):
    """The group behind the process group that torch is making now on this thread, and its name there."""

    group: _C.Group | None = None
    name = ""
    named = False  # torch has taken the name


_making = _Making()
_alone_lock = threading.Lock()  # nothing is sent while it is held


def _name_groups() -> None:
    """Have torch take the names of ``_standing_for``, and its own on other threads."""
    names: Any = torch_dist.distributed_c10d
    make = names._hash_ranks_to_str
    if hasattr(make, "mcr_dl_names_groups"):
        return

    @functools.wraps(make)
    def name(ranks: Any) -> str:
        if _making.group is None:
            return str(make(ranks))
        _making.named = True
        return _making.name

    name.mcr_dl_names_groups = True  # type: ignore[attr-defined]
    names._hash_ranks_to_str = name


@contextmanager
def _standing_for(group: _C.Group) -> Iterator[None]:
    """Have torch make the process group that stands for a group, with a name that only its members have, in this life.

    torch's own names depend on the groups that a rank has or has made, which may differ between the members.
    """
    _name_groups()
    text = f"{state.current().job} {group.name()} {list(group.ranks)}"
    _making.name = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    _making.group, _making.named = group, False
    try:
        yield
    finally:
        _making.group = None
        if _COUNTS_ALL and _making.named:  # torch names the next ones by the count, which other threads change, too
            torch_dist.distributed_c10d._world.group_count -= 1


def publish(group: _C.Group, options: Any = None, parent: _C.Group | None = None) -> torch_dist.ProcessGroup:
    """Have torch make the process group that stands for this group: the default one, if torch has none yet.

    The members call this. mcr_dl's options and the parent group determine the form of its calls. Raises
    InvalidArgumentError if torch's default group has other processes, or if the ranks' options differ.
    """
    _agree_on_form(group, options, parent)
    return publish_agreed(group)


def publish_agreed(group: _C.Group) -> torch_dist.ProcessGroup:
    """As ``publish``, for a group whose members have agreed on the form of its calls: nothing is sent."""
    current = state.current()
    with _standing_for(group):
        if not torch_dist.is_initialized():
            made = _make_default(group)
        else:
            _require_place(torch_dist.get_rank(), torch_dist.get_world_size())
            ranks = list(group.ranks)
            require_order(ranks)
            unsorted: dict[str, Any] = {} if ranks == sorted(ranks) else {"sort_ranks": False}
            made = torch_dist.new_group(
                ranks,
                group.timeout,
                OURS,
                _C.Options(group.backends),
                use_local_synchronization=True,
                group_desc=group.name(),
                **unsorted,
            )
    assert made is not None
    _C.remember_handle(made, group)
    held = current.peek(group.name()).topology
    for each in [] if held is None else held.owned:
        publish_agreed(each)
    return made


def publish_broken(group: _C.Group) -> None:
    """Have torch make its default group for one that can make no calls, with nothing to agree on."""
    with _standing_for(group), _alone():
        _C.remember_handle(_make_default(group), group)


@contextmanager
def _alone() -> Iterator[None]:
    """Have torch make process groups without the steps that wait for the other members, which are for debugging."""
    level, barrier = torch_dist.get_debug_level(), os.environ.pop("TORCH_DIST_INIT_BARRIER", None)
    torch_dist.set_debug_level(torch_dist.DebugLevel.OFF)
    try:
        yield
    finally:
        torch_dist.set_debug_level(level)
        if barrier is not None:
            os.environ["TORCH_DIST_INIT_BARRIER"] = barrier


def _make_default(group: _C.Group) -> torch_dist.ProcessGroup:
    current = state.current()
    store, launch = torch_dist.PrefixStore("torch", current.store), current.launch
    # torch names groups by a count, which includes failed attempts to start: their number may differ.
    torch_dist.distributed_c10d._world.group_count = 0
    torch_dist.init_process_group(OURS, store=store, rank=launch.rank, world_size=launch.size, timeout=group.timeout)
    made = torch_dist.group.WORLD
    assert made is not None
    return made


def require_order(ranks: Sequence[int]) -> None:
    """Raise UnsupportedError if torch cannot make a group with its ranks in this order."""
    if not ANY_ORDER and list(ranks) != sorted(ranks):
        message = f"ranks: expected increasing ranks, as torch {torch.__version__} sorts them, got {list(ranks)}"
        raise UnsupportedError(message)


def _require_place(rank: int, size: int) -> None:
    """Raise InvalidArgumentError unless torch's default group gives this process its place in mcr_dl's."""
    launch = state.current().launch
    if (rank, size) != (launch.rank, launch.size):
        message = (
            f"torch.distributed's default group: expected rank {launch.rank} of {launch.size} as in mcr_dl's, got rank "
            f"{rank} of {size}"
        )
        raise InvalidArgumentError(message)


def handle_of(group: _C.Group) -> torch_dist.ProcessGroup:
    """The process group of torch that stands for this group."""
    made = world() if group is _C.world() else _C.handle_of(group)
    assert made is not None
    return made


def handle_made_alone(group: _C.Group) -> torch_dist.ProcessGroup:
    """As ``handle_of``, for any group: torch makes a process group now if there is none, on this rank alone.

    A dimension's group has none if torch has made the group that it belongs to.
    """
    with _alone_lock:
        known: Any = handle_of(group)  # or the core's group
        if isinstance(known, torch_dist.ProcessGroup) or state.has_ended(group):
            return known  # type: ignore[no-any-return]
        with _alone():
            return publish_agreed(group)


def world() -> torch_dist.ProcessGroup | None:
    """The process group of all ranks on the backend "mcr"; None before init."""
    group = _C.world()
    if group is None:
        return None
    default = torch_dist.group.WORLD
    return default if default is not None and _C.group_of(default) is group else _C.handle_of(group)


def is_registered(handle: object) -> bool:
    """Whether torch can destroy the process group: torch does not register parts from ``ProcessGroup.split_group``."""
    registered = getattr(torch_dist.distributed_c10d._world, "pg_map", None)
    return isinstance(handle, torch_dist.ProcessGroup) and (registered is None or handle in registered)


def is_torch_default(group: _C.Group) -> bool:
    """Whether the group is behind torch's default process group."""
    default = torch_dist.group.WORLD
    return default is not None and _C.group_of(default) is group


# ---- the form of torch's calls: uniform, or any


def _agree_on_form(group: _C.Group, options: Any, parent: _C.Group | None = None) -> None:
    """Have the members of a new group agree on the form of its calls; give it up if they disagree."""
    try:
        wish = group_options.wish(options, parent)
        group_options.apply(group, changes.agree(group, "new_group", wish, group_options.uniform, leave=True))
    except BaseException as error:
        if group is _C.world():
            core_groups.end_works(state.living())
            core_groups.forget(error)
        else:
            on_abort(group)
        raise


def _notice_joins() -> None:
    """Have each of torch's Join contexts let its group's calls take any form.

    In a Join, ranks without further inputs answer the others' asynchronous calls with blocking ones. All ranks enter
    the Join at the same point in their calls, which is checked.
    """
    from torch.distributed.algorithms.join import Join

    make = Join.__init__
    if hasattr(make, "mcr_dl_notices_joins"):
        return

    @functools.wraps(make)
    def notice(join: Any, joinables: list[Any], *args: Any, **options: Any) -> None:
        make(join, joinables, *args, **options)
        group = _C.group_of(joinables[0].join_process_group or torch_dist.group.WORLD)
        if group is not None and not group._any_form:
            changes.agree(group, "Join", None)
            group._set_any_form(True)

    notice.mcr_dl_notices_joins = True  # type: ignore[attr-defined]
    Join.__init__ = notice  # type: ignore[assignment, method-assign]


def _end_left_blocks() -> None:
    """Have torch's coalescing manager end its block on a group of mcr_dl if an exception leaves it.

    torch would go on as if the block had not ended: it would only record later calls, or not wait for them.
    """
    names = torch_dist.distributed_c10d
    make = getattr(names, "_coalescing_manager", None)
    if make is None or hasattr(make, "mcr_dl_ends_left_blocks"):
        return

    @functools.wraps(make)
    @contextmanager
    def manage(
        group: torch_dist.ProcessGroup | None = None, device: torch.device | None = None, async_ops: bool = False
    ) -> Iterator[Any]:
        members = group or torch_dist.group.WORLD
        around, begun = members in _recorded(), False  # around: a block of the group around this one
        try:
            with make(group, device, async_ops) as manager:
                begun = True
                yield manager
        except BaseException:
            if members is not None and (begun or not around) and _C.group_of(members) is not None:
                _recorded().pop(members, None)
                if begun and device is not None:
                    with suppress(Exception):  # such as that the block has ended; the program gets the first error
                        members._end_coalescing(device)
            raise

    manage.mcr_dl_ends_left_blocks = True  # type: ignore[attr-defined]
    for module in (names, torch_dist):
        if getattr(module, "_coalescing_manager", None) is make:
            module._coalescing_manager = manage  # type: ignore[attr-defined]


def _recorded() -> dict[Any, Any]:
    """The calls that torch has recorded in blocks, by group."""
    found = getattr(torch_dist.distributed_c10d._world, "pg_coalesce_state", None)
    return {} if found is None else found


# ---- called by torch


def create(options: Any, backend_options: Any) -> Any:
    """Make the backend of a process group that torch is making (torch.distributed.Backend.register_backend)."""
    _notice_joins()
    _end_left_blocks()
    group = _making.group if _making.group is not None else _group_for(options, backend_options)
    return _C.TorchBackend(group, group_options.in_options(backend_options))


def _is_left(ranks: list[int]) -> bool:
    """Whether the runtime is left of a start in which torch has failed: torch makes its default group (without ranks),
    or it has no process group of the runtime's default one."""
    return not ranks or not isinstance(_C.handle_of(state.current().world), torch_dist.ProcessGroup)


def _group_for(options: Any, pg_options: Any) -> _C.Group:
    ranks = list(options.global_ranks_in_group)  # empty: torch's default group
    watch.refuse_fork()
    # torch makes one backend for each type of device, and one store for all of these; groups may share their names.
    making = options.store.underlying_store
    if state.has_begun() and state.current().started_in is not making and _is_left(ranks):
        lifecycle.abandon()
    if not state.has_begun():
        if ranks and ranks != list(range(torch_dist.get_world_size())):
            message = (
                "mcr starts on all ranks together: make a process group of all ranks, in increasing order, with the "
                f"backend 'mcr' first, or call mcr_dl.init_process_group(); got the ranks {ranks}"
            )
            raise NotInitializedError(message)
        lifecycle.start(
            None,
            timeout=options.timeout,
            store=options.store,
            rank=options.group_rank,
            world_size=options.group_size,
            pg_options=pg_options,
        )
        state.current().started_in = making
        group = state.current().world
        _agree_on_form(group, pg_options)
        return group
    if not ranks:
        _require_place(options.group_rank, options.group_size)
        return state.current().world
    name = _name_of(options.group_id, ranks[0])  # counts before anything can fail on this rank alone
    names = group_options.named(None, pg_options) or lines.that_fit(state.current().backends, ranks)
    group = factory.make_group(name, ranks, names, options.timeout)
    _agree_on_form(group, pg_options)
    return group


def _name_of(torch_name: str, first: int) -> str:
    """A name for a group that torch has named. With ``use_local_synchronization``, torch gives the name of a group that
    its members have destroyed to the next one of the same ranks, and would connect it by the addresses of the former.

    Equal on all members, as each of them makes every group of that name, which torch makes of the ranks or by counting
    the groups of all ranks.
    """
    if torch_name.isdecimal():  # a count, which does not come back in this life
        return f"torch/{torch_name}"

    def name(turn: int) -> str:
        return f"torch/{torch_name}" + (f"-{turn}" if turn else "")

    return attempts.next_name(f"name/torch/{torch_name}", name, first)


def patience_with_hooks() -> timedelta:
    """The time that completion hooks get before torch ends their group: that of the operations, which they follow."""
    return max(factory.patience(), _FOR_HOOKS) if state.has_begun() else factory.DRAIN


def on_late_hooks(group: _C.Group) -> None:
    """Completion hooks have not run to their ends in this time, perhaps as their operations are still running."""
    labels = [] if state.has_ended(group) else [each._label for each in state.current().with_shadows(group)]
    if _C.drain_groups(labels, timedelta(0)):
        warn(f"group {group.name()!r}: some completion hooks are still running themselves")
        return
    factory.give_up_waiting()
    warn(f"group {group.name()!r}: the completion hooks of some operations have not run, as these are still running")


def on_shutdown(group: _C.Group) -> None:
    """End the group that torch is destroying; with the default group, the runtime."""
    watch.refuse_fork()
    if state.has_ended(group):
        return
    state.run_endings(None if group is _C.world() else group.name())
    if group is _C.world():
        try:
            lifecycle.end()
        except BaseException:
            # After an exception here torch would go on with groups that have ended. This call meets closed ones.
            if torch_dist.is_initialized():
                torch_dist.destroy_process_group()
            raise
    else:
        factory.end_group(group)


def on_abort(group: _C.Group) -> None:
    """As ``on_shutdown``, without waiting for anything."""
    watch.refuse_fork()
    if state.has_ended(group):
        return
    if group is _C.world():
        lifecycle.abandon()
        return
    held = state.current().replace_topology(group.name(), None)
    for each in [] if held is None else held.owned:
        if state.has_ended(each):
            continue
        handle = _C.handle_of(each)
        _C.give_up(each)
        on_abort(each)
        if isinstance(handle, torch_dist.ProcessGroup):
            torch_dist.destroy_process_group(handle)  # only torch has to forget it
    state.current().forget_counts(group)
    core_groups.forget_group(group)


def split(parent: _C.Group, ranks: Sequence[int], timeout: timedelta, options: Any, inherited: list[str]) -> Any:
    """Make the backend of a part of the group; its members call, with ranks of the parent.

    ``inherited``: the backends in the parent's own options, of which some may have ended: torch gives a copy of these
    options if the program gives none.

    Its name comes from the members, each of which makes every part of these: torch's name may differ between them, or
    be another part's too.
    """
    members = [parent.ranks[rank] for rank in ranks]
    text = "_".join(map(str, members))
    part = text if len(text) <= _LONGEST else hashlib.sha256(text.encode()).hexdigest()[:16]
    turn = state.current().count(f"torch split {part}", parent.name())
    names = [] if group_options.in_options(options) == inherited else group_options.named(None, options)
    if not names or names == list(parent.backends):
        names = lines.that_fit(parent.backends, members)
    group = factory.make_group(f"{parent.name()}/torch-{part}-{turn}", members, names, timeout)
    _agree_on_form(group, options, parent)
    return _C.TorchBackend(group, list(group.backends))


def shrink(parent: _C.Group, excluded: Sequence[int], options: Any) -> Any:
    """Make the backend of the group without these ranks of the parent; the others call (torch's ``shrink_group``).

    Raises PeerLostError if more ranks are lost, as torch takes all others for members.
    """
    if parent is _C.world():
        message = (
            "shrink_group: expected a group from new_group(), got the default group, whose ranks torch would renumber: "
            "use mcr_dl.shrink(), which leaves the default group as it is"
        )
        raise InvalidArgumentError(message)
    members = [rank for index, rank in enumerate(parent.ranks) if index not in excluded]
    names = group_options.named(None, options) or None
    wish = group_options.wish(options, parent)
    group = survivors.of("shrink", parent, members, parent.timeout, wish, names).shrink(exactly=True)
    return _C.TorchBackend(group, list(group.backends))
