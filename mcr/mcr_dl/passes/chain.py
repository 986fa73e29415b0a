# SPDX-License-Identifier: Apache-2.0
"""The chain of a group: which passes, in which order, agreed on by its ranks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch.distributed as torch_dist

from mcr_dl import _C, _agreement, _groups, _runtime
from mcr_dl._errors import CollectiveTimeoutError, InvalidArgumentError, InvalidTypeError
from mcr_dl.passes.compress import Compress
from mcr_dl.passes.fuse import Fuse
from mcr_dl.passes.log import Log

_SETTLE = timedelta(seconds=30)


class Shadow(Protocol):
    """Makes a group of the same ranks and backends with communicators of its own: a collective.

    With ``rest``, its calls go through the passes that come after the one that asks.
    """

    def __call__(self, suffix: str, *, rest: bool = False) -> _C.Group: ...


class Specification(Protocol):
    """What ``set_passes`` takes: a pass with its options, of no group yet."""

    @property
    def name(self) -> str: ...

    def terms(self) -> dict[str, Any]:
        """What must be equal on all ranks, in JSON's types."""

    def make(self, group: _C.Group, shadow: Shadow) -> _C.Pass:
        """The pass for one group."""


@dataclass(frozen=True)
class _Registered:
    name: str
    handler: Any

    def terms(self) -> dict[str, Any]:
        return {}

    def make(self, group: _C.Group, shadow: Shadow) -> _C.Pass:
        del shadow
        return _C.PythonPass(self.handler, self.name, group)


_builtin: dict[str, type[Any]] = {kind.name: kind for kind in (Log, Fuse, Compress)}
_registered: dict[str, _Registered] = {}


def register_pass(handler: Any, name: str | None = None) -> Any:
    """Make a pass of your own known to ``set_passes``, which puts it into a group's chain by its name.

    Args:
        handler: an object with a method ``handle(call)``, called on the thread that makes the call, for every call of
            the group that has something to do. ``call`` is a ``mcr_dl.passes.PassedCall``; handle() must call one of
            its proceed(), done() and hold(), and return what that returned. What it decides must be equal on all ranks.
        name: the name for ``set_passes``; by default the object's ``name``, else its class's in lower case.

    Returns the handler. Raises InvalidTypeError if it has no ``handle``, InvalidArgumentError if the name is taken by
    one of the library's own. Registering a name again replaces it for later ``set_passes``.
    """
    if not callable(getattr(handler, "handle", None)):
        message = f"register_pass: expected an object with a method handle(call), got {handler!r}"
        raise InvalidTypeError(message)
    known = name or getattr(handler, "name", None) or type(handler).__name__.lower()
    if not isinstance(known, str) or known in _builtin:
        message = f"register_pass: expected a name other than {', '.join(_builtin)}, got {known!r}"
        raise InvalidArgumentError(message)
    _registered[known] = _Registered(known, handler)
    return handler


def specify(passes: Iterable[str | Specification] | None) -> list[Specification]:
    """The passes of a list of names and specifications; None: those that ``MCR_DL_PASSES`` names.

    Raises InvalidArgumentError for an unknown name, and for a pass that is there twice.
    """
    if passes is None:
        passes = [name.strip() for name in os.environ.get("MCR_DL_PASSES", "").split(",") if name.strip()]
    if isinstance(passes, str):
        message = f"passes: expected a list of passes, got the string {passes!r}"
        raise InvalidTypeError(message)
    found: list[Specification] = []
    for entry in passes:
        if not isinstance(entry, str):
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
            message = f"passes: expected one of {known} (register_pass adds others), got {entry!r}"
            raise InvalidArgumentError(message)
    names = [specification.name for specification in found]
    if len(set(names)) != len(names):
        message = f"passes: expected every pass once, got {', '.join(names)}"
        raise InvalidArgumentError(message)
    return found


def _compare(values: list[Any]) -> None:
    _agreement.require_equal("passes", values)


def _agree(group: _C.Group, specifications: list[Specification] | None, problem: Exception | None) -> None:
    """One rank's wrong list is every rank's error: else the others would wait for it."""
    current = _runtime.state()
    mine: Any = None if specifications is None else [[entry.name, entry.terms()] for entry in specifications]
    if group.size() > 1:
        turn = current.count(f"passes {group.name()}")
        store = torch_dist.PrefixStore(f"passes/{group.name()}/{turn}", current.store)
        try:
            _agreement.settle(store, group.rank(), group.size(), "chain", mine, _compare)
        except InvalidArgumentError:
            if problem is None:
                raise
    if problem is not None:
        raise problem


def _shadow(group: _C.Group, after: list[Specification], suffix: str, *, rest: bool = False) -> _C.Group:
    current = _runtime.state()
    name = f"{group.name()}/{suffix}"
    made = current.groups.get(name)
    if made is None:
        made = _runtime.make_group(name, list(group.ranks), group.backends, group.timeout, passes=False)
        current.shadows.setdefault(group.name(), []).append(name)
    _put(made, after if rest else [])
    return made


def settle(group: _C.Group) -> None:
    """Wait until no pass of the group holds a call. All ranks of the group call this."""
    for station in _C.passes(group):
        if not station._settle(_SETTLE):
            held = f"it still holds calls after the timeout of {_SETTLE}"
            message = f"pass '{station.name}' of group '{group.name()}' timed out: {held}"
            raise CollectiveTimeoutError(message)


def _put(group: _C.Group, specifications: list[Specification]) -> None:
    settle(group)
    chain = [
        entry.make(group, partial(_shadow, group, specifications[place + 1 :]))
        for place, entry in enumerate(specifications)
    ]
    _C.set_passes(group, chain)


def apply(group: _C.Group, specifications: list[Specification]) -> None:
    """Give a group the passes, after comparing them between its ranks."""
    _agree(group, specifications, None)
    _put(group, specifications)


def set_passes(passes: Iterable[str | Specification] | None, group: _groups.Group = None) -> None:
    """Give a group the passes that its calls go through from now on, the first one first; an empty list for none.

    Every rank of the group calls this, with the same list, in the same place among the group's calls, and not beside
    running calls of other threads. Calls that the old passes hold are let go and complete.

    Args:
        passes: names ("fuse", or what ``register_pass`` was given) and specifications such as ``passes.Fuse(...)``.
        group: the default group if None.

    Raises InvalidArgumentError or InvalidTypeError on every rank if a name is unknown, a pass is there twice, or the
    lists differ between ranks; the group keeps its passes then.
    """
    if _groups._left_out(group, "set_passes"):
        return
    where = _groups._group(group)
    specifications: list[Specification] | None = None
    problem: Exception | None = None
    try:
        specifications = specify(passes)
    except (InvalidArgumentError, InvalidTypeError) as error:
        problem = error
    _agree(where, specifications, problem)
    _put(where, specifications or [])


def get_passes(group: _groups.Group = None) -> list[str]:
    """Names of the passes of a group, in the order in which calls go through them."""
    return [station.name for station in _C.passes(_groups._group(group))]
