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


def part_of_the_model_in_inference_mode() -> None:
    """Makes the first updates of its own parameters, and with them a state of the optimizer that later updates use."""
    with life("mcr"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        optimizer = torch.optim.Adam(model.parameters())
        scheduler = ByteScheduler(model, optimizer)
        for _ in range(3):
            scheduler(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.inference_mode():
                model[0](torch.ones(2, 4))
        scheduler.close()
        tensors = [each for state in optimizer.state.values() for each in state.values()]
        assert not any(each.is_inference() for each in tensors)
