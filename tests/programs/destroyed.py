# SPDX-License-Identifier: Apache-2.0
"""The last rank is lost, and the others end twice what it belonged to: destroyed.py dimension|scheduler.

``dimension``: the group of a dimension, then the group that has the topology, then all. ``scheduler``: a ByteScheduler.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as torch_dist

import mcr_dl as dist
from mcr_dl.runtime import topologies
from mcr_dl.schedule import ByteScheduler


def lose(call: object) -> None:
    """Let the last rank die, and make a call that raises on the others."""
    if dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        call()  # type: ignore[operator]
    except dist.McrError as error:
        print(f"REPORTED {type(error).__name__}: {error}", flush=True)
    else:
        raise AssertionError("a call without the last rank has ended well")


def dimension() -> None:
    """Through torch's functions."""
    group = dist.new_group()
    rows = [{"name": "host", "size": 2}, {"name": "rank", "size": 2}]
    dist.set_topology({"format": topologies.FORMAT, "version": 1, "dimensions": rows}, group)
    line = dist.topology(group).group("rank")
    dist.all_reduce(torch.ones(1), group=line, backend="gloo")
    lose(lambda: dist.all_reduce(torch.ones(1), group=group, backend="gloo", async_op=True).wait())
    for each in (line, group, None):
        torch_dist.destroy_process_group(each)


def scheduler() -> None:
    """Its groups have MPI, and so are kept."""
    network = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    model = ByteScheduler(network, optimizer, backend="gloo")

    def step() -> None:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        model.synchronize()

    step()
    lose(step)
    model.close()
    model.close()
    dist.destroy_process_group()


dist.init_process_group(["mpi", "gloo"], timeout=timedelta(seconds=20), tuning_table="none")
{"dimension": dimension, "scheduler": scheduler}[sys.argv[1]]()
print("DONE", flush=True)
