# SPDX-License-Identifier: Apache-2.0
"""The end of the process: of the runtime, if it runs, and of the libraries, together with the other ranks."""

from __future__ import annotations

from mcr_dl import _C, watch
from mcr_dl.base.warning import say
from mcr_dl.libraries import registry
from mcr_dl.runtime import core_groups, exit_steps, state, trials
from mcr_dl.trace import saving

_EXIT_DESYNC = 70  # as for a process that ends itself in a call that cannot continue


def ends_all() -> bool:
    """Whether the end of this process would end those of the other ranks, unless all have come to theirs."""
    return any(library.ends_all() for library in registry.DESCRIBED)


def _leave_job() -> int:
    """End the runtime and the libraries with the process; returns the exit code, 0: the process's own."""
    if watch.forked():
        _C.leave()
        return 0
    error = exit_steps.uncaught()
    if error is None:
        state.run_endings()
    desync = watch.compare_last() if error is None else ""
    if desync:
        say(f"mcr_dl: DesyncError: {desync}")
        _C.fail_at_exit(_EXIT_DESYNC)
    trials.stop()
    reason = "it has ended" if error is None else f"it has raised {type(error).__name__}: {error}"
    watch.stop(reason, well=error is None, by_code=not desync)  # the code of a desync is that of all ranks
    if state.has_begun():
        saving.finish(together=False)
    # Libraries end collectively. After an uncaught exception, or without a rank, the others may never get there: then
    # this process exits at once, so that the launcher ends the others.
    intact = all(library.ends_with(*state.last()) for library in registry.DESCRIBED)
    # After destroy_process_group() no call of another rank waits for this one. Before, the launcher is to end it.
    patient = not state.has_begun() and ends_all()
    together = watch.leave_together(error is None and not desync and intact, patient=patient)
    for library in registry.DESCRIBED:
        library.leave()
    if together and state.has_begun():
        exit_steps.bounded(core_groups.forget)
    _C.leave()  # the system cleans up the rest
    if together:
        # The launcher's MPI may have ranks of other jobs, which end later. A thread in a library may never leave it.
        stuck = any(not each["waits"] for each in _C.activities())
        exit_steps.bounded(_C.shutdown, patient=patient and not stuck)
    watch.close()
    return _EXIT_DESYNC if desync else 0


def _leave_job_and_close() -> int:
    try:
        return _leave_job()
    finally:
        for library in registry.DESCRIBED:
            exit_steps.guarded(library.close)


exit_steps.at_end(_leave_job_and_close)
