# SPDX-License-Identifier: Apache-2.0
"""Refuses measurements whose tensors do not fit into the memory of this host, before anything starts."""

from __future__ import annotations

import re
from pathlib import Path

from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.commands.sizes import short_size_text
from mcr_dl.measure.cases import tensor_bytes
from mcr_dl.tuning._journal import Plan, Unit


def _needed(unit: Unit, ranks: int, here: int) -> int:
    """Bytes of the tensors on a host with so many of the ranks: those of all sizes are there while one is timed."""
    whole = 0
    for nbytes in unit.sizes:
        root, other = (tensor_bytes(unit.operation, nbytes, unit.dtype, rank, ranks) for rank in (0, 1))
        whole += root + (here - 1) * other
    return whole


def _available() -> float:
    """Bytes that the processes here can still take; infinite if the system does not say."""
    found = [float("inf")]
    try:
        known = re.search(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
        found += [int(known[1]) * 1024.0] if known else []
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()  # of a container
        found += [float(limit)] if limit.isdigit() else []
    except OSError:
        pass
    return min(found)


def require(plan: Plan, here: int) -> None:
    """Raise InvalidArgumentError if the tensors of a unit do not fit. ``here``: how many of the ranks this host has."""
    available = _available()
    for unit in plan.units if plan.device == "cpu" else ():
        needed = _needed(unit, plan.ranks, here)
        if needed > available:
            message = (
                f"argument --max-bytes: expected tensors that fit into the {short_size_text(int(available))} of memory "
                f"that this host has left, got {short_size_text(needed)} for {unit} on {here} ranks"
            )
            raise InvalidArgumentError(message)
