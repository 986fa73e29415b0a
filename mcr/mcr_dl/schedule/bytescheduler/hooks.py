# SPDX-License-Identifier: Apache-2.0
"""The hooks through which ByteScheduler follows a model and its optimizer."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from mcr_dl.base.weak import weakly
from mcr_dl.schedule.bytescheduler.gradients import Parameter


class _Hook:
    """Calls a function. A copy, or what pickle makes of it, does nothing: it is another model's."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        self._call(*args)

    def __reduce__(self) -> Any:
        return _Hook, (_nothing,)


def _nothing(*_: Any) -> None:
    pass


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
        for module, layers in layers_of.items():
            hook = _Hook(lambda _m, _a, layers=layers: need(layers))
            self._hooks.append(module.register_forward_pre_hook(hook, prepend=True))
            self.modules.append(module)
        if self._first is not None:
            self._first.remove()
        self._first = self._root.register_forward_pre_hook(_Hook(lambda module, _a: enter(module)), prepend=True)

    def remove(self) -> None:
        """Call nothing any more."""
        for hook in [*self._hooks, *([] if self._first is None else [self._first])]:
            hook.remove()
        self._hooks, self.modules = [], []


def after_forward(root: nn.Module, call: Callable[[], None]) -> Any:
    """Call this function after each forward pass."""
    return root.register_forward_hook(_Hook(lambda *_: call()))


def of_gradients(
    values: Iterable[Parameter], before: Callable[[Parameter], None], after: Callable[[Parameter], None]
) -> list[Any]:
    """Call ``before`` when a gradient is about to be added to, and ``after`` when it has been added to.

    ``before`` and ``after`` are methods. Python's collector of cycles does not see the hooks of tensors: they keep
    neither the object of the methods nor the parameters.
    """

    def weak(method: Callable[[Parameter], None], each: Parameter) -> Callable[[Any], None]:
        call, of_each = weakly(method), weakref.ref(each)

        def hook(_: Any) -> None:
            parameter = of_each()
            if parameter is not None:
                call(parameter)

        return hook

    hooks = []
    for each in values:
        value: Any = each.value  # torch's functions that set hooks have no types
        hooks.append(value.register_hook(weak(before, each)))
        hooks.append(value.register_post_accumulate_grad_hook(weak(after, each)))
    return hooks


def of_states(root: nn.Module, optimizer: Optimizer, drain: Callable[[str], None]) -> list[Any]:
    """Call ``drain`` before the state of the model, of a part, or of the optimizer is read or replaced."""
    hooks = []
    for each in (*root.modules(), optimizer):
        untyped = cast(Any, each)
        hooks.append(untyped.register_state_dict_pre_hook(_Hook(lambda *_: drain("state_dict()"))))
        hooks.append(untyped.register_load_state_dict_pre_hook(_Hook(lambda *_: drain("load_state_dict()"))))
    return hooks


living: weakref.WeakSet[Any] = weakref.WeakSet()
"""The owners of steps that were not removed."""


class Step:
    """Makes ``optimizer.step`` call a function, until ``remove()``."""

    def __init__(self, optimizer: Optimizer, step: Callable[[Any], Any], owner: object) -> None:
        self._optimizer, self._before, original = optimizer, optimizer.__dict__.get("step"), optimizer.step
        self._step: Callable[[Any], Any] | None = step

        def replaced(_optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            return original(closure) if self._step is None else self._step(closure)

        self._function = cast(Any, replaced)
        self._function._wrapped_by_lr_sched = True  # a learning-rate scheduler looks for it
        self._function._scheduler = owner
        self._method = types.MethodType(replaced, optimizer)
        optimizer.step = self._method  # type: ignore[method-assign]
        living.add(owner)

    def remove(self) -> None:
        """Give the optimizer its step back; where others have wrapped this one, it calls the former step."""
        if self._step is not None:
            living.discard(self._function._scheduler)
        self._step = self._function._scheduler = None
        if self._optimizer.__dict__.get("step") is not self._method:
            return
        if self._before is None:
            del self._optimizer.step
        else:
            self._optimizer.step = self._before  # type: ignore[method-assign]


def in_backward_pass() -> bool:
    """Whether this thread runs one."""
    return torch._C._current_graph_task_id() != -1
