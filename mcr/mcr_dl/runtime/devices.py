# SPDX-License-Identifier: Apache-2.0
"""This process's device, and how device tensors reach libraries that take host memory."""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import Any

import torch
import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.base import agreement
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.libraries import registry
from mcr_dl.runtime.attempts import Attempt
from mcr_dl.runtime.stage import make_stage
from mcr_dl.runtime.state import State

# bench/gpu_check.sh compares sizes (docs/results/gpu.md).
_CHUNK = 4 << 20


def own(device_id: torch.device | int | None = None) -> int:
    """The index of this process's CUDA device: the given one, else the current one; -1 if there is none.

    Raises InvalidArgumentError if there is no such device.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device_id is None:
        return torch.cuda.current_device() if count else -1
    try:
        device = torch.device("cuda", device_id) if isinstance(device_id, int) else torch.device(device_id)
    except (RuntimeError, TypeError) as error:
        message = f"device_id: expected a device or the index of a CUDA device, got {device_id!r}"
        raise InvalidArgumentError(message) from error
    if device.type == "cpu":
        return -1
    index: int | None = device.index  # torch declares an int
    if index is None:
        index = torch.cuda.current_device() if count else 0
    if device.type != "cuda" or index >= count:
        message = f"device_id: expected cpu or one of {count} CUDA devices, got {device}"
        raise InvalidArgumentError(message)
    return index


def _chunk() -> int:
    """Bytes of one piece of a staged tensor, from ``MCR_DL_STAGING_CHUNK``; 0: tensors stay whole."""
    text = os.environ.get("MCR_DL_STAGING_CHUNK") or str(_CHUNK)  # checked when the runtime starts
    return 0 if text == "off" else int(text)


def _identity(index: int) -> str:
    properties = torch.cuda.get_device_properties(index)
    return str(getattr(properties, "uuid", f"{socket.gethostname()}:{index}"))


def _decide(values: list[dict[str, Any]]) -> int | None:
    """The common size of pieces; None if no rank has a device. Raises if ranks share a device, which NCCL rejects."""
    agreement.require_equal("MCR_DL_STAGING_CHUNK", [value["chunk"] for value in values])
    owners: dict[str, int] = {}
    for rank, value in enumerate(values):
        if value["device"] and value["alone"]:
            other = owners.setdefault(value["device"], rank)
            if other != rank:
                message = (
                    f"device_id: ranks {other} and {rank} have the same CUDA device, which NCCL refuses; call "
                    "torch.cuda.set_device(local_rank) before init_process_group (torch does not pass its device_id "
                    "on), or give device_id to mcr_dl.init_process_group"
                )
                raise InvalidArgumentError(message)
    return int(values[0]["chunk"]) if any(value["device"] for value in values) else None


def agree(current: State) -> int | None:
    """Agree on the devices of all ranks (see ``_decide``). Collective over the job."""
    mine = {
        "device": _identity(current.device) if current.device >= 0 else "",
        "alone": any(registry.describe(name).needs_own_device() for name in current.backends),
        "chunk": _chunk(),
    }
    store = torch_dist.PrefixStore("init", current.store)
    answer = agreement.agree(store, current.launch.rank, current.launch.size, "devices", mine, _decide)
    return None if answer is None else int(answer)


def stage(group: _C.Group, chunk: int, attempt: Attempt | None = None) -> None:
    """Let a group's host libraries take device tensors, by communicators of their own.

    ``attempt``: the one that this is a part of.
    """
    hosts = [name for name in group.backends if group._streams(name) is None]
    if not hosts:
        return
    make_stage(group, attempt)
    direct = {name: group._support(name, "broadcast", "uint8", "SUM", False, "cuda") for name in hosts}
    # All ranks hand over device memory alike: in one piece, or as pieces of a copy.
    what = "device memory given to the library (MCR_DL_MPI_STREAMS)"
    decide = partial(agreement.require_equal, what, ranks=group.ranks)
    (attempt or Attempt(group)).agree("staging", direct, decide)
    group._stage(chunk)
