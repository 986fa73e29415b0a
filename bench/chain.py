# SPDX-License-Identifier: Apache-2.0
"""The cost of passes: blocking calls of groups with different chains, on the backend without communication.

Part of overhead.py.
"""

from __future__ import annotations

from typing import Any

import torch

import mcr_dl
import script

CALLS, SMOKE_CALLS = 50_000, 100  # of each in a round


class HandsOn:
    """The smallest possible pass in Python."""

    name = "hands_on"

    def handle(self, call: Any) -> Any:
        """Pass the call on."""
        return call.proceed()


# In one process, so that only the chains differ; "passes removed" has had passes before.
CHAINS = {"no pass": None, "passes removed": [], "log": ["log"], "fuse": ["fuse"], "one in Python": ["hands_on"]}


def measure(calls: int = CALLS) -> dict[str, float]:
    """Median ns per call by chain, interleaved. Starts and ends a runtime of this process alone."""
    mcr_dl.init_process_group("null", store=mcr_dl.HashStore(), rank=0, world_size=1, tuning_table="none", passes=[])
    mcr_dl.register_pass(HandsOn())
    loops = {}
    for name, passes in CHAINS.items():
        group = mcr_dl.new_group()
        if passes is not None:
            mcr_dl.set_passes(passes or ["fuse"], group)
            mcr_dl.set_passes(passes, group)
        names = {"f": mcr_dl.all_reduce, "x": torch.ones(4), "g": group}
        loops[name] = script.timed_statement("f(x, group=g)", names)
    taken = script.medians(loops, calls)
    mcr_dl.destroy_process_group()
    return taken


if __name__ == "__main__":
    parser = script.parser(__doc__)
    parser.add_argument("--calls", type=int, default=CALLS, help=f"calls in a round ({CALLS:,})")
    for name, nanoseconds in measure(script.parse(parser, calls=SMOKE_CALLS).calls).items():
        print(f"{name:20} {nanoseconds:7.1f} ns")
