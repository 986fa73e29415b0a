# SPDX-License-Identifier: Apache-2.0
"""Says at the start of a job what runs, on the logger "mcr_dl": ``MCR_DL_LOG=info`` shows it on standard error."""

from __future__ import annotations

import logging
import os

from mcr_dl import _C
from mcr_dl.runtime.state import State

VARIABLE = "MCR_DL_LOG"
_log = logging.getLogger("mcr_dl")
_handler: logging.Handler | None = None


def show(rank: int) -> None:
    """Show the log's messages from the level of MCR_DL_LOG on."""
    global _handler
    level = os.environ.get(VARIABLE, "").upper()
    if not level:
        return
    if _handler is None:
        _handler = logging.StreamHandler()
        _log.addHandler(_handler)
        _log.propagate = False
    _handler.setFormatter(logging.Formatter(f"mcr_dl, rank {rank}: %(message)s"))
    _log.setLevel(level)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def started(current: State) -> None:
    """Log the job's shape, its backends with their libraries, and where ``auto`` has its measurements from."""
    if current.launch.rank != 0 or not _log.isEnabledFor(logging.INFO):
        return
    status = _C.backend_status()
    libraries = [f"{name} ({status[name].removeprefix('ok: ')})" for name in current.backends]
    _log.info(
        "mcr_dl %s, %s on %s; backends: %s; auto chooses from: %s",
        _C.__version__,
        _counted(current.launch.size, "rank"),
        _counted(len(set(current.knowledge.nodes)), "node"),
        ", ".join(libraries),
        current.knowledge.source or "no table",
    )
