# SPDX-License-Identifier: Apache-2.0
"""Counts the calls of each library: calls of torch.distributed's functions, and records of mcr_dl's log."""

from __future__ import annotations

import faulthandler
import functools
import os
from collections import Counter
from typing import Any

import torch.distributed as torch_dist

import mcr_dl
from mcr_dl import _C

faulthandler.dump_traceback_later(max(float(os.environ["JOB_SECONDS"]) - 5, 1))  # shows where it hangs

torch_calls: Counter[str] = Counter()
_NAMES = {row["name"] for row in _C.signatures()} | {
    "all_reduce_coalesced",
    "all_gather_coalesced",
    "all_gather_object",
    "broadcast_object_list",
    "batch_isend_irecv",
    "monitored_barrier",
}


def _counted(name: str, function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        torch_calls[name] += 1
        return function(*args, **kwargs)

    return call


def watch_torch() -> None:
    """Count from now on; call this before a module keeps a reference to a function of torch.distributed."""
    for module in (torch_dist, torch_dist.distributed_c10d):
        for name in _NAMES:
            if hasattr(module, name):
                setattr(module, name, _counted(name, getattr(module, name)))


def log_ours() -> None:
    """Record the calls of all groups that are made from now on."""
    os.environ["MCR_DL_PASSES"] = "log"


def ours() -> dict[str, int]:
    """Calls of mcr_dl by operation."""
    return dict(Counter(record.name for record in mcr_dl.log_records()))
