# SPDX-License-Identifier: Apache-2.0
"""Codecs: the core's, zfp, and users' own."""

from __future__ import annotations

import gc
import operator
import re
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError, refuse_class
from mcr_dl.codecs import zfp
from mcr_dl.codecs.zfp import Bytes, Values


class Codec(Protocol):
    """The interface of an object for ``register_codec``. Its methods may be called from any thread, with the GIL.

    The arrays are valid during the call only; a codec that keeps one gets an error.
    """

    @property
    def fixed(self) -> bool:
        """Whether the encoded size is ``capacity()``, whatever the values."""

    @property
    def dtypes(self) -> Sequence[str]:
        """The tensors it is for, such as ("float32", "float64"). Floats of 16 and 8 bits reach it as float32."""

    def capacity(self, count: int, dtype: str) -> int:
        """The largest number of bytes of ``count`` encoded values. Depends on nothing but the arguments.

        If it raises, the call fails on this rank alone, with nothing sent.
        """

    def encode(self, values: Values, out: Bytes) -> int:
        """Write the encoded values, which are finite, to ``out`` and return the number of bytes.

        ``out`` has ``capacity()`` bytes.
        """

    def decode(self, data: Bytes, out: Values) -> None:
        """Write the values to ``out``; equal bytes must give equal values on all ranks.

        ``data`` has the bytes that ``encode`` has written; if the codec is ``fixed``, ``capacity()`` bytes.
        """


_MOST_BYTES = 1 << 48  # of an encoded part
_ANSWERS = 1 << 16  # of capacity() that are kept


class _Adapter:
    """A codec on memory instead of arrays, as the core calls it."""

    def __init__(self, name: str, codec: Codec) -> None:
        self.name = name
        self.fixed = bool(codec.fixed)
        self.dtypes = _require_dtypes(name, codec.dtypes)
        self._codec = codec
        # Memory is made by one answer, and filled by a later one: the newest answers stay.
        self.capacity = lru_cache(_ANSWERS)(self._capacity)

    def _capacity(self, count: int, dtype: str) -> int:
        try:
            found = self._codec.capacity(count, dtype)
        except Exception as error:
            message = f"codec {self.name}: capacity({count}, {dtype!r}): {type(error).__name__}: {error}"
            raise InvalidArgumentError(message) from error
        if not isinstance(found, int | np.integer) or not 0 <= found <= _MOST_BYTES:
            message = f"codec {self.name}: capacity(): expected a whole number from 0 to {_MOST_BYTES}, got {found!r}"
            raise InvalidArgumentError(message)
        return int(found)

    def encode(self, values: memoryview, dtype: str, out: memoryview) -> int:
        arrays: list[Bytes | Values] = [np.frombuffer(values, dtype), np.frombuffer(out, np.uint8)]
        return operator.index(_called(self._codec.encode, arrays))

    def decode(self, data: memoryview, out: memoryview, dtype: str) -> None:
        _called(self._codec.decode, [np.frombuffer(data, np.uint8), np.frombuffer(out, dtype)])


def _require_dtypes(name: str, dtypes: object) -> list[str]:
    """The dtypes of a codec. Raises InvalidTypeError."""
    listed = list(dtypes) if isinstance(dtypes, Sequence) and not isinstance(dtypes, str) else []
    floating = [each for each in _C.dtypes() if getattr(torch, each).is_floating_point]
    if not listed or any(each not in floating for each in listed):
        names = ", ".join(map(repr, floating))
        message = f"codec {name}: dtypes: expected a tuple of some of {names}, got {dtypes!r}"
        raise InvalidTypeError(message)
    return listed


def _called(method: Callable[..., Any], arrays: list[Bytes | Values]) -> Any:
    """The method's result. The memory is the core's: an array that the codec kept would read it after it is freed."""
    references = [weakref.ref(array) for array in arrays]
    result = method(*arrays)
    arrays.clear()
    if any(reference() is not None for reference in references):
        gc.collect()  # what only a circle of references kept
    if any(reference() is not None for reference in references):
        raise ValueError("it kept an array: expected a copy, as the memory is valid during the call only")
    return result


