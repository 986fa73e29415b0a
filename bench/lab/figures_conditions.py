# SPDX-License-Identifier: Apache-2.0
"""The conditions under which figures were measured."""

from __future__ import annotations

import os
import platform
import socket
from typing import Any

import torch

import mcr_dl as dist
from mcr_dl.runtime import state
from mcr_dl.trace import _files

# Variables that select the NICs and transports of the libraries, and mcr_dl's choices.
_PREFIXES = ("GLOO_", "UCX_", "MPIR_CVAR_", "MCR_DL_", "OMP_NUM_THREADS", "FI_")


def load() -> list[float]:
    """The machine's load average now."""
    return list(os.getloadavg())


def conditions() -> dict[str, Any]:
    """Ranks, hosts, cores, versions, settings. All ranks call this together."""
    hosts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    return {
        "load_average": load(),
        "ranks": dist.get_world_size(),
        "hosts": len(set(hosts)),
        "ranks_per_host": max(hosts.count(host) for host in hosts),
        "cores": os.cpu_count(),
        "threads_per_rank": torch.get_num_threads(),
        "python": platform.python_version(),
        "settings": {
            name: os.path.basename(value) if value.startswith(os.sep) else value
            for name, value in sorted(os.environ.items())
            if name.startswith(_PREFIXES)
        },
        "provenance": _files.provenance(state.current().job),
    }
