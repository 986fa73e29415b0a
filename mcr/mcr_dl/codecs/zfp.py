# SPDX-License-Identifier: Apache-2.0
"""zfp (https://zfp.io) on tensors as one-dimensional arrays: a fixed rate, or a guaranteed absolute error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[Any]  # float32 or float64, of one dimension

_BLOCK = 4  # values of one dimension that are coded together
_WORD = 64  # bits; streams are padded to multiples of this
_LEAST_BITS = {"float32": 1 + 8, "float64": 1 + 11}  # of a block: whether it is zero, and its exponent


def _library() -> Any:
    try:
        import zfpy
    except ImportError as error:
        message = f"codec zfp needs the package zfpy: pip install zfpy ({error})"
        raise ImportError(message) from error
    return zfpy


def _number(name: str, text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most or value == 0:
        limits = f"from {least:g} to" if least else "above 0 and at most"
        message = f"{name}: expected a number {limits} {most:g}, got {text!r}"
        raise ValueError(message)
    return value


class Zfp:
    """``rate`` bits per value, or at most ``tolerance`` of absolute error per value.

    Streams have no header, as both sides know the count and the type.
    """

    dtypes: tuple[str, ...] = ("float32", "float64")

    def __init__(self, *, rate: float | None = None, tolerance: float = 0.0) -> None:
        self._zfpy = _library()
        self._types = {"float32": self._zfpy.type_float, "float64": self._zfpy.type_double}
        self._rate, self._tolerance = rate, tolerance
        self.fixed = rate is not None

    def _mode(self, dtype: str) -> dict[str, float]:
        if self._rate is None:
            return {"tolerance": self._tolerance}
        # With fewer bits than a block's least, zfpy writes past the end of its own memory.
        return {"rate": max(self._rate, _LEAST_BITS[dtype] / _BLOCK)}

    def capacity(self, count: int, dtype: str) -> int:
        """The size of every stream with a fixed rate; else zfp's bound."""
        more = 0  # words
        if self.fixed:
            bits = math.floor(_BLOCK * self._mode(dtype)["rate"] + 0.5)
        else:  # a block grows at most by its exponent and a few bits
            bits, more = _BLOCK * np.dtype(dtype).itemsize * 8 + _LEAST_BITS[dtype] + 2 * _BLOCK * 8, 1
        return (math.ceil(math.ceil(count / _BLOCK) * bits / _WORD) + more) * _WORD // 8

    def encode(self, values: Values, out: Bytes) -> int:
        stream = self._zfpy.compress_numpy(values, write_header=False, **self._mode(values.dtype.name))
        out[: len(stream)] = np.frombuffer(stream, np.uint8)
        return len(stream)

    def decode(self, data: Bytes, out: Values) -> None:
        dtype = out.dtype.name
        # zfp reads on until it has all values, whatever it finds: zeros follow data that is cut short.
        stream = data.tobytes().ljust(self.capacity(out.size, dtype), b"\0")
        native = out.view(out.dtype.newbyteorder("="))
        self._zfpy._decompress(stream, self._types[dtype], (out.size,), out=native, **self._mode(dtype))
        if not self.fixed:
            largest = np.finfo(out.dtype).max  # zfp may go beyond it; encoded values are finite
            np.clip(out, -largest, largest, out=out)


def make(rate: str | None = None, tolerance: str | None = None) -> Zfp:
    """The codec of ``zfp:rate=16`` (bits per value) or ``zfp:tolerance=1e-3``."""
    if (rate is None) == (tolerance is None):
        message = "expected rate=<bits per value> or tolerance=<absolute error>, one of the two"
        raise ValueError(message)
    if rate is not None:
        return Zfp(rate=_number("rate", rate, 1, 64))
    return Zfp(tolerance=_number("tolerance", str(tolerance), 0, 1e300))
