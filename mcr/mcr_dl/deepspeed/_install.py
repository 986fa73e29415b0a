# SPDX-License-Identifier: Apache-2.0
"""``install``: all of DeepSpeed's communication through mcr_dl."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable

from mcr_dl.base.errors import BackendUnavailableError, InvalidArgumentError
from mcr_dl.libraries import registry
from mcr_dl_autoload import _deepspeed


def install(backends: str | Iterable[str] | None = None) -> None:
    """Make every later ``deepspeed.init_distributed`` use mcr_dl, whatever backend it names.

    Imports DeepSpeed. The variable ``MCR_DL_DEEPSPEED=1`` has the same effect when DeepSpeed is imported.

    Args:
        backends: the backends to use, as for ``init_process_group``, if that has not run yet; by default those in
            ``MCR_DL_BACKENDS``, else nccl, mpi, gloo and shm where all ranks can use them.

    Raises:
        BackendUnavailableError: DeepSpeed is missing, or its version lacks the class that this hooks.
        InvalidArgumentError: a backend is unknown, or ``deepspeed.comm`` already runs on another one.
    """
    names = registry.parse_backends(backends)
    if importlib.util.find_spec("deepspeed") is None:
        message = "deepspeed: expected an installed DeepSpeed, found none; `pip install deepspeed`"
        raise BackendUnavailableError(message)
    try:
        _deepspeed.hook(importlib.import_module(_deepspeed.MODULE), needed=True)
        comm = importlib.import_module("deepspeed.comm.comm")
    except ImportError as error:
        found = _deepspeed.deepspeed_version()
        message = f"deepspeed: expected {_deepspeed.MODULE} of DeepSpeed {found} to be importable: {error}"
        raise BackendUnavailableError(message) from error
    from mcr_dl.deepspeed.backend import McrBackend  # needs DeepSpeed

    if comm.cdb is not None and comm.cdb.is_initialized() and not isinstance(comm.cdb, McrBackend):
        message = f"install: expected deepspeed.comm not to run yet, but it runs on {comm.cdb.name!r}; install first"
        raise InvalidArgumentError(message)
    _deepspeed.installed = True
    _deepspeed.names = None if backends is None else names or ["auto"]
