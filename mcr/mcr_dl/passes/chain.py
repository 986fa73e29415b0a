# SPDX-License-Identifier: Apache-2.0
"""The chain of a group: its passes in order, agreed by its ranks."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from mcr_dl import _C
from mcr_dl.base import agreement
from mcr_dl.base.errors import (
    CollectiveTimeoutError,
    InvalidArgumentError,
    InvalidTypeError,
    UnsupportedError,
    refuse_class,
)
from mcr_dl.passes.compress import Compress
from mcr_dl.passes.fuse import Fuse
from mcr_dl.passes.log import Log
from mcr_dl.runtime import changes, core_groups, handles, state

_SYNCHRONIZE_LIMIT = timedelta(seconds=30)


class Shadow(Protocol):
    """Makes a group of the same ranks and backends with its own communicators. Collective.

    With ``rest``, its calls go through the passes that come after the requesting one.
    """

    def __call__(self, suffix: str, *, rest: bool = False) -> _C.Group: ...


class Specification(Protocol):
    """An entry for ``set_passes``: a pass with its options, not yet bound to a group."""

    @property
    def name(self) -> str:
        """The name in ``get_passes`` and in errors."""

    def terms(self) -> dict[str, Any]:
        """The terms that must be equal on all ranks, in JSON's types."""

    def make(self, group: _C.Group, shadow: Shadow) -> _C.Pass:
        """Make the pass for one group."""


@dataclass(frozen=True)
class _Registered:
    name: str
    handler: Any

    def terms(self) -> dict[str, Any]:
        return {}

    def make(self, group: _C.Group, shadow: Shadow) -> _C.Pass:
        del shadow
        return _C.PythonPass(self.handler, self.name, group)


SCHEDULE = "schedule"  # the name of the passes of schedulers, of which a group has one at most
_builtin: dict[str, type[Any]] = {kind.name: kind for kind in (Log, Fuse, Compress)}
_registered: dict[str, _Registered] = {}


def register_pass(handler: Any, name: str | None = None) -> Any:
    """Register a pass of your own, so that ``set_passes`` can put it into a group's chain by its name.

    Args:
        handler: an object with a method ``handle(call)``, called for every call of the group that has something to do,
            on the calling thread or, behind ``fuse``, perhaps on a thread of MCR-DL. ``call`` is a
            ``mcr_dl.passes.PassedCall``; handle() must call one of its proceed(), done() and hold(), and return the
            result of that. Its decisions must be equal on all ranks.
        name: the name for ``set_passes``; by default the object's ``name``, else its class's in lower case.

    Returns the handler. Raises InvalidTypeError if it is a class or has no ``handle``, InvalidArgumentError if a pass
    of the library has that name. Registering a name again replaces it for later ``set_passes``.
    """
    refuse_class("register_pass", handler)
    if not callable(getattr(handler, "handle", None)):
        message = f"register_pass: expected an object with a method handle(call), got {handler!r}"
        raise InvalidTypeError(message)
    known = name or getattr(handler, "name", None) or type(handler).__name__.lower()
    if not isinstance(known, str) or known in (*_builtin, SCHEDULE):
        message = f"register_pass: expected a name other than {', '.join([*_builtin, SCHEDULE])}, got {known!r}"
        raise InvalidArgumentError(message)
    _registered[known] = _Registered(known, handler)
    return handler


def specify(passes: Iterable[str | Specification] | None) -> list[Specification]:
    """The passes of a list of names and specifications; None: those that ``MCR_DL_PASSES`` names.

    Raises InvalidArgumentError for an unknown name, and for a pass that is listed twice; InvalidTypeError for what is
    no pass.
    """
    source = "MCR_DL_PASSES" if passes is None else "passes"
    if passes is None:
        passes = [name.strip() for name in os.environ.get("MCR_DL_PASSES", "").split(",") if name.strip()]
    listed: object = passes
    if isinstance(listed, str) or not isinstance(listed, Iterable):
        got = f"the string {listed!r}" if isinstance(listed, str) else repr(listed)
        raise InvalidTypeError(f"passes: expected a list of passes, got {got}")
    found: list[Specification] = []
    for entry in passes:
        if not isinstance(entry, str):
            refuse_class("passes", entry)
            if not hasattr(entry, "terms") or not hasattr(entry, "make"):
                message = f"passes: expected a name or a pass of mcr_dl.passes, got {entry!r}"
                raise InvalidTypeError(message)
            found.append(entry)
        elif entry in _builtin:
            found.append(_builtin[entry]())
        elif entry in _registered:
            found.append(_registered[entry])
        else:
            known = ", ".join([*_builtin, *_registered])
            message = f"{source}: expected one of {known} (register_pass adds others), got {entry!r}"
            raise InvalidArgumentError(message)
    names = [specification.name for specification in found]
    if len(set(names)) != len(names):
        message = f"{source}: expected every pass once, got {', '.join(names)}"
        raise InvalidArgumentError(message)
    return found


def terms_of(specifications: Iterable[Specification]) -> list[Any]:
    """The terms that must be equal on all ranks, in JSON's types."""
    return [[entry.name, entry.terms()] for entry in specifications]


