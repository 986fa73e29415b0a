# SPDX-License-Identifier: Apache-2.0
"""The hooks through which ByteScheduler follows a model and its optimizer."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from mcr_dl.schedule.gradients import Parameter


class Gates:
    """Calls ``enter`` before each forward pass of a model, then ``need`` before that of each module with layers.

    These calls precede hooks that the modules have already: some, as those of torch.nn.utils.prune, compute weights
    from the parameters, which must be up to date.
    """

    def __init__(self, root: nn.Module, enter: Callable[[nn.Module], None], need: Callable[[list[int]], None]) -> None:
        self._root, self._enter, self._need = root, enter, need
        self._hooks: list[Any] = []
        self._first: Any = None
        self.modules: list[nn.Module] = []

    def add(self, layers_of: dict[nn.Module, list[int]]) -> None:
        """Call ``need`` with the layers before the forward passes of these modules, too."""
        need, enter = self._need, self._enter
        # Functions and not methods: a copy of the model would copy the methods' object.
        for module, layers in layers_of.items():
            hook = module.register_forward_pre_hook(lambda _m, _a, layers=layers: need(layers), prepend=True)
            self._hooks.append(hook)
            self.modules.append(module)
        if self._first is not None:
            self._first.remove()
        self._first = self._root.register_forward_pre_hook(lambda module, _a: enter(module), prepend=True)

    def remove(self) -> None:
        """Call nothing any more."""
        for hook in [*self._hooks, self._first]:
            hook.remove()
        self._hooks, self.modules = [], []


def of_gradients(
    values: Iterable[Parameter], before: Callable[[Parameter], None], after: Callable[[Parameter], None]
) -> list[Any]:
    """Call ``before`` when a locked gradient is about to be added to, and ``after`` when any has been added to."""

    def check(each: Parameter) -> Callable[[Any], None]:
        def hook(_: Any) -> None:
            if each.piece.locked:
                before(each)

        return hook

    hooks = []
    for each in values:
        value: Any = each.value  # torch's functions that set hooks have no types
        hooks.append(value.register_hook(check(each)))
        hooks.append(value.register_post_accumulate_grad_hook(lambda _, each=each: after(each)))
    return hooks


def of_states(root: nn.Module, optimizer: Optimizer, drain: Callable[[str], None]) -> list[Any]:
    """Call ``drain`` before the state of the model, of a part, or of the optimizer is read or replaced."""
    hooks = []
    for each in (*root.modules(), optimizer):
        untyped = cast(Any, each)
        hooks.append(untyped.register_state_dict_pre_hook(lambda *_: drain("state_dict()")))
        hooks.append(untyped.register_load_state_dict_pre_hook(lambda *_: drain("load_state_dict()")))
    return hooks


def replace_step(optimizer: Optimizer, step: Callable[[Any], Any], active: Callable[[], bool], owner: object) -> None:
    """Make ``optimizer.step`` call this function while it is active."""
    original = optimizer.step

    def replaced(_optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        return step(closure) if active() else original(closure)

    cast(Any, replaced)._wrapped_by_lr_sched = True  # a learning-rate scheduler looks for it
    cast(Any, replaced)._scheduler = owner
    optimizer.step = types.MethodType(replaced, optimizer)  # type: ignore[method-assign]


def in_backward_pass() -> bool:
    """Whether this thread runs one."""
    return torch._C._current_graph_task_id() != -1
