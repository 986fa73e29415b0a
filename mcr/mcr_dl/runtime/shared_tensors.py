# SPDX-License-Identifier: Apache-2.0
"""Tensors that the other ranks of a host can read without a copy: ``empty_shared``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError


def empty_shared(*size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Make a tensor on the CPU that the other ranks of this host can read without a copy.

    Large collectives and messages of the backend ``shm`` then read the tensor where it is, instead of pieces of it that
    this rank copies into the group's memory. All other backends, and all of torch's functions, work on it as on any
    tensor. Each rank decides for itself: the ranks' tensors of one call may differ in this.

    Allocating such a tensor populates its memory, which takes about as long as writing it: make it once, and use it
    many times. Its memory goes back to the system with the tensor. A process that is forked from this one shares the
    memory with it, and cannot make more.

    Args:
        size: the tensor's size, as integers or as one sequence.
        dtype: any element type; None: torch's default.

    Raises InvalidArgumentError for a size below 0, BackendError if the system has too little memory, or the tensors of
    this process would exceed ``MCR_DL_SHM_TENSOR_BYTES``. Source: torch.empty.
    """
    shape = _shape(size)
    kind = dtype or torch.get_default_dtype()
    nbytes = math.prod(shape) * kind.itemsize
    if nbytes == 0:
        return torch.empty(shape, dtype=kind, device="cpu")
    memory = _C._shared_bytes(nbytes)
    return torch.empty(0, dtype=kind, device="cpu").set_(memory.untyped_storage()).resize_(shape)


def _shape(size: tuple[int | Sequence[int], ...]) -> torch.Size:
    try:
        shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)  # type: ignore[arg-type]
    except TypeError:
        shape = torch.Size((-1,))
    if min(shape, default=0) < 0:
        message = f"empty_shared: size: expected integers of 0 or more, got {size}"
        raise InvalidArgumentError(message)
    return shape