def _compare(values: list[Any]) -> None:
    agreement.require_equal("passes", values)


def _agree(
    group: _C.Group,
    passes: Iterable[str | Specification] | None,
    problem: Exception | None = None,
    *,
    leave: bool = False,
) -> list[Specification]:
    """Agree on the list of all ranks. A wrong list on one rank raises on every rank: else the others would wait.

    ``leave``: as for ``changes.agree``.
    """
    found: list[Specification] = []
    terms: list[Any] = []
    try:
        found = specify(passes)
        terms = terms_of(found)
    except Exception as error:  # any, such as one of an iterator or a pass of the program
        problem = problem or error
    changes.agree(group, "set_passes", terms, _compare, problem=problem, leave=leave)
    return found


def _shadow_name(group: _C.Group, suffix: str, before: int) -> str:
    """The name of a group's shadow, of which so many broke before."""
    return f"{group.name()}/{suffix}" + (f"-{before + 1}" if before else "")


def synchronize(group: _C.Group) -> None:
    """Wait until no pass of the group holds a call. All ranks of the group call this."""
    for station in _C.passes(group):
        if not station._synchronize(_SYNCHRONIZE_LIMIT):
            held = f"it still holds calls after the timeout of {_SYNCHRONIZE_LIMIT}"
            message = f"pass '{station.name}' of group '{group.name()}' timed out: {held}"
            raise CollectiveTimeoutError(message)


def _synchronize_together(group: _C.Group) -> None:
    """As ``synchronize``; all ranks learn whether every rank has succeeded.

    If a pass is broken on one of them, its group may still have calls of the others: all ranks make another one.
    """
    problem: Exception | None = None
    try:
        synchronize(group)
    except CollectiveTimeoutError as error:
        problem = error
    broken = [station.name for station in _C.passes(group) if station._broken]
    so_far = state.current().of(group.name()).broken
    before = {each.name: so_far.get(each.name, 0) for each in _C.passes(group)}
    agreed = changes.agree(group, "set_passes", [broken, before], _broken_so_far, problem=problem, anywhere=True)
    so_far.update(agreed)


def _broken_so_far(values: list[Any]) -> dict[str, int]:
    """How often the passes have broken. A rank that was interrupted in an earlier change may have missed one."""
    found: dict[str, int] = {}
    for _, before in values:
        found |= {name: max(count, found.get(name, 0)) for name, count in before.items()}
    for name in {name for broken, _ in values for name in broken}:
        found[name] = found.get(name, 0) + 1
    return {name: count for name, count in sorted(found.items()) if count}


def _end_broken(group: _C.Group) -> None:
    """End the shadows of broken passes: all ranks have agreed to use others from now on."""
    current = state.current()
    for name, count in current.peek(group.name()).broken.items():
        for old in (_shadow_name(group, name, before) for before in range(count)):
            if old in current.groups:
                core_groups.forget_group(current.groups[old])


class _Making:
    """Makes the passes of one change. Their group gets them only if every rank could make all."""

    def __init__(self) -> None:
        self.shadows: list[_C.Group] = []  # which the passes use
        self._problem: Exception | None = None  # the first one

    def passes(self, group: _C.Group, specifications: list[Specification]) -> list[_C.Pass]:
        """Make the passes that can be made, also after an error: the ranks make parts of them together."""
        made: list[_C.Pass] = []
        for index, entry in enumerate(specifications):
            try:
                made.append(entry.make(group, partial(self._shadow, group, specifications[index + 1 :])))
            except Exception as error:  # any, as passes may be the program's
                self._problem = self._problem or error
        return made

    def _shadow(self, group: _C.Group, after: list[Specification], suffix: str, *, rest: bool = False) -> _C.Group:
        current = state.current()
        name = _shadow_name(group, suffix, current.peek(group.name()).broken.get(suffix, 0))
        made = current.groups.get(name)
        if made is None:
            made = core_groups.make(name, list(group.ranks), group.backends, group.timeout)
            current.add_shadow(group.name(), made)
        synchronize(made)
        self.shadows.append(made)
        # At once: the pass that asks takes them from there. Earlier passes keep those that they have taken.
        _C.set_passes(made, self.passes(made, after if rest else []))
        return made

    def agree(self, group: _C.Group, *, leave: bool = False) -> None:
        """Raise an error on every rank if a rank could not make a pass. ``leave``: as for ``changes.agree``."""
        changes.agree(group, "set_passes", None, problem=self._problem, anywhere=True, leave=leave)


def _put(group: _C.Group, specifications: list[Specification], *, leave: bool = False) -> None:
    making = _Making()
    passes = making.passes(group, specifications)
    making.agree(group, leave=leave)
    _C.set_passes(group, passes)
    for shadow in state.current().with_shadows(group)[1:]:
        if shadow not in making.shadows and _C.passes(shadow):
            _C.set_passes(shadow, [])  # no pass uses it any more


