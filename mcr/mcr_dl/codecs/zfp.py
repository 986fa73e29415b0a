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


class _Zfp:
    """Shared by both modes: streams without a header, as both sides know the count and the type."""

    dtypes: tuple[str, ...] = ("float32", "float64")

    def __init__(self) -> None:
        self._zfpy = _library()
        self._types = {"float32": self._zfpy.type_float, "float64": self._zfpy.type_double}

    def _mode_for(self, dtype: str) -> dict[str, float]:
        raise NotImplementedError

    def encode(self, values: Values, out: Bytes) -> int:
        stream = self._zfpy.compress_numpy(values, write_header=False, **self._mode_for(values.dtype.name))
        out[: len(stream)] = np.frombuffer(stream, np.uint8)
        return len(stream)

    def decode(self, data: Bytes, out: Values) -> None:
        self._decode(data.tobytes(), out)

    def _decode(self, stream: bytes, out: Values) -> None:
        self._zfpy._decompress(
            stream,
            self._types[out.dtype.name],
            (out.size,),
            out=out.view(out.dtype.newbyteorder("=")),
            **self._mode_for(out.dtype.name),
        )


class FixedRate(_Zfp):
    """``rate`` bits per value."""

    fixed: bool = True

    def __init__(self, rate: float) -> None:
        super().__init__()
        self._rate = rate

    def _rate_for(self, dtype: str) -> float:
        # With fewer bits than a block's least, zfpy writes past the end of its own memory.
        return max(self._rate, _LEAST_BITS[dtype] / _BLOCK)

    def _mode_for(self, dtype: str) -> dict[str, float]:
        return {"rate": self._rate_for(dtype)}

    def capacity(self, count: int, dtype: str) -> int:
        """The size of every stream."""
        bits = math.floor(_BLOCK * self._rate_for(dtype) + 0.5)
        return math.ceil(math.ceil(count / _BLOCK) * bits / _WORD) * _WORD // 8


class FixedAccuracy(_Zfp):
    """At most ``tolerance`` of absolute error per value."""

    fixed: bool = False

    def __init__(self, tolerance: float) -> None:
        super().__init__()
        self._tolerance = tolerance

    def _mode_for(self, dtype: str) -> dict[str, float]:
        del dtype
        return {"tolerance": self._tolerance}

    def decode(self, data: Bytes, out: Values) -> None:
        # zfp reads on until it has all values, whatever it finds: zeros follow data that is cut short.
        self._decode(data.tobytes().ljust(self.capacity(out.size, out.dtype.name), b"\0"), out)
        largest = np.finfo(out.dtype).max  # zfp may go beyond it; encoded values are finite
        np.clip(out, -largest, largest, out=out)

    def capacity(self, count: int, dtype: str) -> int:
        """zfp's own bound: a block grows at most by its exponent and a few bits."""
        bits = _BLOCK * np.dtype(dtype).itemsize * 8 + _LEAST_BITS[dtype] + 2 * _BLOCK * 8
        return math.ceil(math.ceil(count / _BLOCK) * bits / _WORD) * _WORD // 8 + _WORD // 8


def make(rate: str | None = None, tolerance: str | None = None) -> FixedRate | FixedAccuracy:
    """The codec of ``zfp:rate=16`` (bits per value) or ``zfp:tolerance=1e-3``."""
    if (rate is None) == (tolerance is None):
        message = "expected rate=<bits per value> or tolerance=<absolute error>, one of the two"
        raise ValueError(message)
    if rate is not None:
        return FixedRate(_number("rate", rate, 1, 64))
    return FixedAccuracy(_number("tolerance", str(tolerance), 0, 1e300))
