# SPDX-License-Identifier: Apache-2.0
"""Steps at the end of the process, which may hang if other ranks have died; so they have a time limit."""

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
            traceback.print_exc()  # as for any failure that can no longer be caught
        done.set()


def prepare() -> None:
    """Start the thread that will run the steps: since 3.12 Python starts no thread while it shuts down."""
    global _thread
    if _thread is None or not _thread.is_alive():  # a forked process has lost it
        _thread = threading.Thread(target=_serve, name="mcr_dl exit", daemon=True)
        _thread.start()


def bounded(step: Callable[[], None]) -> None:
    """Run a step; stop waiting for it after some seconds. Without ``prepare`` it runs here, without a limit."""
    if _thread is None or not _thread.is_alive():
        step()
        return
    done = threading.Event()
    _steps.put((step, done))
    done.wait(_LIMIT_SECONDS)
