# SPDX-License-Identifier: Apache-2.0
"""Groups of the ranks that are left when others have been lost: ``shrink``."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.groups import group_options, survivors, torch_groups
from mcr_dl.runtime import handles


def shrink(
    group: handles.Group = None,
    timeout: timedelta | float | None = None,
    backend: str | Iterable[str] | None = None,
    pg_options: Any | None = None,
) -> torch_dist.ProcessGroup:
    """Make a new group of the members of a group that are left after a loss; each of them calls this.

    The survivors agree on who is left, also if more are lost meanwhile. The old group stays as it is: its calls raise
    PeerLostError. The new group's ranks are in the old order, and its calls are numbered from the first. If no rank has
    been lost, the new group has all members.

    Args:
        group: the group that has lost ranks; None: the default group.
        timeout: of the new group's operations, and for the survivors to arrive; the old group's by default.
        backend: names as for new_group. By default those of the old group. A library that starts on all ranks of a
            job together (MPI) may wait for the lost rank: the survivors first try whether it connects them, for some
            seconds at most and in jobs on one host only. A warning names what is left out, and why.
        pg_options: as for new_group.

    Raises CollectiveTimeoutError if a member is running but does not call, BackendUnavailableError if no backend is
    left or one cannot connect the survivors, BackendError if the job's store has ended with the lost rank. Source:
    torch.distributed.shrink_group, which has the ranks to exclude as an argument.
    """
    old = handles.core_group(group)
    limit = old.timeout if timeout is None else _C.timeout(timeout)
    asked = group_options.named(backend, pg_options) or None
    forming = survivors.of("shrink", old, list(old.ranks), limit, group_options.wish(pg_options, old), asked)
    return torch_groups.publish_agreed(forming.shrink())
