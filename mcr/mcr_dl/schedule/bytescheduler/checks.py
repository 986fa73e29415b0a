# SPDX-License-Identifier: Apache-2.0
"""The checks of models and arguments that ByteScheduler makes before anything is sent."""

from __future__ import annotations

import gc
from collections.abc import Collection, Container, Iterable
from itertools import zip_longest
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from mcr_dl import _C
from mcr_dl.base import agreement
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError, McrError, UnsupportedError
from mcr_dl.base.whole import is_whole
from mcr_dl.passes import chain
from mcr_dl.runtime import changes, state
from mcr_dl.schedule.bytescheduler import bayesian, hooks, separate
from mcr_dl.schedule.bytescheduler.gradients import Piece, pieces_of

Limit = int | str | None

BROKEN_OFF = (
    "ByteScheduler: the last backward pass did not end, and the other ranks wait for its gradients: expected no "
    "exception in it; end the job, and continue from a checkpoint, or call close() to get the model back"
)
COPIED = "ByteScheduler: expected a copy of the model alone: call synchronize(), and copy or save its `module`"
CLOSED = (
    "ByteScheduler: expected no training after close(), as gradients would stay on their ranks: use the model itself "
    "(its `module`), or make a new ByteScheduler"
)
USED_EARLY = (
    "ByteScheduler: {} was used before its update: expected a use in the forward pass of the module that has the "
    "parameter, as in the first step; use DDP, or call synchronize() after step()"
)
CHANGED = (
    "ByteScheduler: the gradient of {} was changed while it was being reduced: expected a function that waits for the "
    "reduction, as all of torch do but those of TorchScript and C++ extensions; call synchronize() before it"
)
TWICE = "ByteScheduler: two gradients of {} in one backward pass; expected one (use_reentrant=False)"
COMPILED = (
    "ByteScheduler: expected an eager model, but {} is compiled, and a compiled part cannot wait for its parameters; "
    "remove torch.compile or use DistributedDataParallel"
)
SCRIPTED = (
    "ByteScheduler: expected an eager model, but {} is a {}, and a compiled part cannot wait for its parameters; "
    "remove torch.jit or use DistributedDataParallel"
)
LAZY = "ByteScheduler: expected initialized parameters and buffers, but {} has no shape yet: run one forward pass first"
FORMS = ("all_reduce", "reduce_scatter")
ORDERS = ("static", "leader")
TUNING = ("shortlist", "bayesian", "simulation")
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
    for name, value in vars(optimizer).items():
        for each in _parts(value):
            message = (
                "ByteScheduler: expected an optimizer that makes its updates itself, got "
                f"{type(optimizer).__name__}, whose {name!r} {'is' if each is value else 'has'} a "
                f"{type(each).__name__}: pass that one, or use DistributedDataParallel"
            )
            raise UnsupportedError(message)
    for path, each in module.named_modules():
        _module(path or "the model", each)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise InvalidArgumentError(LAZY.format(name))
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


def _step_of_class(optimizer: Optimizer) -> None:
    """Raise UnsupportedError if the program has replaced this optimizer's ``step``, which updates would go around."""
    step: Any = vars(optimizer).get("step")
    if hasattr(step, "_wrapped_by_lr_sched"):  # a learning-rate scheduler's
        step = getattr(step, "__wrapped__", step)
    if step is not None and getattr(step, "__func__", step) is not type(optimizer).step:
        message = (
            "ByteScheduler: expected an optimizer whose step is its class's, got one whose step the program has "
            "replaced: replace it after ByteScheduler is made, or use register_step_pre_hook"
        )
        raise UnsupportedError(message)


