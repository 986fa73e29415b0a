# SPDX-License-Identifier: Apache-2.0
"""The form of torch's calls on a group: uniform, or any, which the members agree on when they make it."""

from __future__ import annotations

import os
from typing import Any

from mcr_dl import _C
from mcr_dl.base import agreement
from mcr_dl.base.errors import InvalidArgumentError


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
