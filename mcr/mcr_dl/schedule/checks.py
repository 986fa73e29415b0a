# SPDX-License-Identifier: Apache-2.0
"""What ByteScheduler refuses, before anything is sent."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError, UnsupportedError

Limit = int | str | None

COMPILED = (
    "ByteScheduler: expected an eager model, but {} is compiled, and a compiled part cannot wait for its parameters; "
    "remove torch.compile or use DistributedDataParallel"
)
FORMS = ("all_reduce", "reduce_scatter")
# An optimizer that uses all parameters at once cannot update them one after the other.
_WHOLE = (torch.optim.LBFGS,)


def model_and_optimizer(module: object, optimizer: object) -> None:
    """Raise an error for a model or an optimizer that cannot be scheduled."""
    if not isinstance(module, nn.Module) or not isinstance(optimizer, Optimizer):
        message = (
            "ByteScheduler: expected a torch.nn.Module and its torch.optim.Optimizer, got "
            f"{type(module).__name__} and {type(optimizer).__name__}"
        )
        raise InvalidTypeError(message)
    if isinstance(optimizer, _WHOLE):
        message = (
            "ByteScheduler: expected an optimizer that updates each parameter by itself, got "
            f"{type(optimizer).__name__}; use DistributedDataParallel with it"
        )
        raise UnsupportedError(message)
    for path, each in module.named_modules():
        _module(path or "the model", each)
    values = {value for value in module.parameters() if value.requires_grad}
    if not values:
        raise InvalidArgumentError("ByteScheduler: expected a model with parameters that need gradients, got none")
    updated = {value for group in optimizer.param_groups for value in group["params"]}
    if not values & updated:
        message = (
            "ByteScheduler: expected an optimizer of the model's parameters, got one of others; make it from "
            "model.parameters() after the model has its final type and device"
        )
        raise InvalidArgumentError(message)


def _module(path: str, module: nn.Module) -> None:
    if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
        raise UnsupportedError(COMPILED.format(path))
    if isinstance(module, DistributedDataParallel | DataParallel):
        message = (
            f"ByteScheduler: expected a model without {type(module).__name__}, got one at {path}; give its own module"
        )
        raise InvalidArgumentError(message)


def limit(name: str, value: Limit) -> Limit:
    """The value in whole elements of any type; raises InvalidArgumentError for a wrong one."""
    if value is None or value == "auto":
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1024:
        message = f"ByteScheduler: {name}: expected at least 1024 bytes, None or 'auto', got {value!r}"
        raise InvalidArgumentError(message)
    return value // 16 * 16


def form(value: object) -> str:
    """The form; raises InvalidArgumentError for an unknown one."""
    if value not in FORMS:
        message = f"ByteScheduler: form: expected one of {', '.join(map(repr, FORMS))}, got {value!r}"
        raise InvalidArgumentError(message)
    return str(value)
