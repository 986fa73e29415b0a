# SPDX-License-Identifier: Apache-2.0
"""The argument ``group`` of public functions: from a handle to the core's group."""

from __future__ import annotations

import torch.distributed as torch_dist
from torch.distributed import GroupMember

from mcr_dl import _C
from mcr_dl.base.errors import InvalidTypeError, NotInitializedError
from mcr_dl.base.warning import warn
from mcr_dl.runtime import state

Group = torch_dist.ProcessGroup | _C.Group | None


def core_group(group: object) -> _C.Group:
    """The core's group behind the argument of a public function.

    Raises InvalidTypeError if the argument is not a group, NotInitializedError if the group was destroyed or, with
    None, before the default group is complete.
    """
    current = state.current()
    if group is None:
        return current.world
    found = _C.group_of(group)
    if found is None:
        message = f"group: expected a process group of mcr_dl or None, got {described(group)}"
        raise InvalidTypeError(message)
    if found._closed:
        message = f"group: expected a living group, got the destroyed {found!r}"
        raise NotInitializedError(message)
    return found


def described(group: object) -> str:
    """Describe a wrong group for an error text (also called by the C++ core)."""
    if not_a_member(group):
        return "the placeholder that new_group returns on ranks outside the group: this rank is not a member"
    if not isinstance(group, torch_dist.ProcessGroup):
        return type(group).__name__
    kinds = {device.type: group._get_backend(device).name() for device in group._device_types}
    return "a process group of torch with " + ", ".join(f"{device}:{name}" for device, name in kinds.items())


def not_a_member(group: object) -> bool:
    """Whether the argument stands for a group that this rank does not belong to."""
    return type(group) is int and group == GroupMember.NON_GROUP_MEMBER


def left_out(group: object, function: str) -> bool:
    """Whether this rank is outside the group; if so, warns as torch does that the function does nothing.

    Raises InvalidTypeError if the argument is not a group.
    """
    if not not_a_member(group):
        core_group(group)
        return False
    warn(f"Running {function} on a rank which does not belong to the given group.")
    return True