# Derived in docs/compression.md; tests/test_compress.py checks the codecs against them.
_BOUNDS = {
    "bf16": "2^-8 of each value",
    "fp16": "2^-11 of each value, or 2^-25",
    "int8": "0.5001 * max|x| / 127 of each block",
}


def _specification(name: str, options: dict[str, str]) -> str:
    return name + (":" + ",".join(f"{key}={value}" for key, value in options.items()) if options else "")


def register_codec(codec: Codec | Callable[..., Codec], name: str | None = None, options: tuple[str, ...] = ()) -> None:
    """Register a codec of your own under a name, on every rank, before the first call that names it.

    Args:
        codec: the codec, or with ``options`` a function that makes one from them, given as keyword arguments that are
            the strings of the specification: ``"mine:level=3"`` gives ``codec(level="3")``.
        name: by default the codec's ``name``, else its class's in lower case.
        options: the options that a specification may give to the name.

    Raises InvalidArgumentError if the name is taken, or if a specification cannot have the name or an option;
    InvalidTypeError if the object is not a codec, or ``options`` is not a list of names. Values that are not finite
    never reach a codec: a part that has one decodes to NaN.
    """
    listed: object = options
    if isinstance(listed, str) or not isinstance(listed, Sequence) or any(not isinstance(each, str) for each in listed):
        message = f"register_codec: options: expected a list of names, got {listed!r}"
        raise InvalidTypeError(message)
    if not options:
        refuse_class("register_codec", codec)
    known = str(name or getattr(codec, "name", None) or type(codec).__name__.lower())
    wanted = ("fixed", "dtypes", "capacity", "encode", "decode")
    if not options and any(not hasattr(codec, attribute) for attribute in wanted):
        message = f"register_codec: expected an object with {', '.join(wanted)}, got {codec!r}"
        raise InvalidTypeError(message)

    untyped: Any = codec
    adapter = None if options else _Adapter(known, untyped)

    def make(**given: str) -> _Adapter:
        return adapter or _Adapter(_specification(known, given), untyped(**given))

    _C.register_codec(known, list(options), make)
    _BOUNDS[known] = str(getattr(codec, "error_bound", "not stated"))


def error_bound(codec: str) -> str:
    """How far one encoding may move a value, in words, for a codec with its options.

    For a codec of your own it is its attribute ``error_bound``, if it has one. An all_reduce encodes twice. Raises
    InvalidArgumentError for an unknown codec or a wrong option.
    """
    _C.codec(codec)
    name, options = (*re.split("[:,]", codec, maxsplit=1), "")[:2]
    if name == "zfp":
        given = dict(option.partition("=")[::2] for option in options.split(","))
        if "tolerance" in given:
            return f"{given['tolerance']} for each value, or the type's precision at the largest value nearby"
        return "no bound: the error grows with the roughness of the values"
    return _BOUNDS[name]


def known_codecs() -> list[str]:
    """Names of the codecs, without their options."""
    return _C.codecs()


def _require_tensor(name: str, given: object) -> None:
    if not isinstance(given, torch.Tensor):
        raise InvalidTypeError(f"{name}: expected a tensor, got {given!r}")


def encode(tensor: torch.Tensor, codec: str) -> torch.Tensor:
    """Encode the tensor as one part: the bytes (uint8, one dimension) that a call with this codec would send.

    Raises InvalidArgumentError for an unknown codec, InvalidTypeError for an object that is no tensor, or for a dtype
    that the codec does not take.
    """
    _require_tensor("tensor", tensor)
    return _C.encode(tensor, codec)


def decode(encoded: torch.Tensor, like: torch.Tensor, codec: str) -> torch.Tensor:
    """Decode the result of ``encode`` for a tensor of the shape and dtype of ``like``. Raises as ``encode`` does."""
    _require_tensor("encoded", encoded)
    _require_tensor("like", like)
    return _C.decode(encoded, like, codec)


register_codec(zfp.make, "zfp", ("rate", "tolerance"))
