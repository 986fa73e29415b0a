# SPDX-License-Identifier: Apache-2.0
"""Ways in which a program gets mcr_dl's object: ``deepspeed_ways.py WAY FOLDER``; it imports mcr_dl late."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import deepspeed
import deepspeed.comm as dist
import torch

WAY, FOLDER = sys.argv[1], Path(sys.argv[2])
if WAY == "foreign group":
    import mcr_dl

    torch.distributed.init_process_group("gloo")
    mcr_dl.deepspeed.install("mpi")
elif WAY == "torch's group":
    torch.distributed.init_process_group("cpu:mcr")
deepspeed.init_distributed(dist_backend="mcr" if WAY == "name" else None, verbose=False)

import mcr_dl  # noqa: E402

total = torch.full((3,), dist.get_rank() + 1.0)
dist.all_reduce(total)
group = dist.new_group([1, 0])
part = torch.full((3,), dist.get_rank() + 1.0)
dist.all_reduce(part, group=group)
mesh = dist.initialize_mesh_device((2,), ("data",))
along = torch.full((3,), dist.get_rank() + 1.0)
dist.all_reduce(along, group=mesh.get_group("data"))
found: dict[str, Any] = {
    "object": dist.comm.cdb.name,
    "underneath": mcr_dl.get_backends(),
    "sums": [float(tensor[0]) for tensor in (total, part, along)],
}
if WAY == "foreign group":
    theirs = torch.distributed.new_group([0, 1])
    try:
        dist.all_reduce(total, group=theirs)
    except mcr_dl.InvalidTypeError as error:
        found["foreign"] = str(error)
(FOLDER / f"{dist.get_rank()}.json").write_text(json.dumps(found))
dist.destroy_process_group()
if WAY == "foreign group":
    torch.distributed.destroy_process_group()
