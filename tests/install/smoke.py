# SPDX-License-Identifier: Apache-2.0
"""The calls that an installed wheel must serve, on each rank: torchrun --nproc-per-node 2 tests/install/smoke.py"""

import torch

import mcr_dl

mcr_dl.init_process_group(["mpi", "gloo"])
for backend in ("mpi", "gloo"):
    x = torch.ones(1000) * (mcr_dl.get_rank() + 1)
    mcr_dl.all_reduce(x, backend=backend)
    wanted = sum(range(1, mcr_dl.get_world_size() + 1))
    assert (x == wanted).all(), f"{backend}: expected {wanted}, got {x[0]}"
mcr_dl.destroy_process_group()
