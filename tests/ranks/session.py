# SPDX-License-Identifier: Apache-2.0
"""``mcr_dl.testing.session`` with the backends of the tests as its default."""

from __future__ import annotations

from mcr_dl.testing import session
from mcr_dl.testing.session import SUBGROUPS, group, groups, members, stop

__all__ = ["BACKENDS", "SUBGROUPS", "group", "groups", "members", "start", "stop"]

BACKENDS = ("mpi", "gloo", "shm")


def start(*backends: str) -> None:
    """Initialize with these backends (those of the tests by default), unless they already run."""
    session.start(*(backends or BACKENDS))
