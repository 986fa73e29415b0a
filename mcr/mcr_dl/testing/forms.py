# SPDX-License-Identifier: Apache-2.0
"""Forms in which a call takes its tensors: arrays of other libraries, and tensors in another order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import torch


class DLPack:
    """An object that is an array only by DLPack."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **given: Any) -> Any:
        return self._tensor.__dlpack__(**given)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


def columns(tensor: torch.Tensor) -> torch.Tensor:
    """Lay the elements out column by column; vectors become two rows."""
    if tensor.dim() == 1 and tensor.numel() % 2 == 0:
        tensor = tensor.view(2, -1)
    strides = [1]
    for size in tensor.shape[:-1]:
        strides.append(strides[-1] * size)
    made = torch.empty_strided(tensor.shape, strides[: tensor.dim()], dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor unchanged."""
    return tensor


# The orders of a tensor, used in turn, and the conversion of the tensor.
FORMS: dict[str, tuple[tuple[Callable[[torch.Tensor], torch.Tensor], ...], Callable[[torch.Tensor], Any]]] = {
    "tensors": ((rows,), rows),
    "numpy": ((rows,), torch.Tensor.numpy),
    "dlpack": ((rows,), DLPack),
    "columns": ((columns,), rows),
    "columns of some": ((columns, rows), rows),
    "numpy in Fortran's order": ((columns,), torch.Tensor.numpy),
}
ARRAYS = ("numpy", "dlpack", "numpy in Fortran's order")


def handed_over(form: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], Callable[[], None]]:
    """The arguments in this form, and a function that copies the results back into the original tensors."""
    orders, pack = FORMS[form]
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    order: Iterator[Callable[[torch.Tensor], torch.Tensor]] = cycle(orders)

    def converted(value: Any) -> Any:
        if isinstance(value, list):
            return [converted(each) for each in value]
        if not isinstance(value, torch.Tensor):
            return value
        made = next(order)(value)
        if made is not value:
            pairs.append((value, made))
        return pack(made)

    def bring_back() -> None:
        for tensor, made in pairs:
            tensor.view(made.shape).copy_(made)

    return {name: converted(value) for name, value in arguments.items()}, bring_back
