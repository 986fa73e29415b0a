# SPDX-License-Identifier: Apache-2.0
"""Tensors on the memory of arrays from other packages."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError


def as_tensor(value: object, parameter: str, written: bool = True) -> torch.Tensor:
    """Wrap a NumPy array or any DLPack object, such as a CuPy array, without a copy (also called by the C++ core).

    ``written`` says whether the call writes to the array. Raises InvalidTypeError if ``value`` is not an array, and
    InvalidArgumentError if its memory cannot be shared as it is.
    """
    if isinstance(value, torch.Tensor):
        return value
    try:
        if hasattr(value, "__array_interface__"):
            if value.__array_interface__["data"][1] and written:
                raise ValueError("it is read-only")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a read-only array may well be an input
                return torch.from_numpy(_with_usual_type(value))
        if hasattr(value, "__dlpack__"):
            return torch.from_dlpack(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        message = f"{parameter}: expected an array whose memory can be shared, got {type(value).__name__}: {error}"
        raise InvalidArgumentError(message) from error
    message = f"{parameter}: expected a torch.Tensor, a NumPy array or a DLPack object, got {type(value).__name__}"
    raise InvalidTypeError(message)


def _with_usual_type(array: Any) -> Any:
    """View the same memory with the NumPy type that torch knows, where NumPy has several equal ones.

    ``numpy.uint64`` is C's unsigned long on some platforms; ``numpy.ulonglong`` is a second type with the same values.
    """
    kind = getattr(array, "dtype", None)
    return array.view(kind.str) if kind is not None and kind.kind in "iufc" else array


def stream_of(value: object) -> int | None:
    """CuPy's current ``cudaStream_t`` on a CuPy array's device, 0 for the default stream; None for other arrays.

    The C++ core runs a call on CuPy arrays on that stream, as CuPy's own functions would. CuPy and torch each have
    their own current stream.
    """
    if not any(kind.__module__.partition(".")[0] == "cupy" for kind in type(value).__mro__):
        return None
    import cupy

    with value.device:  # type: ignore[attr-defined]
        return int(cupy.cuda.get_current_stream().ptr)
