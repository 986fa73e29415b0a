# SPDX-License-Identifier: Apache-2.0
"""Saves this rank's records, on demand and at the end of the program."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.base import variables
from mcr_dl.base.errors import McrError
from mcr_dl.base.warning import say, warn
from mcr_dl.passes import chain
from mcr_dl.records import log
from mcr_dl.runtime import meetings, state
from mcr_dl.trace import _clock, _configure, _files, _regions

VARIABLE = "MCR_DL_TRACE"  # the folder for traces at the end of the program
_AT_END = timedelta(seconds=10)  # for ranks that end without the others


def prepare_folder() -> None:
    """Make the folder, and warn now if it cannot hold traces: at the end of the program they would be lost."""
    target = variables.path(VARIABLE)
    if target is not None:
        variables.prepare_folder(VARIABLE, _files.file_of(target, 0).parent, "traces")


def with_log(specifications: list[Any]) -> list[Any]:
    """The passes of a new job: with the log first, if the environment asks for traces."""
    return specifications if variables.path(VARIABLE) is None else chain.with_log(specifications)


def _clock_of(current: state.State, patience: timedelta | None) -> _clock.Clock:
    launch = current.launch
    measured: tuple[int, int | None, str] = 0, None, _clock.WALL
    if patience is not None:
        store = meetings.meet_all("trace.save", patience)
        measured = _clock.measure(store, launch.rank, launch.size, patience)
    return _clock.Clock(*measured, *_clock.readings())


def capture(patience: timedelta | None) -> _files.Trace:
    """This rank's records so far; `patience`: how long to wait for the others to compare clocks; None: do not."""
    current = state.current()
    return _files.Trace(
        rank=current.launch.rank,
        ranks=current.launch.size,
        clock=_clock_of(current, patience),
        records=log.records(),
        regions=_regions.regions(),
        lost=log.lost(),
        saved=_C.log_now(),
        provenance=_files.provenance(current.job),
    )


def save(path: str | os.PathLike[str], *, align: bool = True) -> Path:
    """Write this rank's records to a file of its own, for ``mcr-trace``; returns the file.

    Args:
        path: a folder (``rank3.json`` in it), or a name that ends in ``.json`` (``name.rank3.json``).
        align: measure the offset of this rank's clock from rank 0's. All ranks of the job then call this together, and
            meet at the store. False: any rank may call at any time, even from a signal handler; the wall clocks of
            different hosts are then assumed to agree.

    Warns if the log is off and has no records. Raises NotInitializedError before init and after finalize;
    CollectiveTimeoutError, which says where the missing ranks are, if some do not call it within the default group's
    timeout; OSError if the file cannot be written.
    """
    trace = capture(state.current().default_timeout if align else None)
    if not trace.records and not log.is_on():
        warn(f"trace.save: {log.OFF}")
    return _files.write(trace, path)


def finish(*, together: bool) -> None:
    """At the end of the runtime: print the last lines of ``verbose`` and write what ``MCR_DL_TRACE`` asks for.

    A failure is reported and does not end the program.
    """
    _configure.reset()
    target = variables.path(VARIABLE)
    if target is None or not state.has_begun():
        return
    try:
        try:
            _files.write(capture(_AT_END if together else None), target)
        except (McrError, torch_dist.DistError):  # a rank did not come
            save(target, align=False)
    except Exception as error:
        say(f"mcr_dl: no trace in {target}: {type(error).__name__}: {error}")
