# SPDX-License-Identifier: Apache-2.0
"""The stage of a group: communicators for the parts of its schedules that are issued after the call has returned."""

from __future__ import annotations

from mcr_dl import _C
from mcr_dl.runtime import communicators, state
from mcr_dl.runtime.attempts import Attempt


def make_stage(group: _C.Group, outer: Attempt | None = None) -> None:
    """Give a group the communicators for its schedules' late Issues, if it has none: all members together, or none.

    They belong to a group ``<name>/stage`` of the same ranks, on the host libraries. ``outer``: the attempt to make the
    group itself, if this is a part of it.
    """
    if group._has_stage():
        return
    current = state.current()
    hosts = [backend for backend in group.backends if group._streams(backend) is None]

    def finish(stage: _C.Group, _: Attempt) -> None:
        current.tune(stage)

    name, ranks = f"{group.name()}/stage", list(group.ranks)
    stage = communicators.make(name, ranks, hosts, group.timeout, finish, outer=outer)
    current.add_shadow(group.name(), stage)
    group._set_stage(stage)
