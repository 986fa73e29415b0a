# SPDX-License-Identifier: Apache-2.0
"""Ranks whose forked children call what ends, changes or makes groups: forking.py BACKEND FOLDER."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as torch_dist

import mcr_dl as dist
from mcr_dl import trace
from mcr_dl.measure.ranks import die_with


def topology(name: str) -> dict[str, object]:
    """A document of two dimensions."""
    rows = [{"name": name, "size": dist.get_world_size()}, {"name": "one", "size": 1}]
    return {"format": "mcr-dl topology", "version": 1, "dimensions": rows}


def refused(backend: str, pair: torch_dist.ProcessGroup, folder: Path) -> dict[str, str]:
    """Make the calls in a forked process; those that do not raise as they should, and what they do instead."""
    calls = {
        "destroy_process_group": dist.destroy_process_group,
        "destroy_process_group(pair)": lambda: dist.destroy_process_group(pair),
        "finalize": dist.finalize,
        "finalize(backend)": lambda: dist.finalize([backend]),
        "init_process_group": lambda: dist.init_process_group(backend),
        "torch's destroy_process_group": torch_dist.destroy_process_group,
        "torch's destroy_process_group(pair)": lambda: torch_dist.destroy_process_group(pair),
        "torch's _abort_process_group": torch_dist.distributed_c10d._abort_process_group,
        "set_topology": lambda: dist.set_topology(topology("child")),
        "set_passes": lambda: dist.set_passes([]),
        "refine": lambda: dist.refine(0.1),
        "new_group": lambda: dist.new_group([0, 1]),
        "new_group, local": lambda: dist.new_group([0, 1], use_local_synchronization=True),
        "split_group": lambda: dist.split_group(split_ranks=[[0, 1]]),
        "shrink": dist.shrink,
        "grow": dist.grow,
        "barrier": dist.barrier,
        "synchronize": dist.synchronize,
        "monitored_barrier": dist.monitored_barrier,
        "all_gather_object": lambda: dist.all_gather_object([None, None], 1),
        "log_summary": lambda: dist.log_summary(show_straggler=True),
        "trace.save": lambda: trace.save(folder / "trace.json"),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except dist.NotInitializedError as error:
            if "was forked from rank" not in str(error):
                found[name] = f"raises {error}"
        except BaseException as error:
            found[name] = f"raises {type(error).__name__}: {error}"
        else:
            found[name] = "returns"
    return found


def stay_until_the_end_of(parent: int) -> None:
    """Fork a process that has copies of all descriptors, as a DataLoader's persistent worker."""
    if os.fork() == 0:
        die_with(parent)
        for standard in (1, 2):
            os.close(standard)
        time.sleep(600)
        os._exit(0)


def main(backend: str, folder: str) -> None:
    """The parent's job goes on as if there were no child."""
    dist.init_process_group(backend, timeout=60)
    pair = dist.new_group([0, 1])
    x = torch.ones(4)
    dist.all_reduce(x)
    with (Path(folder) / f"rank-{dist.get_rank()}").open("w+b") as file:
        child = os.fork()
        if child == 0:
            print("CHILD", refused(backend, pair, Path(folder)), flush=True)
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        print("CODE", os.waitstatus_to_exitcode(status), flush=True)
        dist.all_reduce(x)
        dist.all_reduce(x, group=pair)
        assert x.eq(8).all(), x
        dist.set_topology(topology("parent"))
        assert dist.topology().names == ("parent", "one"), dist.topology()
        dist.monitored_barrier()
        stay_until_the_end_of(os.getpid())
        dist.destroy_process_group()
        assert file.read() == b""
    print("DONE", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