def add(group: _C.Group, specifications: list[Specification], problem: Exception | None = None) -> set[str]:
    """Add passes behind those of a group, and the log, if it is among them, before these. As ``set_passes``.

    ``problem``: why this rank cannot; every rank then raises. Returns the names of those that the group did not have.
    """
    names = [station.name for station in _C.passes(group)]
    wanted = [entry for entry in _agree(group, specifications, problem) if entry.name not in names]
    require_plannable([*names, *(entry.name for entry in wanted)])
    _synchronize_together(group)
    first = [entry for entry in wanted if entry.name == Log.name]
    last = [entry for entry in wanted if entry.name != Log.name]
    making = _Making()
    passes = [*making.passes(group, first), *_C.passes(group), *making.passes(group, last)]
    making.agree(group)
    _C.set_passes(group, passes)
    return {entry.name for entry in wanted}


def withdraw(group: _C.Group, names: set[str]) -> None:
    """Remove passes from a group, once they hold no calls. As ``set_passes``."""
    changes.agree(group, "set_passes", sorted(names), _compare)
    _synchronize_together(group)
    _C.set_passes(group, [station for station in _C.passes(group) if station.name not in names])


def with_log(specifications: list[Specification]) -> list[Specification]:
    """These passes, with the log first if it is not among them."""
    return specifications if any(each.name == Log.name for each in specifications) else [Log(), *specifications]


_schedulers: dict[str, Callable[[], Specification]] = {}


def register_scheduler(name: str, make: Callable[[], Specification]) -> None:
    """Let ``MCR_DL_SCHEDULE`` name a scheduler of all groups. ``make``: its pass, which reads the log."""
    _schedulers[name] = make


def with_scheduler(specifications: list[Specification]) -> list[Specification]:
    """The passes of a new job: with the log and a scheduler's pass, if ``MCR_DL_SCHEDULE`` names one.

    Raises InvalidArgumentError for an unknown name, UnsupportedError if a pass holds or changes calls.
    """
    name = os.environ.get("MCR_DL_SCHEDULE", "").strip()
    if not name or name == "none":
        return specifications
    if name not in _schedulers:
        raise InvalidArgumentError(f"MCR_DL_SCHEDULE: expected {', '.join(_schedulers)} or none, got {name!r}")
    require_plannable([*(entry.name for entry in specifications), SCHEDULE])
    return [*with_log(specifications), _schedulers[name]()]


def require_plannable(names: Iterable[str]) -> None:
    """Raise UnsupportedError if passes with these names cannot be in one chain with a scheduler's."""
    others = sorted({Fuse.name, Compress.name} & set(names))
    if SCHEDULE in names and others:
        message = f"expected a group without the pass {others[0]}, as it issues calls by itself: remove one of the two"
        raise UnsupportedError(f"passes: schedule: {message}")


# Groups whose owners order the calls themselves, by group.
_reserved: weakref.WeakKeyDictionary[_C.Group, weakref.ref[object]] = weakref.WeakKeyDictionary()


def reserve(group: _C.Group, owner: object) -> None:
    """The owner orders the calls of the group: it can have no scheduler's pass."""
    _reserved[group] = weakref.ref(owner)


def is_abandoned(group: _C.Group) -> bool:
    """Whether the group's owner is gone, on this rank: others may collect it later."""
    owner = _reserved.get(group)
    return owner is not None and owner() is None


def require_free(group: _C.Group) -> None:
    """Raise UnsupportedError if the group has an owner, or had one, that orders its calls."""
    if group in _reserved:
        message = f"expected no living ByteScheduler, got one with group {group.name()!r}: close() it first"
        raise UnsupportedError(f"passes: schedule: {message}")


def apply(group: _C.Group, specifications: list[Specification]) -> None:
    """Give a new group the passes, after comparing them between its ranks."""
    _put(group, _agree(group, specifications, leave=True), leave=True)


def set_passes(passes: Iterable[str | Specification] | None, group: handles.Group = None) -> None:
    """Set the passes that a group's calls go through from now on, the first one first; an empty list for none.

    Every rank of the group calls this, with the same list, after the same collective of the group. Asynchronous calls
    may be pending: they complete with the passes with which they began. Calls that the old passes hold are released.
    Other threads may use other groups meanwhile; on this group no rank may make a call that another rank does not make.

    Args:
        passes: names ("fuse", or what ``register_pass`` was given) and specifications such as ``passes.Fuse(...)``;
            None: those that ``MCR_DL_PASSES`` names.
        group: the default group if None.

    Raises InvalidArgumentError or InvalidTypeError on every rank if one rank's list has an unknown name or a pass
    twice, if a rank cannot make a pass, or if the lists or the calls before this one differ; CollectiveTimeoutError on
    every rank if some ranks do not come within the group's timeout, or held calls are not released within 30 seconds.
    The group then keeps its passes.
    """
    if handles.left_out(group, "set_passes"):
        return
    where = handles.core_group(group)
    specifications = _agree(where, passes)
    _synchronize_together(where)  # also without passes: ranks that differ in these still count the same steps
    _put(where, specifications)
    _end_broken(where)


def get_passes(group: handles.Group = None) -> list[str]:
    """Names of the passes of a group, in the order in which calls go through them; none on ranks outside the group."""
    if handles.not_a_member(group):
        return []
    return [station.name for station in _C.passes(handles.core_group(group))]
