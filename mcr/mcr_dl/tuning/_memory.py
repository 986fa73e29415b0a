# SPDX-License-Identifier: Apache-2.0
"""Refuses plans whose tensors do not fit into the memory of this host, before anything starts."""

from __future__ import annotations

from mcr_dl.measure import memory
from mcr_dl.tuning._journal import Plan


def require(plan: Plan, here: int) -> None:
    """Raise InvalidArgumentError if the tensors of a unit do not fit. ``here``: how many of the ranks this host has.

    Those of all sizes are there while one is timed.
    """
    for unit in plan.units if plan.device == "cpu" else ():
        wanted = memory.needed(unit.operation, unit.sizes, unit.dtype, plan.ranks, here)
        memory.require("--max-bytes", wanted, f"{unit} on {here} ranks")
