# SPDX-License-Identifier: Apache-2.0
"""Options of a new group: its backends, and the form of torch's calls: uniform, or any, which the members agree on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from mcr_dl import _C
from mcr_dl.base import agreement
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError
from mcr_dl.libraries import registry
from mcr_dl.runtime import state

_TORCHS = _C.Options.__bases__  # the class of all options of c10d's backends


def in_options(pg_options: Any) -> list[str]:
    """The backends that mcr_dl's options name; none for None and for the options of torch's own backends.

    Raises InvalidTypeError for an object of another class.
    """
    if isinstance(pg_options, _C.Options):
        return list(pg_options.backends)
    if pg_options is not None and not isinstance(pg_options, _TORCHS):
        expected = "mcr_dl.Options(backends=[...]), options of one of torch's backends or None"
        message = f"pg_options: expected {expected}, got {type(pg_options).__name__}"
        raise InvalidTypeError(message)
    return []


def named(backend: str | Iterable[str] | None, pg_options: Any) -> list[str]:
    """The backends that a call names, by itself or in mcr_dl's options; empty if it names none."""
    options = in_options(pg_options)
    if backend is None:
        backend = options or None
    return [] if backend is None else registry.parse_for_group(backend)


def wish(options: Any, parent: _C.Group | None = None) -> dict[str, Any]:
    """This rank's wish, in JSON's types.

    Where the options do not say, a part takes its parent's form, and any other group the form in MCR_DL_UNIFORM.
    """
    asked = options.uniform if isinstance(options, _C.Options) else None
    if asked is None and parent is not None:
        asked = not parent._any_form
    return {"asked": asked, "variable": os.environ.get("MCR_DL_UNIFORM", "")}


def uniform(wishes: list[Any]) -> bool:
    """Whether a call has one form on all ranks, from their wishes. Raises InvalidArgumentError if these differ."""
    wanted = []
    for rank, value in enumerate(wishes):
        if value["variable"] not in ("", "0", "1"):
            message = f"MCR_DL_UNIFORM: expected 0 or 1, got {value['variable']!r} on rank {rank}"
            raise InvalidArgumentError(message)
        wanted.append(value["variable"] != "0" if value["asked"] is None else bool(value["asked"]))
    agreement.require_equal("uniform (of mcr_dl.Options, or MCR_DL_UNIFORM)", wanted)
    return wanted[0]


def apply(group: _C.Group, uniform: bool) -> None:
    """Give the form to a new group, and to the groups of its dimensions, whose members are among those who agreed."""
    held = state.current().peek(group.name()).topology
    for each in [group, *([] if held is None else held.owned)]:
        each._set_any_form(not uniform)
