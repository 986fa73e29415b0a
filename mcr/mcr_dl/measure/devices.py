# SPDX-License-Identifier: Apache-2.0
"""Support for measuring on a device: a device for each rank, the backends that serve it, synchronization of clocks."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mcr_dl.base import launcher
from mcr_dl.libraries import registry


def count(kind: str) -> int:
    """How many devices of a kind this process sees; 0 for cpu."""
    return 0 if kind == "cpu" else int(torch.get_device_module(kind).device_count())


def ranks_per_device(kind: str) -> int:
    """The largest number of ranks of this host that share a device; 1 on the CPU."""
    devices = count(kind)
    return 1 if devices == 0 else -(-launcher.local_size() // devices)


def take(kind: str) -> None:
    """Make this rank's device current: the rank's number on its host, modulo the number of visible devices.

    Call this before the runtime starts. Where ranks share a device, this tells the libraries that it is intended,
    unless the user's environment already does.
    """
    devices = count(kind)
    if devices == 0:
        return
    launch = launcher.detect()
    local = launch.local_rank if launch.local_rank >= 0 else launch.rank
    torch.get_device_module(kind).set_device(local % devices)
    if ranks_per_device(kind) > 1:
        for library in registry.DESCRIBED:
            library.share_device(launch.rank)


def synchronize(kind: str) -> Callable[[], object] | None:
    """A function that waits until the current device has finished; None where calls end when they return."""
    if kind == "cpu":
        return None
    done: Callable[[], object] = torch.get_device_module(kind).synchronize
    return done


def usable_backends(kind: str) -> list[str]:
    """The backends that can be used here and serve the device, in order of preference.

    Host libraries serve all kinds of devices, by staging.
    """
    return [name for name in registry.usable() if kind != "cpu" or kind in registry.describe(name).devices]
