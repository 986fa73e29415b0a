# SPDX-License-Identifier: Apache-2.0
"""A program with another default device and element type than those of MCR-DL's own tensors: defaults.py BACKENDS."""

import sys

import torch

import mcr_dl as dist

torch.set_default_device("meta")
torch.set_default_dtype(torch.float64)
dist.init_process_group(sys.argv[1], timeout=60)
size = dist.get_world_size()
for name in dist.get_backends():
    x = torch.ones(4, device="cpu")
    dist.all_reduce(x, backend=name)
    assert x.tolist() == [size] * 4, (name, x)
objects = [None] * size
dist.all_gather_object(objects, dist.get_rank())
assert objects == [*range(size)], objects
for shape in (0, 4):
    shared = dist.empty_shared(shape)
    assert (shared.device.type, shared.dtype, shared.numel()) == ("cpu", torch.float64, shape), shared
for order in ("static", "leader"):
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8, device="cpu") for _ in range(3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = dist.schedule.ByteScheduler(model, optimizer, order=order)
    for _ in range(7):  # four steps to make the plan of
        scheduler(torch.ones(4, 8, device="cpu")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    scheduler.close()
sys.stdout.write("DONE\n")
dist.destroy_process_group()
