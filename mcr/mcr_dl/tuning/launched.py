# SPDX-License-Identifier: Apache-2.0
"""``mcr-tune`` in ranks that torchrun, mpiexec or srun has started.

This process cannot restart these ranks. A step that hangs or crashes ends the job; the step is in the journal, so the
same command with ``--resume`` continues without the candidate that was running, or times those that were one by one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from mcr_dl import _C, watch
from mcr_dl.base import stores
from mcr_dl.base.warning import say
from mcr_dl.commands.arguments import FAILED
from mcr_dl.groups import default_group
from mcr_dl.measure import devices
from mcr_dl.measure.ranks import orderly_end
from mcr_dl.runtime import state
from mcr_dl.tuning._journal import Journal, Plan, Progress, blamed
from mcr_dl.tuning.worker import Worker, start

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PROGRESS = "tune/progress"  # at the store
_LATER_SECONDS = 2.0  # the other ranks leave after rank 0, which has something to write
_SIGNAL_SECONDS = 2.0  # until the launcher's signal comes, once another rank has ended
_NOTES_SECONDS = 0.5  # for the notes of the ranks that end at the same time, and for news of one that has crashed


class _Watched(Worker):
    """A worker whose ranks exit when a step takes too long; rank 0 records the candidate."""

    def __init__(self, plan: Plan, progress: Progress, journal: Journal, limit: float) -> None:
        super().__init__(plan, progress, journal)
        self.limit = limit
        self._heard = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def note(self, event: str, **values: Any) -> None:
        """As Worker.note; also counts as a sign of life."""
        self._heard = time.monotonic()
        super().note(event, **values)

    def _watch(self) -> None:
        later = 0.0 if self.journal is not None else _LATER_SECONDS
        patience = self.progress.patience(self.plan, self.limit)
        while time.monotonic() - self._heard < patience + later:
            time.sleep(0.2)
            patience = self.progress.patience(self.plan, self.limit)
        if self.journal is not None:
            reason = f"no progress for {patience:.0f} s"
            say(f"mcr-tune: {blame(self.journal, self.progress, reason)}")
        os._exit(FAILED)  # its threads are inside the library that hangs


def blame(journal: Journal, progress: Progress, reason: str) -> str:
    """Record the candidates that were running when the ranks hung or died; returns the text for the user."""
    step = progress.step
    if step is None:
        return reason
    journal.add(**blamed(step, reason))
    names = step["candidates"]
    advice = "time them one by one" if len(names) > 1 else "go on without"
    return f"{step['operation']} on {', '.join(names)}: {reason}; run it again with --resume to {advice}"


def _shared(plan: Plan, journal: Journal, *, resume: bool) -> Progress:
    """Share rank 0's journal with all ranks through the store: the others may not see its file."""
    store, rank = state.current().store, state.current().launch.rank
    if rank == 0:
        progress = Progress()
        journal.take(create=not resume)
        if resume:
            progress = journal.resume(plan)
            if progress.step is not None:
                blame(journal, progress, "the ranks died")
        else:
            journal.begin(plan)
        for event in journal.news():
            progress.take(event)
        document = asdict(progress)
        document |= {"done": list(progress.done), "apart": list(progress.apart)}
        stores.leave(store, _PROGRESS, stores.encode(document))
    document = stores.value_of(store, _PROGRESS, store.get(_PROGRESS), "the progress that rank 0 told")
    for name in ("done", "apart"):
        document[name] = {tuple(each) for each in document[name]}
    return Progress(**document)


class _Ending:
    """Notes that a signal ends this rank. If it ends all ranks, no candidate is to blame; but launchers also end the
    ranks that are left when one has crashed, which leaves no note.
    """

    def __init__(self, journal: Journal | None) -> None:
        self._journal, self._lock, self._noted = journal, threading.Lock(), False

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Write the note if a signal ends the block; further ones do not keep it from that.

        A thread hears the signals too: Python's handlers wait for the main thread, which may stay in a library's call
        until the launcher or the watch ends the process.
        """
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(reader,), daemon=True).start()
        try:
            with orderly_end():
                try:
                    yield
                except (KeyboardInterrupt, SystemExit):  # by the user or the launcher
                    handlers = [(each, signal.signal(each, signal.SIG_IGN)) for each in _SIGNALS]
                    self._note()
                    for each, handler in handlers:
                        signal.signal(each, handler)
                    raise
        finally:
            signal.set_wakeup_fd(before)
            writer.close()  # which ends the thread

    def _listen(self, reader: socket.socket) -> None:
        with reader:
            while numbers := reader.recv(64):
                if {*numbers} & {*_SIGNALS}:
                    self._note()

    def _note(self) -> None:
        with self._lock:
            if not self._noted:
                self._noted = True
                self._write()

    def _write(self) -> None:
        current = state.current()
        with contextlib.suppress(*stores.STORE_ERRORS):
            current.store.set(f"tune/ended/{current.launch.rank}", "")
            time.sleep(_NOTES_SECONDS if self._journal is not None else 0)
            if not all(current.store.check([f"tune/ended/{rank}"]) for rank in watch.lost()):
                return
        if self._journal is not None:
            self._journal.add("interrupted")


def run(plan: Plan, journal: Journal, limit: float, *, resume: bool) -> Progress | None:
    """Measure in this process, which is a rank. Returns the progress on rank 0, None on the others.

    A plan without backends is of those that the ranks start.
    """
    devices.take(plan.device)
    start(plan.backends, plan.device)
    plan = replace(plan, backends=tuple(state.current().backends))
    worker = _Watched(plan, _shared(plan, journal, resume=resume), journal, limit)
    with _Ending(worker.journal).noted():
        _measure(worker)
    worker.limit = float("inf")
    first = _C.world().rank() == 0  # type: ignore[union-attr]
    default_group.destroy_process_group()
    return worker.progress if first else None


def _measure(worker: Worker) -> None:
    try:
        worker.run()
    except RuntimeError:  # another rank may have ended first: this one's signal comes too if a launcher ends all
        time.sleep(_SIGNAL_SECONDS)
        raise
