# SPDX-License-Identifier: Apache-2.0
"""Making and ending the core's groups, without their passes and dimensions (``mcr_dl.groups.factory`` adds these)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from mcr_dl import _C, watch
from mcr_dl.base.errors import BackendUnavailableError, CollectiveTimeoutError, InvalidArgumentError
from mcr_dl.runtime import communicators, devices, state, trials
from mcr_dl.runtime.attempts import Attempt

# All ranks raise these together at a start, or have waited for each other in vain.
_AGREED = (BackendUnavailableError, CollectiveTimeoutError, InvalidArgumentError)


def make(
    name: str,
    ranks: list[int],
    backends: Iterable[str],
    timeout: timedelta,
    *,
    mpi_comm: int | None = None,
    patience: float | None = None,
) -> _C.Group:
    """A connected group of global ranks that includes this process. Collective over its members: on all or on none.

    ``mpi_comm``, ``patience``: as for ``communicators.connect``.
    """
    current = state.current()
    group = communicators.make(name, ranks, list(backends), timeout, equip, mpi_comm=mpi_comm, patience=patience)
    current.groups[name] = group
    return group


def equip(group: _C.Group, attempt: Attempt | None = None) -> None:
    """Give a connected group its stage, its candidates and its costs. ``attempt``: the one that this is a part of."""
    current = state.current()
    if current.staging is not None:
        devices.stage(group, current.staging, attempt)
    current.tune(group)


def end_works(groups: Iterable[_C.Group]) -> None:
    """Fail the operations of groups that end: a wait for one that is still running raises at once."""
    _C.end_works([group._label for group in groups])


def abandon() -> None:
    """As ``forget``; operations that are still running fail."""
    groups = state.living()
    end_works(groups)
    forget()
    end_works(groups)  # those that other threads have started meanwhile


def forget(error: BaseException | None = None) -> None:
    """Give up everything at once; pending operations may not complete.

    Groups with a lost rank are kept until the process ends: closing their communicators may wait for that rank.

    ``error``: with which the start fails. Unless all ranks raise it, as they do after an agreement, they must not find
    that this one has ended as intended.
    """
    trials.stop()
    if error is not None and not isinstance(error, _AGREED):
        watch.stop(f"init_process_group() has raised {type(error).__name__}: {error}", well=False)
    watch.stop()
    for group in state.living():
        if communicators.is_broken(group) or communicators.holds_stuck(group):
            _C.keep_forever(group)
        else:
            group._close()
    _C.set_world(None)
    state.end()


def forget_group(group: _C.Group) -> None:
    """As ``abandon``, for one group and the groups that its passes and candidates use."""
    watch.compare()
    groups = state.current().with_shadows(group)
    end_works(groups)
    communicators.close(group.name())
    end_works(groups)  # those that other threads have started meanwhile
