# SPDX-License-Identifier: Apache-2.0
"""What measuring on a device needs: each rank on one, the backends that serve it, clocks stopped when it is done."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from mcr_dl import _backends, _launch

_DEVICES_ALONE = ("nccl",)  # backends that take no tensors in host memory
_SHARING = (2, 30)  # NCCL's first version that lets ranks share a device when it is told to


def count(kind: str) -> int:
    """How many devices of a kind this process sees; 0 for cpu, which is none."""
    return 0 if kind == "cpu" else int(torch.get_device_module(kind).device_count())


def ranks_per_device(kind: str) -> int:
    """How many ranks of this host share a device at most; 1 on the CPU."""
    devices = count(kind)
    return 1 if devices == 0 else -(-_launch.local_size() // devices)


def take(kind: str) -> None:
    """Make this rank's device current: its number on its host, modulo the devices that it sees.

    To be called before the runtime starts. Where ranks share a device, NCCL is told that this is meant, unless the
    user's environment says something about it: a variable from 2.30 on, a name of its own for each rank before.
    """
    devices = count(kind)
    if devices == 0:
        return
    launch = _launch.detect()
    local = launch.local_rank if launch.local_rank >= 0 else launch.rank
    torch.get_device_module(kind).set_device(local % devices)
    if ranks_per_device(kind) > 1:
        share(launch.rank)


def share(rank: int) -> None:
    """Let NCCL take several ranks on one device, without overwriting what the environment says."""
    if torch.cuda.is_available() and torch.cuda.nccl.version() < _SHARING:  # type: ignore[no-untyped-call]
        os.environ.setdefault("NCCL_HOSTID", f"mcr-rank-{rank}")
    else:
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")


def settle(kind: str) -> Callable[[], object] | None:
    """What waits until the current device has done all that it was given; None where calls end when they return."""
    if kind == "cpu":
        return None
    done: Callable[[], object] = torch.get_device_module(kind).synchronize
    return done


def serves(name: str, kind: str) -> bool:
    """Whether a backend is measured for tensors of a kind of device: host libraries are for all, staged if need be."""
    return kind != "cpu" or name not in _DEVICES_ALONE


def usable_backends(kind: str) -> list[str]:
    """The backends that can be used here and serve the device, in the order of preference."""
    return [name for name in _backends.usable() if serves(name, kind)]
