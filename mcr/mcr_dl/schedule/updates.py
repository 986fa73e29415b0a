# SPDX-License-Identifier: Apache-2.0
"""Updates of some parameters at a time, by any torch.optim optimizer, with the hyper-parameters of a given step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from mcr_dl.schedule.gradients import Hyperparameters, Piece

# Attributes of the original that its copy must not have: wrappers around its step, and functions around each step.
_OWN = ("step", "zero_grad", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class Updates:
    """Updates pieces as the optimizer would, and keeps its state in the optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._copy: Optimizer = object.__new__(type(optimizer))
        self._group_of: dict[torch.nn.Parameter, int] = {}

    def hyperparameters(self) -> list[Hyperparameters]:
        """The hyper-parameters of each group now; later changes, as by a learning-rate scheduler, do not reach them."""
        groups = self._optimizer.param_groups
        self._group_of = {value: index for index, group in enumerate(groups) for value in group["params"]}
        return [{name: _kept(value) for name, value in group.items() if name != "params"} for group in groups]

    def apply(self, pieces: Sequence[Piece], due: list[Hyperparameters]) -> None:
        """Update the parameters of pieces that have a gradient, in one step of the optimizer."""
        members: dict[int, list[torch.nn.Parameter]] = {}
        cleared = []
        for each in (each for piece in pieces for each in piece.parameters):
            value = each.value
            if each.gradient is not None and value in self._group_of:
                if value.grad is None:
                    cleared.append(value)
                value.grad = each.gradient
                members.setdefault(self._group_of[value], []).append(value)
        self.step([{**due[index], "params": values} for index, values in members.items()])
        for value in cleared:  # by zero_grad(), after the step and before this update
            value.grad = None

    def step(self, groups: list[dict[str, Any]]) -> None:
        """One step of the optimizer's class on these groups."""
        if not groups:
            return
        attributes = {name: value for name, value in self._optimizer.__dict__.items() if name not in _OWN}
        self._copy.__dict__.clear()
        self._copy.__dict__.update(attributes, _optimizer_step_pre_hooks={}, _optimizer_step_post_hooks={})
        self._copy.param_groups = groups
        self._copy.step()


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
