# SPDX-License-Identifier: Apache-2.0
"""Sizes of the three workloads: on NICs of 400 and 200 Mbit/s communication takes most of a step."""

from __future__ import annotations

from collections.abc import Callable

import mcr_dl as dist
from mcr_dl.examples import dlrm, dlrm_model, gpt, gpt_model, moe, moe_model, program

# Work grows with the ranks (weak scaling): this many windows of 128 bytes, or samples, for each rank or model.
MOE_WINDOWS = 12
DLRM_SAMPLES = 256
DENSE_WINDOWS = 6
MEGABYTES = 1.0  # of text


def _scaled(number: int, scale: float) -> int:
    return max(1, round(number * scale))


def moe_workload(seed: int, scale: float) -> program.Workload:
    """Mixture of experts, two experts for each token."""
    shape = moe_model.Shape(width=128, hidden=128, choices=2)
    return moe.Workload(shape, _scaled(MOE_WINDOWS, scale) * dist.get_world_size(), megabytes=MEGABYTES, seed=seed)


def dlrm_workload(seed: int, scale: float) -> program.Workload:
    """The paper's recommendation model. Sums as the libraries compute them: exact ones would double the bytes."""
    return dlrm.Workload(
        dlrm_model.Shape(), _scaled(DLRM_SAMPLES, scale) * dist.get_world_size(), exact=False, seed=seed
    )


def dense_workload(seed: int, scale: float) -> program.Workload:
    """Dense model, two ranks for each copy of it."""
    copies = gpt.Grid(dist.get_rank(), dist.get_world_size()).copies
    shape = gpt_model.Shape(width=256, heads=4, hidden=1024)
    return gpt.Workload(shape, _scaled(DENSE_WINDOWS, scale) * copies, megabytes=MEGABYTES, seed=seed)


WORKLOADS: dict[str, Callable[[int, float], program.Workload]] = {
    "moe": moe_workload,
    "dlrm": dlrm_workload,
    "dense": dense_workload,
}