def _parts(value: object) -> list[Optimizer]:
    """The optimizers that a value is, or has."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
    return [each for each in values if isinstance(each, Optimizer)]


def eager(modules: Iterable[nn.Module]) -> None:
    """Raise UnsupportedError if one of the modules has been compiled since ByteScheduler was made."""
    for each in modules:
        if each._compiled_call_impl is not None:
            raise UnsupportedError(COMPILED.format(f"a module of type {type(each).__name__}"))


def _module(path: str, module: nn.Module) -> None:
    if isinstance(module, torch.jit.ScriptModule):  # scripted or traced
        raise UnsupportedError(SCRIPTED.format(path, type(module).__name__))
    if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
        raise UnsupportedError(COMPILED.format(path))
    if isinstance(module, DistributedDataParallel | DataParallel):
        message = (
            f"ByteScheduler: expected a model without {type(module).__name__}, got one at {path}: pass the model that "
            "it wraps (its .module)"
        )
        raise InvalidArgumentError(message)


def limit(name: str, value: Limit, multiple: int = 1) -> Limit:
    """The value in a multiple of whole elements of any type; raises InvalidArgumentError for a wrong one."""
    if value is None or value == "auto":
        return value
    unit = 16 * multiple
    least = max(1024, unit)
    if not is_whole(value, least):
        message = f"ByteScheduler: {name}: expected at least {least} bytes, None or 'auto', got {value!r}"
        raise InvalidArgumentError(message)
    return value // unit * unit


def one_of(name: str, value: object, choices: tuple[str, ...]) -> str:
    """The value; raises InvalidArgumentError for an unknown one."""
    if value not in choices:
        message = f"ByteScheduler: {name}: expected one of {', '.join(map(repr, choices))}, got {value!r}"
        raise InvalidArgumentError(message)
    return str(value)


def reduced(module: nn.Module, values: Collection[nn.Parameter], known: Container[nn.Parameter]) -> None:
    """Raise McrError if one of the values with a gradient is not known, and so was not reduced."""
    unknown = {value for value in values if value not in known}
    for name, value in module.named_parameters() if unknown else ():
        if value in unknown:
            message = (
                "ByteScheduler: expected gradients only of parameters that were in the model, and required gradients, "
                f"when ByteScheduler was made, got one of {name}, which was not reduced: close() the ByteScheduler and "
                "make a new one"
            )
            raise McrError(message)


def _free(module: nn.Module) -> None:
    """Raise InvalidArgumentError if another ByteScheduler sends gradients of the model, whose hooks would meet."""
    name_of = {value: name for name, value in module.named_parameters()}

    def shared() -> str | None:
        taken = (each.value for other in hooks.living for each in other._values)
        return next((name_of[value] for value in taken if value in name_of), None)

    if shared() is not None:
        gc.collect()  # the program may have dropped the other one
        if name := shared():
            text = f"expected parameters without ByteScheduler, got {name} of another one's model; close() that one"
            raise InvalidArgumentError(f"ByteScheduler: {text}, or make one of a module with both models")


def _tuning(given: dict[str, Any]) -> None:
    """Raise an error for a way of tuning that is not possible."""
    if one_of("tuning", given["tuning"], TUNING) != "bayesian":
        return
    others = (("form", FORMS[0]), ("order", ORDERS[0]), ("partition", "auto"), ("credit", "auto"))
    if any(given[name] != value for name, value in others):
        expected = ", ".join(f"{name}={value!r}" for name, value in others)
        message = f"ByteScheduler: tuning='bayesian': expected {expected}"
        raise InvalidArgumentError(message)
    if needed := bayesian.missing():
        message = f"ByteScheduler: tuning='bayesian' needs {' and '.join(needed)}: pip install {' '.join(needed)}"
        raise UnsupportedError(message)


def agreed(
    group: _C.Group, module: nn.Module, optimizer: Optimizer, given: dict[str, Any]
) -> tuple[list[list[Piece]], dict[nn.Module, list[int]]]:
    """The model's pieces, as ``pieces_of``; every rank raises if one of them has a problem, or other arguments."""
    problem: Exception | None = None
    found, tensors, updates = None, [], []
    try:
        model_and_optimizer(module, optimizer)
        halves = one_of("form", given["form"], FORMS) != FORMS[0]
        limit("partition", given["partition"], group.size() if halves else 1)
        limit("credit", given["credit"])
        if one_of("order", given["order"], ORDERS) == "leader" and given["form"] != FORMS[0]:
            text = f"ByteScheduler: order='leader': expected form='all_reduce', got form={given['form']!r}"
            raise InvalidArgumentError(text)
        _tuning(given)
        other = getattr(optimizer.step, "_scheduler", None)
        if other is not None and other._hooks:
            text = "ByteScheduler: expected an optimizer without ByteScheduler, got one; close() the first one"
            raise InvalidArgumentError(text)
        _step_of_class(optimizer)
        _free(module)
        # ByteScheduler's own groups will have the job's passes, also those that the program has taken from this one.
        if any(each.name == chain.SCHEDULE for each in (*_C.passes(group), *state.current().passes)):
            text = "ByteScheduler: expected a group without Syndicate, which orders all calls too, got one with it"
            raise UnsupportedError(f"{text}: use one of the two, and unset MCR_DL_SCHEDULE for ByteScheduler")
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)):
                text = f"ByteScheduler: expected memory for each element, got {name} from expand(): clone() it"
                raise InvalidArgumentError(text)
        found = pieces_of(module)
        tensors, updates = _tensors(module), _updates(module, optimizer)
        separate.require_separate(optimizer)
    except Exception as error:  # any, such as one of a module of the program: the other ranks wait
        problem = error
    written = {name: repr(value) for name, value in given.items()}
    changes.agree(group, "ByteScheduler", [written, tensors, updates], _require_equal, problem=problem)
    # Raises if the group does not have the candidate. None would follow use().
    _C.all_reduce(
        torch.zeros(1, dtype=torch.int, device="cpu"),
        group=group,
        backend="auto" if given["backend"] is None else given["backend"],
    )
    assert found is not None
    return found


def _tensors(module: nn.Module) -> list[list[Any]]:
    """The parameters, also frozen ones, and buffers: rank 0's are sent to all ranks, in this order."""
    rows: list[tuple[str, str, torch.Tensor]] = [("parameter", *each) for each in module.named_parameters()]
    rows += [("buffer", *each) for each in module.named_buffers()]
    return [[kind, name, list(each.shape), str(each.dtype), each.requires_grad] for kind, name, each in rows]


def _updates(module: nn.Module, optimizer: Optimizer) -> list[list[Any]]:
    """The optimizer's class and, for each group of parameters, the options that are numbers, and parameters."""
    name_of = {value: name for name, value in module.named_parameters()}
    rows: list[list[Any]] = [["class", type(optimizer).__qualname__]]
    for number, group in enumerate(optimizer.param_groups):
        options = {name: _numbers(value) for name, value in group.items() if name != "params"}
        rows += [[f"group {number}", name, value] for name, value in sorted(options.items()) if value is not None]
        rows += [[f"group {number}", "parameter", name_of.get(value, "of no module")] for value in group["params"]]
    return rows


def _numbers(value: object) -> str | None:
    """The text of a number, of a tensor of one, or of some, such as betas; None for anything else."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    several = value if isinstance(value, list | tuple) else [value]
    return repr(value) if all(isinstance(each, bool | int | float | None) for each in several) else None


def _require_equal(values: list[Any]) -> None:
    given = [arguments for arguments, _, _ in values]
    for name in given[0]:
        agreement.require_equal(f"ByteScheduler: {name}", [each[name] for each in given])
    for index, what in ((1, "parameters and buffers"), (2, "optimizer")):
        for rows in zip_longest(*(value[index] for value in values)):
            agreement.require_equal(f"ByteScheduler: {what}", [*rows])
