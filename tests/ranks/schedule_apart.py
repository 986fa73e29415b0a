# SPDX-License-Identifier: Apache-2.0
"""Programs that would train the ranks of a ByteScheduler apart, each of which gets one error on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from mcr_dl.base.errors import McrError, UnsupportedError
from mcr_dl.schedule import ByteScheduler
from ranks.torch_training import life


class _Changing(torch.optim.SGD):
    """SGD that changes gradients before its updates."""

    def __init__(self, model: nn.Module, change: Callable[[list[nn.Parameter]], None], lr: float) -> None:
        super().__init__(model.parameters(), lr=lr)
        self.change = change

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step."""
        self.change([value for group in self.param_groups for value in group["params"]])
        return super().step(closure)


def _limit(values: list[nn.Parameter]) -> None:
    total = torch.stack([value.grad.norm() for value in values if value.grad is not None]).norm()
    for value in values:
        assert value.grad is not None
        value.grad = value.grad / total.clamp(min=1.0)


def _limit_each(values: list[nn.Parameter]) -> None:
    for value in values:
        _limit([value])


def _add_noise(values: list[nn.Parameter]) -> None:
    for value in values:
        assert value.grad is not None
        value.grad += torch.randn(value.shape)


def _fail(_: list[nn.Parameter]) -> None:
    raise ValueError("of the program")


def combining_optimizers() -> None:
    """They are refused, also if their first updates change nothing; the model and random numbers stay as they are."""
    with life("mcr"):
        for change, refused in ((_limit, True), (_add_noise, True), (_limit_each, False), (_fail, False)):
            for rate in (0.1, 0.0):
                model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
                weights = [value.tolist() for value in model.parameters()]
                optimizer, numbers = _Changing(model, change, rate), torch.get_rng_state()
                if refused:
                    with pytest.raises(
                        UnsupportedError, match=r"got _Changing, whose .* another value alone than with"
                    ):
                        ByteScheduler(model, optimizer)
                else:
                    ByteScheduler(model, optimizer).close()
                assert [value.tolist() for value in model.parameters()] == weights or dist.get_rank() > 0
                assert torch.equal(torch.get_rng_state(), numbers)
                assert not optimizer.state
        dist.barrier()


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
