# SPDX-License-Identifier: Apache-2.0
"""A program for the first MCR-DL: ``upstream.py ENGINE BACKEND``."""

import os
import sys

import torch

import mcr_dl

engine, backend = sys.argv[1:]
assert mcr_dl.get_distributed_engine() is mcr_dl  # before anything runs
mcr_dl.init_processes(dist_engine=engine, dist_backend=backend)
dist = mcr_dl.get_distributed_engine()
assert dist.__name__ == {"mcr_dl": "mcr_dl", "torch": "torch.distributed"}[engine]
x = torch.full((4,), dist.get_rank() + 1.0)
dist.all_reduce(x)
assert x.tolist() == [3.0] * 4
assert int(os.environ["LOCAL_RANK"]) == dist.get_rank()
mcr_dl.init_distributed(dist_backend=backend, use_mcr_dl=engine == "mcr_dl", dist_init_required=False)  # it runs
if engine == "mcr_dl":
    mcr_dl.init_distributed(use_mcr_dl=True, config={"comms_logger": {"enabled": True}})
    dist.all_reduce(x)
    assert [record.op for record in mcr_dl.log_records()] == ["all_reduce"]
dist.destroy_process_group()
print("upstream: done", flush=True)
