# SPDX-License-Identifier: Apache-2.0
"""Users' codecs that are wrong: errors that name the codec, when it is registered or used."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcr_dl
from mcr_dl import passes
from ranks import codec_faults


def test_a_capacity_that_raises() -> None:
    """The error names the codec, the arguments and the exception."""

    class Raising(codec_faults.Broken):
        def capacity(self, *_: Any) -> int:
            raise KeyError("table")

    passes.register_codec(Raising("nowhere"), "capacity-raises")
    wrong = r"^codec capacity-raises: capacity\(5, 'float32'\): KeyError: 'table'$"
    with pytest.raises(mcr_dl.InvalidArgumentError, match=wrong):
        passes.encode(torch.ones(5), "capacity-raises")


@pytest.mark.parametrize(
    "dtypes",
    [(), "float32", (torch.float32,), ("flaot32",), ("float32", "int64"), ("bool",), ("complex64",), None],
    ids=str,
)
def test_wrong_dtypes(dtypes: Any) -> None:
    """Known when the codec is registered. Values that are no floating-point numbers must arrive unchanged."""
    codec = codec_faults.Broken("nowhere")
    codec.dtypes = dtypes
    with pytest.raises(
        mcr_dl.InvalidTypeError, match=r"^codec wrong-dtypes: dtypes: expected .*'float32'.*, got "
    ) as got:
        passes.register_codec(codec, "wrong-dtypes")
    assert str(got.value).endswith(repr(dtypes))
    assert "wrong-dtypes" not in passes.known_codecs()


def test_wrong_dtypes_of_a_codec_with_options() -> None:
    """Known when a specification is used."""

    def make(where: str) -> codec_faults.Broken:
        codec = codec_faults.Broken(where)
        codec.dtypes = ()  # type: ignore[assignment]
        return codec

    passes.register_codec(make, "late-dtypes", ("where",))
    with pytest.raises(mcr_dl.InvalidArgumentError, match=r"codec late-dtypes:where=a: dtypes: expected .*, got \(\)"):
        passes.encode(torch.ones(3), "late-dtypes:where=a")


def test_a_class() -> None:
    """In place of an object."""
    with pytest.raises(mcr_dl.InvalidTypeError, match=r"expected an object, got the class Broken: write Broken\(\)"):
        passes.register_codec(codec_faults.Broken, "class")


@pytest.mark.parametrize("option", ["", "feedback", "a=b", "a,b", "a:b"])
def test_wrong_options(option: str) -> None:
    """Options that no specification could name."""
    with pytest.raises(mcr_dl.InvalidArgumentError, match=f"'wrong-options': expected options .*, got '{option}'"):
        passes.register_codec(codec_faults.Broken, "wrong-options", ("where", option))
    with pytest.raises(mcr_dl.InvalidArgumentError, match=r"expected a name .*, got 'a\|b'"):
        passes.register_codec(codec_faults.Broken("nowhere"), "a|b")


def test_objects_that_are_no_tensors() -> None:
    """Lists, for example."""
    given: Any = [1.0]
    with pytest.raises(mcr_dl.InvalidTypeError, match=r"tensor: expected a tensor, got \[1.0\]"):
        passes.encode(given, "bf16")
    with pytest.raises(mcr_dl.InvalidTypeError, match=r"encoded: expected a tensor, got \[1.0\]"):
        passes.decode(given, torch.ones(1), "bf16")
    with pytest.raises(mcr_dl.InvalidTypeError, match=r"like: expected a tensor, got \[1.0\]"):
        passes.decode(torch.ones(2, dtype=torch.uint8), given, "bf16")
