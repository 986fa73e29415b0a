# SPDX-License-Identifier: Apache-2.0
"""Starts the runtime in a rank that measures calls of its own."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from datetime import timedelta

from mcr_dl.base import launcher, variables
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.groups import lifecycle
from mcr_dl.libraries import registry
from mcr_dl.runtime import topologies
from mcr_dl.runtime.startup import Automatic


def start(
    named: Iterable[str],
    device: str,
    *,
    automatic: bool,
    timeout: timedelta | None = None,
    tuning_table: str | None = "none",
) -> None:
    """Start these backends, with ``automatic`` also those of ``auto`` that serve the device and that all ranks can use.

    A process alone cannot tell which ones these are: other hosts may lack a library, and some connect only one host.
    """
    names = list(named)
    variables.leave_out_passes()
    if not any(map(registry.is_hierarchical, names)):
        _leave_out_topology()
    also = Automatic("cpu" if device == "cpu" else None, tuple(names))
    lifecycle.start("auto" if automatic else names, timeout=timeout, tuning_table=tuning_table, automatic=also)


def _leave_out_topology() -> None:
    """Remove the variable of a topology if that is of a job with more ranks or fewer; start() reads any other one."""
    path, launch = os.environ.get(topologies.VARIABLE, ""), launcher.detect()
    try:
        sizes = [each["size"] for each in topologies.read(path)["dimensions"]] if path else []
    except InvalidArgumentError:
        return  # all ranks get the error
    if not path or math.prod(sizes) == launch.size:
        return
    del os.environ[topologies.VARIABLE]
    if launch.rank == 0:
        shape = " x ".join(map(str, sizes))
        text = f"{topologies.VARIABLE} is not used: expected {launch.size} ranks, got a topology of {shape}"
        print(f"mcr_dl: {text}", file=sys.stderr, flush=True)
