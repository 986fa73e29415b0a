# SPDX-License-Identifier: Apache-2.0
"""The exception that ends the process; and steps at its end, with a time limit, as other ranks may have died."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.util
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable

_LIMIT_SECONDS = 10.0

_steps: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]] = queue.SimpleQueue()
_thread: threading.Thread | None = None
_watching = 0  # the process whose function is watched, see _watch_function()
_raised: BaseException | None = None
_EARLIEST, _LATEST = 1000, -1000  # of multiprocessing's finalizers
_last: Callable[[], int] | None = None  # the steps of at_end()
_last_done_in = 0  # the process that has done, or begun, these


def guarded(step: Callable[[], None]) -> None:
    """Run a step; its error is printed, as any that can no longer be caught."""
    try:
        step()
    except Exception:
        with contextlib.suppress(OSError, ValueError):  # closed, or a pipe that no process reads
            traceback.print_exc()


def _serve() -> None:
    while True:
        step, done = _steps.get()
        guarded(step)
        done.set()


def prepare() -> None:
    """Start the thread that will run the steps: since 3.12 Python starts no thread while it shuts down."""
    global _thread
    _watch_function()
    if _thread is None or not _thread.is_alive():  # a forked process has lost it
        _thread = threading.Thread(target=_serve, name="mcr_dl exit", daemon=True)
        _thread.start()


def bounded(step: Callable[[], None], *, patient: bool = False) -> None:
    """Run a step; stop waiting for it after some seconds, unless ``patient``: Ctrl-C still ends that wait.

    Without ``prepare`` it runs here, without a limit.
    """
    if _thread is None or not _thread.is_alive():
        step()
        return
    done = threading.Event()
    _steps.put((step, done))
    done.wait(None if patient else _LIMIT_SECONDS)


def at_end(steps: Callable[[], int]) -> None:
    """Do the steps once when this process ends, or one forked from it. They return an exit code; 0: the process's own.

    They set the code themselves where C's exit handlers run.
    """
    global _last
    _last = steps
    atexit.register(_do_last_once)


def _do_last_once() -> int:
    global _last_done_in
    if _last is None or _last_done_in == os.getpid():
        return 0
    _last_done_in = os.getpid()
    return _last()


# ---- a function of multiprocessing


def _watch_function() -> None:
    """In a process of multiprocessing: note the exception that ends its function, and do the steps at its end.

    multiprocessing catches and prints it, so Python does not treat it as uncaught. Its finalizers run before that.
    """
    global _watching, _raised
    if multiprocessing.parent_process() is not None and _watching != os.getpid():
        _watching, _raised = os.getpid(), None
        multiprocessing.util.Finalize(None, _note, exitpriority=_EARLIEST)
        if _ends_at_once():
            multiprocessing.util.Finalize(None, _do_last_after_function, exitpriority=_LATEST)


def _ends_at_once() -> bool:
    """Whether multiprocessing has forked this process: such a one ends by ``os._exit``, without exit handlers."""
    # None: the default method, which is the process's own, too.
    method: str | None = getattr(multiprocessing.current_process(), "_start_method", None)
    return (method or multiprocessing.get_start_method(allow_none=True)) != "spawn"


def _do_last_after_function() -> None:
    code = _do_last_once()
    if code:
        raise SystemExit(code)  # multiprocessing ends the process with it


def _note() -> None:
    global _raised
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        # torch.multiprocessing catches the exception and exits with 1.
        error = None if error.code in (None, 0) else error.__context__ or error
    _raised = error


def uncaught() -> BaseException | None:
    """The exception that ends this process, if there is one."""
    # An interactive session goes on after an exception, and keeps the last one until it ends.
    interactive = hasattr(sys, "ps1") or sys.flags.interactive
    error: BaseException | None = None if interactive else getattr(sys, "last_value", None)
    return _raised if error is None else error
