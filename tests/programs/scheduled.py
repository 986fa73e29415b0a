# SPDX-License-Identifier: Apache-2.0
"""Trains with ByteScheduler; in a backward pass, rank 1 is lost. Usage: scheduled.py BACKEND FAULT ORDER."""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch import nn

import mcr_dl as dist

BACKEND, FAULT, ORDER = sys.argv[1:]


def lose(_: torch.Tensor) -> None:
    """The fault of rank 1."""
    if FAULT == "raise":
        raise ValueError("bad batch")
    os.kill(os.getpid(), signal.SIGKILL if FAULT == "kill" else signal.SIGSTOP)


torch.set_num_threads(1)
dist.init_process_group([BACKEND], timeout=5)
model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = dist.schedule.ByteScheduler(model, optimizer, partition=8192, credit=16384, order=ORDER)
for step in range(12):
    if step == 8 and dist.get_rank() == 1:
        model[1].weight.register_hook(lose)
    scheduler(torch.randn(4, 128)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
