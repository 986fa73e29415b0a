# SPDX-License-Identifier: Apache-2.0
"""Tensors that the other ranks of a host can read without a copy: ``empty_shared``."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import torch

from mcr_dl import _C
from mcr_dl.base.errors import BackendError, InvalidArgumentError, InvalidTypeError

_MOST = 1 << 62  # bytes that can be counted in the core


def empty_shared(*size: SupportsIndex | Sequence[SupportsIndex], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Make a tensor on the CPU that the other ranks of this host can read without a copy.

    Large collectives and messages of the backend ``shm`` then read the tensor where it is, instead of pieces of it that
    this rank copies into the group's memory. All other backends, and torch's functions, work on it as on any tensor,
    except that its storage cannot be resized. Each rank decides for itself: the ranks' tensors of one call may differ
    in this.

    Allocating such a tensor populates its memory, which takes about as long as writing it: make it once, and use it
    many times. Its memory goes back to the system with the tensor. A process that is forked from this one shares the
    memory with it, and cannot make more.

    Args:
        size: the tensor's size, as integers or as one sequence.
        dtype: any element type that is not quantized; None: torch's default.

    Raises InvalidArgumentError for a size below 0, InvalidTypeError for a quantized type, BackendError if
    the system has too little memory, or the tensors of this process would exceed ``MCR_DL_SHM_TENSOR_BYTES``. Source:
    torch.empty.
    """
    shape = _shape(size)
    kind = _type(torch.get_default_dtype() if dtype is None else dtype)
    nbytes = math.prod(shape) * kind.itemsize
    empty = torch.empty(0, dtype=kind, device="cpu")
    if nbytes == 0:
        return empty.new_empty(shape)
    if nbytes > _MOST:
        raise BackendError(f"empty_shared: size: expected at most {_MOST} bytes, got {nbytes}")
    return empty.set_(_C._shared_bytes(nbytes).untyped_storage()).resize_(shape)


def _type(dtype: object) -> torch.dtype:
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith("torch.q"):
        return dtype
    message = f"empty_shared: dtype: expected a torch.dtype that is not quantized, got {dtype!r}"
    raise InvalidTypeError(message)


def _shape(size: tuple[SupportsIndex | Sequence[SupportsIndex], ...]) -> tuple[int, ...]:
    given: Any = size
    if len(size) == 1:
        try:
            given = (operator.index(size[0]),)  # type: ignore[arg-type]
        except TypeError:
            given = size[0]
    try:
        shape = tuple(map(operator.index, given))
    except TypeError:
        shape = (-1,)
    if min(shape, default=0) < 0:
        message = f"empty_shared: size: expected integers of 0 or more, got {size}"
        raise InvalidArgumentError(message)
    return shape
