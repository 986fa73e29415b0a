# SPDX-License-Identifier: Apache-2.0
"""TORCH_DISTRIBUTED_DEBUG=DETAIL, where torch checks every call: training is the same as without; errors are named."""

import importlib
import sys

import torch
import torch.distributed as dist

import mcr_dl
from ranks.torch_training import Results, life, same

BACKEND = sys.argv[1]
CASES = (
    "torch_ddp.plain",
    "torch_ddp.find_unused_parameters",
    "torch_ddp.own_hook",
    "torch_ddp.join",
    "torch_fsdp.prefetch",
    "torch_pipeline.gpipe",
    "torch_pipeline.interleaved",
    "torch_functions.eager",
)


def result(case: str, backend: str, level: dist.DebugLevel) -> Results:
    """The case on this backend, at this level."""
    dist.set_debug_level(level)
    module, _, name = case.rpartition(".")
    with life(backend):
        torch.manual_seed(0)
        outcome: Results = getattr(importlib.import_module(f"ranks.{module}"), name)(backend)
        wrapper = type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__
        assert ("Wrapper" in wrapper) == (level == dist.DebugLevel.DETAIL), wrapper
    return outcome


def expect_mismatch(call) -> None:
    """Check that the wrapper compares the ranks' calls before it makes them."""
    text = "no error"
    try:
        call()
    except RuntimeError as error:
        text = str(error)
    assert "mismatch" in text, text


assert dist.get_debug_level() == dist.DebugLevel.DETAIL
for case in CASES:
    # At this level torch's DDP mistakes the wrapper of a group called "gloo" for gloo itself and crashes (torch 2.13).
    same(result(case, BACKEND, dist.DebugLevel.DETAIL), result(case, "gloo", dist.DebugLevel.OFF), exact=True)

dist.set_debug_level(dist.DebugLevel.DETAIL)
with life(BACKEND):
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.ones(4)
    dist.all_reduce(total, group=dist.new_group())
    assert total.tolist() == [size] * 4
    expect_mismatch(lambda: dist.all_reduce(torch.ones(4 + rank)))
    expect_mismatch(lambda: dist.all_reduce(total) if rank else dist.broadcast(total, 0))
    dist.group.WORLD.monitored_barrier()  # torch.distributed's function of this name is for gloo alone
dist.init_process_group("gloo")
for _ in range(2):  # the wrappers of the second life's groups do not find the addresses of the first one's
    mcr_dl.init_process_group("gloo")
    total = torch.ones(4)
    dist.all_reduce(total, group=mcr_dl.new_group())
    assert total.tolist() == [size] * 4
    mcr_dl.destroy_process_group()
dist.destroy_process_group()
print(f"rank {rank}: done", flush=True)
