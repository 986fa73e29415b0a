# SPDX-License-Identifier: Apache-2.0
"""Programs that would train the ranks of a ByteScheduler apart, each of which gets one error on all ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from mcr_dl.base.errors import McrError
from mcr_dl.schedule import ByteScheduler
from ranks.torch_training import life


class _Joined(nn.Module):
    """Two weights that are used as one, so that their gradients are parts of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.zeros(128, 128)), nn.Parameter(torch.zeros(128, 128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, torch.cat([self.first, self.second]))


def _clip(x: torch.Tensor) -> torch.Tensor:
    return x.clamp_(-1.0, 1.0)


def scripted_functions() -> None:
    """They cannot wait for a gradient: the step refuses what they have changed, unless the program has waited."""
    clip = torch.jit.script(_clip)
    with life("mcr"):
        model = _Joined()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = ByteScheduler(model, optimizer)

        def backward() -> None:
            optimizer.zero_grad()
            scheduler(torch.full((1, 128), 4.0 * dist.get_rank())).sum().backward()

        for _ in range(2):
            backward()
            optimizer.step()
        backward()
        scheduler.synchronize()
        for value in model.parameters():
            clip(value.grad)
        optimizer.step()
        scheduler.synchronize()
        mean = 2.0 * (dist.get_world_size() - 1)
        assert torch.equal(model.second, torch.full((128, 128), -2 * mean - 1))
        backward()
        clip(model.second.grad)
        with pytest.raises(McrError, match=r"gradient of second was changed while it .*; call synchronize\(\) before"):
            optimizer.step()
        with pytest.raises(McrError, match=r"an earlier operation failed: .* gradient of second"):
            optimizer.step()
        scheduler.close()
        assert model.second.grad is None
        dist.barrier()
