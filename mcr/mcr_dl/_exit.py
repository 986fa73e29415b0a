# SPDX-License-Identifier: Apache-2.0
"""Steps at the end of the process that may hang if other ranks have died, with a time limit."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable

_LIMIT_SECONDS = 10.0

_steps: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]] = queue.SimpleQueue()
_thread: threading.Thread | None = None


def _serve() -> None:
    while True:
        step, done = _steps.get()
        try:
            step()
        except Exception:
            traceback.print_exc()  # as of any failure that nobody can catch any more
        done.set()


def prepare() -> None:
    """Start the thread that the steps will run on: from 3.12 on Python starts none any more when it ends."""
    global _thread
    if _thread is None or not _thread.is_alive():  # a forked process has lost it
        _thread = threading.Thread(target=_serve, name="mcr_dl exit", daemon=True)
        _thread.start()


def bounded(step: Callable[[], None]) -> None:
    """Run a step; give up waiting for it after some seconds. Without ``prepare`` it runs here, without a limit."""
    if _thread is None or not _thread.is_alive():
        step()
        return
    done = threading.Event()
    _steps.put((step, done))
    done.wait(_LIMIT_SECONDS)
