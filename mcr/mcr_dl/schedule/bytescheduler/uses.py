# SPDX-License-Identifier: Apache-2.0
"""Where the forward pass of a model uses its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

# Attributes that programs read from a parameter without using its values.
_PROPERTIES = ("device", "dtype", "grad", "is_leaf", "layout", "ndim", "requires_grad", "shape")
_ASKED: set[Any] = {getattr(torch.Tensor, name).__get__ for name in _PROPERTIES}
_ASKED |= {torch.Tensor.dim, torch.Tensor.is_floating_point, torch.Tensor.numel, torch.Tensor.size, torch.Tensor.stride}


class Uses:
    """Records which modules must wait for which layers.

    Usually a module uses its own parameters. Where other modules use them (``functional.linear(x, other.weight)``, as
    in MultiheadAttention), the innermost running module waits for them, because it cannot use them without being run.
    """

    def __init__(self, owned: dict[nn.Module, list[int]], layer_of: dict[nn.Parameter, int]) -> None:
        """``owned``: the layers of each module's own parameters; ``layer_of``: the layer of each parameter."""
        self._layer_of = layer_of
        self._gates = {module: list(layers) for module, layers in owned.items()}
        self._entered: dict[nn.Module, None] = {}  # in order
        self._running: list[nn.Module] = []
        self.added: dict[nn.Module, list[int]] = {}  # layers that other modules than the owners wait for

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the forward pass in the block."""
        hooks = [
            register_module_forward_pre_hook(lambda module, _args: self._enter(module)),
            register_module_forward_hook(lambda module, _args, _result: self._leave(module), always_call=True),
        ]
        try:
            with _Watch(self):
                yield
        finally:
            self._running.clear()
            for hook in hooks:
                hook.remove()

    def first_uses(self) -> list[int]:
        """The layers that some module waits for, in the order of the recorded passes."""
        return list(dict.fromkeys(layer for module in self._entered for layer in self._gates.get(module, ())))

    def note(self, value: object) -> None:
        """A function is called with this argument."""
        if not isinstance(value, nn.Parameter) or not self._running:
            return
        layer = self._layer_of.get(value)
        if layer is None or any(layer in self._gates.get(module, ()) for module in self._running):
            return
        module = self._running[-1]
        self._gates.setdefault(module, []).append(layer)
        self.added.setdefault(module, []).append(layer)

    def _enter(self, module: nn.Module) -> None:
        self._entered.setdefault(module)
        self._running.append(module)

    def _leave(self, module: nn.Module) -> None:
        if self._running and self._running[-1] is module:
            self._running.pop()


class _Watch(TorchFunctionMode):
    """Shows the arguments of torch's functions to ``Uses``."""

    def __init__(self, uses: Uses) -> None:
        super().__init__()
        self._uses = uses

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the arguments, and call the function."""
        given = kwargs or {}
        if func not in _ASKED:
            for each in [*args, *given.values()]:
                for value in each if isinstance(each, list | tuple) else (each,):
                    self._uses.note(value)
        return func(*args, **given)
