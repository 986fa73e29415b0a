# SPDX-License-Identifier: Apache-2.0
"""The descriptor of the backend ``shm``, which serves the ranks of one host."""

from __future__ import annotations

from mcr_dl.base import launcher
from mcr_dl.libraries.descriptor import Library


class Shm(Library):
    """Shared memory between processes under one kernel and in one network namespace."""

    automatic = True

    def domain(self) -> str:
        """The host's name, its running kernel, and the network namespace, in which the ranks meet."""
        return launcher.machine_with("/proc/self/ns/net")


LIBRARY = Shm("shm")
