# SPDX-License-Identifier: Apache-2.0
"""Updates of some parameters at a time, by any torch.optim optimizer, with the hyper-parameters of a given step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from mcr_dl.base.errors import UnsupportedError
from mcr_dl.schedule.bytescheduler.gradients import Hyperparameters, Piece

# Attributes of the original that its copy must not have: wrappers around its step, and functions around each step.
OWN = ("step", "zero_grad", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
# Attributes that torch's optimizers write to check or to warn once.
_NOTES = ("_need_device_dtype_check_for_fused", "_warned_capturable_if_run_uncaptured")
_LOOKED_INTO = 4  # steps: looking into all values takes long
SHARED = (
    "ByteScheduler: expected an optimizer that updates each parameter by itself, got {}, whose step() changes {!r}, "
    "which all parameters share; use DistributedDataParallel with it"
)


def outside_inference() -> AbstractContextManager[Any]:
    """A block whose tensors can be used in training, also where the caller is in ``torch.inference_mode()``."""
    return torch.inference_mode(mode=False) if torch.is_inference_mode_enabled() else nullcontext()


class Updates:
    """Updates pieces as the optimizer would, and keeps its state in the optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._copy: Optimizer = object.__new__(type(optimizer))
        step: Any = type(optimizer).step
        # Without the hooks of all optimizers, which torch's wrapper calls: a step makes many updates.
        self._class_step = step.__wrapped__ if getattr(step, "hooked", False) else step
        self._group_of: dict[torch.nn.Parameter, int] = {}
        self._steps = 0  # begun; the updates of one are made before the next begins

    def call_pre_hooks(self) -> None:
        """As a step of the optimizer begins: the hooks of all optimizers, then its own."""
        every: dict[int, Callable[..., Any]] = torch_optimizer._global_optimizer_pre_hooks
        for hook in [*every.values(), *self._optimizer._optimizer_step_pre_hooks.values()]:
            hook(self._optimizer, (), {})

    def call_post_hooks(self, finish: Callable[[], None]) -> None:
        """As a step of the optimizer ends; the hooks see the new parameters, which ``finish`` makes."""
        every: dict[int, Callable[..., Any]] = torch_optimizer._global_optimizer_post_hooks
        hooks = [*self._optimizer._optimizer_step_post_hooks.values(), *every.values()]
        if hooks:
            finish()
        for hook in hooks:
            hook(self._optimizer, (), {})

    def hyperparameters(self) -> list[Hyperparameters]:
        """The hyper-parameters of each group now; later changes, as by a learning-rate scheduler, do not reach them."""
        self._steps += 1
        groups = self._optimizer.param_groups
        self._group_of = {value: index for index, group in enumerate(groups) for value in group["params"]}
        return [{name: _kept(value) for name, value in group.items() if name != "params"} for group in groups]

    def apply(self, pieces: Sequence[Piece], due: list[Hyperparameters]) -> None:
        """Update the parameters of pieces that have a gradient, in one step of the optimizer."""
        members: dict[int, list[torch.nn.Parameter]] = {}
        replaced = []
        for each in (each for piece in pieces for each in piece.parameters):
            value = each.value
            if each.gradient is not None and value in self._group_of:
                if value.grad is not each.gradient:
                    replaced.append((value, value.grad))
                    value.grad = each.gradient
                members.setdefault(self._group_of[value], []).append(value)
        self.step([{**due[index], "params": values} for index, values in members.items()])
        for value, gradient in replaced:  # by the program, as in zero_grad(), after the step and before this update
            value.grad = gradient

    def step_others(
        self,
        due: list[Hyperparameters],
        pieces: Collection[Piece],
        check: Callable[[Collection[torch.nn.Parameter]], None],
    ) -> None:
        """Update the parameters with a gradient that are in none of the pieces; ``check`` gets those of each group."""
        later = {each.value for piece in pieces for each in piece.parameters}
        groups = []
        for kept, group in zip(due, self._optimizer.param_groups, strict=True):
            values = [value for value in group["params"] if value.grad is not None and value not in later]
            check(values)
            if values:
                groups.append({**kept, "params": values})
        self.step(groups)

    def step(self, groups: list[dict[str, Any]]) -> None:
        """One step of the optimizer's class on these groups.

        Raises UnsupportedError, on all ranks, as they have one class, if it changes what all parameters share.
        """
        if not groups:
            return
        attributes = {name: value for name, value in self._optimizer.__dict__.items() if name not in OWN}
        self._copy.__dict__.clear()
        self._copy.__dict__.update(attributes, _optimizer_step_pre_hooks={}, _optimizer_step_post_hooks={})
        self._copy.param_groups = groups
        values = [*groups, self._copy.__dict__]
        before = [*map(dict, values)]
        contents = [*map(_contents, values)] if self._steps <= _LOOKED_INTO else []
        if torch.is_autocast_enabled("cpu"):  # the forward pass's; the step was outside
            with torch.autocast("cpu", enabled=False):
                self._class_step(self._copy)
        else:
            self._class_step(self._copy)
        for one, other in zip(before, values, strict=True):
            self._require_equal(one, other)
        if contents:
            for one, other in zip(contents, map(_contents, values), strict=True):
                self._require_equal(one, other)

    def _require_equal(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Raise an error if the step has written there: the copy loses it, and makes several steps for each."""
        if _equal(before, after):
            return
        for name in {**before, **after}:
            kept = name in before and name in after and _equal(before[name], after[name])
            if name not in _NOTES and not kept:
                raise UnsupportedError(SHARED.format(type(self._optimizer).__name__, name))


def _contents(values: dict[str, Any]) -> dict[str, Any]:
    """Parts of the values that differ after a step has written into one of them, which stays the same object.

    Of dicts and lists only numbers count, as a count of steps: tensors in them may belong to single parameters.
    """
    return {name: _content(value) for name, value in values.items() if name not in ("params", "state")}


def _content(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return None if value.is_inference() else value._version
    if isinstance(value, dict):
        return {key: each for key, each in value.items() if isinstance(each, bool | int | float)}
    return [each for each in value if isinstance(each, bool | int | float)] if isinstance(value, list) else None


def _equal(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except (RuntimeError, ValueError):  # of tensors and arrays of several elements
        return False


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
