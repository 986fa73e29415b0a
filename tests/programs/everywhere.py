# SPDX-License-Identifier: Apache-2.0
"""A user's program that runs unchanged under every launcher: both backends, mixed, and one line per rank."""

import torch

import mcr_dl as dist
from mcr_dl.base import launcher

dist.init_process_group(["mpi", "gloo"])
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.full((4,), float(rank + 1))
work = dist.all_reduce(x, backend="mpi", async_op=True)
blocks = torch.empty(size, dtype=torch.int64)
dist.all_gather_into_tensor("gloo", blocks, torch.tensor([rank]))
work.wait()
assert x.tolist() == [size * (size + 1) / 2] * 4
assert blocks.tolist() == list(range(size))
library = dist.available_backends()["mpi"].removeprefix("ok: ")
dist.finalize()
print(f"rank {rank} of {size} under {launcher.detect().launcher} with {library}: done", flush=True)
