# SPDX-License-Identifier: Apache-2.0
"""Finds optimizers whose step updates a parameter alone otherwise than with others, as by a norm of all gradients.

ByteScheduler updates what has arrived, which differs between the ranks: such a step would make their weights differ.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.optim import Optimizer

from mcr_dl.base.errors import UnsupportedError
from mcr_dl.schedule.bytescheduler.updates import OWN, Updates

COMBINED = (
    "ByteScheduler: expected an optimizer that updates each parameter by itself, got {}, whose step() gives a "
    "parameter another value alone than with the others, as by a norm of all gradients or by random numbers; use "
    "DistributedDataParallel with it"
)
_LARGE = 256.0  # a factor of gradients, so that limits on their norm have an effect


def require_separate(optimizer: Optimizer) -> None:
    """Raise UnsupportedError if one step of a copy with all parameters differs from a step with each of them.

    torch's own optimizers are known not to.
    """
    if type(optimizer) in vars(torch.optim).values():
        return
    try:
        together, alone = _results(optimizer, alone=False), _results(optimizer, alone=True)
    except Exception:  # the optimizer cannot be copied, or its first real step raises this, too
        return
    if len(together) != len(alone) or not all(map(_equal, together, alone)):
        raise UnsupportedError(COMBINED.format(type(optimizer).__name__))


def _results(optimizer: Optimizer, *, alone: bool) -> list[torch.Tensor]:
    """The parameters, gradients and state of a copy after its step; ``alone``: after one for each, in reverse order."""
    given = _copied(optimizer)
    values = [value for group in given.param_groups for value in group["params"] if value.requires_grad]
    generator = torch.Generator().manual_seed(0)
    gradients = [_LARGE * torch.randn(value.shape, generator=generator, dtype=value.dtype) for value in values]
    updates = Updates(given)
    due = updates.hyperparameters()
    for each in due:
        if "lr" in each and not each["lr"]:  # at the start of a warm-up, when nothing would change
            each["lr"] = 1.0
    steps = [[index] for index in reversed(range(len(values)))] if alone else [[*range(len(values))]]
    with torch.random.fork_rng(devices=[]):
        for step in steps:
            for index in step:
                values[index].grad = gradients[index]
            updates.step_others(due, (), lambda _: None)
            for index in step:
                values[index].grad = None
    found: list[Any] = [*values, *gradients]
    found += [each for value in values for each in given.state.get(value, {}).values()]
    return [each.detach() for each in found if isinstance(each, torch.Tensor) and each.is_floating_point()]


def _copied(optimizer: Optimizer) -> Optimizer:
    """A copy with parameters and state of its own, and without hooks."""
    made: dict[int, Any] = {}
    for group in optimizer.param_groups:
        for value in group["params"]:
            copy.deepcopy(value, made).__dict__.update(vars(value))  # attributes, which torch does not copy
    kept = {name: each for name, each in vars(optimizer).items() if name not in OWN and not name.endswith("_hooks")}
    result: Optimizer = object.__new__(type(optimizer))
    result.__dict__.update(copy.deepcopy(kept, made))
    return result


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether all bits are, but those of values that are not numbers."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
