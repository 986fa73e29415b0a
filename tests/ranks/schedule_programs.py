# SPDX-License-Identifier: Apache-2.0
"""ByteScheduler with other groups, modes and optimizers than in the usual training loop."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

import mcr_dl
from mcr_dl.schedule import ByteScheduler
from ranks.torch_training import life


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def group_in_another_order() -> None:
    """Parameters and buffers come from the first rank of the group, which is not the lowest one."""
    with life("mcr"):
        first = dist.get_world_size() - 1
        group = mcr_dl.new_group(range(first, -1, -1), sort_ranks=False)
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        with torch.no_grad():
            model[0].weight.fill_(dist.get_rank())
            model[1].running_mean.fill_(dist.get_rank())
        scheduler = ByteScheduler(model, _sgd(model), group=group)
        assert scheduler._core.ranks == scheduler._outer.ranks
        assert torch.equal(model[0].weight, torch.full((2, 2), float(first)))
        assert torch.equal(model[1].running_mean, torch.full((2,), float(first)))
        scheduler.close()
