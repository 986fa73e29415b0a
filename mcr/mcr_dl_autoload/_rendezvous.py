# SPDX-License-Identifier: Apache-2.0
"""Lets torch's ``env://`` find the ranks under mpiexec and srun, which set neither RANK nor WORLD_SIZE.

Nothing changes until a program calls ``torch.distributed.init_process_group`` without them, which would fail otherwise.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any
from urllib.parse import parse_qsl, urlsplit


def extend() -> None:
    """Add the launchers' variables as a fallback to those that torch reads; repeated calls change nothing."""
    # torch.distributed.rendezvous is the function; register_rendezvous_handler rejects a scheme that is registered.
    handlers = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    own = handlers["env"]
    if hasattr(own, "mcr_dl_extended"):
        return

    @functools.wraps(own)
    def meet(url: str, **options: Any) -> Any:
        found, given = None, dict(parse_qsl(urlsplit(url).query))
        if not {"RANK", "WORLD_SIZE"} & set(os.environ) and "rank" not in given:
            from mcr_dl import default_pg_timeout
            from mcr_dl.runtime import rendezvous

            size = int(given.get("world_size", -1))
            found = rendezvous.meet_for_torch(options.get("timeout", default_pg_timeout), size)
        return own(url, **options) if found is None else found

    meet.mcr_dl_extended = True  # type: ignore[attr-defined]
    handlers["env"] = meet
