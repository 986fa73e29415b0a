# SPDX-License-Identifier: Apache-2.0
"""Users' codecs: what they get, and errors that name the codec when it is registered or used."""

from __future__ import annotations

import signal
from typing import Any, ClassVar

import pytest
import torch

import mcr_dl
from codings import around, assert_equal
from mcr_dl import passes
from mcr_dl.codecs import codecs
from mcr_dl.testing import reference
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


class _Given:
    """A codec that decodes to given values, whatever it has encoded."""

    fixed = True
    dtypes = ("float8_e4m3fn", "float8_e5m2")
    seen: ClassVar[torch.Tensor]
    given: ClassVar[torch.Tensor]

    def capacity(self, count: int, dtype: str) -> int:
        assert dtype == "float32"
        return count

    def encode(self, values: codecs.Values, out: codecs.Bytes) -> int:
        _Given.seen = torch.from_numpy(values.copy())
        out[: len(values)] = 0
        return len(values)

    def decode(self, data: codecs.Bytes, out: codecs.Values) -> None:
        assert not data.any()
        out[:] = self.given.numpy()


def test_float8_tensors_reach_own_codecs_as_float32() -> None:
    """Exactly; decoded values are rounded as torch's casts do it, with ties, subnormals, overflow and NaN."""
    passes.register_codec(_Given(), "given")
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        every = torch.arange(256).to(torch.uint8).view(dtype)
        every = every[every.float().isfinite()]
        bits = every.float().view(torch.int32)
        # Around all values, and around halfway points between two values: floats have 20 or 21 bits more.
        near = [bits + offset + step for offset in (0, 2**19, 2**20) for step in (-1, 0, 1)]
        sweep = torch.arange(-(2**31), 2**31, 9973).to(torch.int32)
        _Given.given = torch.cat([*near, sweep]).view(torch.float32)
        like = every.repeat(1 + _Given.given.numel() // every.numel())[: _Given.given.numel()]
        got = around(like, "given")
        assert_equal(_Given.seen, like.float())
        assert got.dtype == dtype
        assert_equal(got.float(), reference.rounded(_Given.given, dtype).float())


@pytest.mark.parametrize("method", ["encode", "decode"])
def test_kept_arrays(method: str) -> None:
    """A codec that keeps an array beyond the call would read memory that is freed: an error."""
    kept: list[object] = []

    class Keeping(codec_faults.Broken):
        def encode(self, values: Any, out: Any) -> int:
            if method == "encode":
                kept.append(values[1:])
            return super().encode(values, out)

        def decode(self, data: Any, out: Any) -> None:
            if method == "decode":
                kept.append(out)
            super().decode(data, out)

    passes.register_codec(Keeping("nowhere"), f"keeping-{method}")
    with pytest.raises(mcr_dl.BackendError, match=rf"{method}.*it kept an array: expected a copy"):
        around(torch.ones(5), f"keeping-{method}")
    assert kept


@pytest.mark.parametrize("answer", [10.0, None, -1, 1 << 63])
def test_capacities_that_are_no_sizes(answer: Any) -> None:
    """The error names the codec and its method."""

    class Wrong(codec_faults.Broken):
        def capacity(self, *_: Any) -> int:
            return answer

    passes.register_codec(Wrong("nowhere"), f"capacity-{answer}")
    with pytest.raises(mcr_dl.InvalidArgumentError, match=rf"codec capacity-{answer}: capacity\(\).*got {answer}"):
        passes.encode(torch.ones(5), f"capacity-{answer}")


def test_capacities_that_change() -> None:
    """The first answer stands: memory is made by one, and filled by a later one."""

    class Growing(codec_faults.Broken):
        room = 100

        def capacity(self, *_: Any) -> int:
            self.room *= 1000
            return self.room

        def encode(self, values: Any, out: Any) -> int:
            out[:] = 1
            return super().encode(values, out)

        def decode(self, data: Any, out: Any) -> None:
            assert len(data) == 100_000
            super().decode(data[: 4 * len(out)], out)

    passes.register_codec(Growing("nowhere"), "growing")
    for _ in range(3):
        assert_equal(around(torch.ones(5), "growing"), torch.ones(5))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100])
def test_the_memory_of_a_fixed_codec(count: int) -> None:
    """``encode`` and ``decode`` get as many bytes as ``capacity`` says."""

    class Exact(codec_faults.Broken):
        def encode(self, values: Any, out: Any) -> int:
            assert len(out) == 4 * len(values)
            return super().encode(values, out)

        def decode(self, data: Any, out: Any) -> None:
            assert len(data) == 4 * len(out)
            super().decode(data, out)

    passes.register_codec(Exact("nowhere"), f"exact-{count}")
    assert_equal(around(torch.arange(float(count)), f"exact-{count}"), torch.arange(float(count)))


@pytest.mark.parametrize("answer", [-1, 21, 1 << 63, 1 << 70, 2.0, None])
def test_encoded_sizes_that_are_none(answer: Any) -> None:
    """Any answer but a number of bytes that fit is the codec's failure, of which all ranks learn."""

    class Wrong(codec_faults.Broken):
        def encode(self, *_: Any) -> int:
            return answer

    passes.register_codec(Wrong("nowhere"), f"encoded-{answer}")
    with pytest.raises(mcr_dl.BackendError, match=f"codec encoded-{answer}: the sender could not encode: "):
        passes.encode(torch.ones(5), f"encoded-{answer}")


def test_encode_raises() -> None:
    """``encode`` itself raises the codec's error, not a later ``decode``."""

    class Failing(codec_faults.Broken):
        def encode(self, *_: Any) -> int:
            raise ArithmeticError("no such value")

    passes.register_codec(Failing("nowhere"), "failing")
    with pytest.raises(mcr_dl.BackendError, match=r"codec failing: the sender could not encode: .*no such value"):
        passes.encode(torch.ones(5), "failing")


def test_an_interrupt_while_a_codec_is_made() -> None:
    """Ctrl-C is not lost in the error of the codec's name."""

    def make(where: str) -> codec_faults.Broken:
        signal.raise_signal(signal.SIGINT)
        return codec_faults.Broken(where)

    def interrupted() -> None:
        try:
            passes.encode(torch.ones(5), "made-late:where=nowhere")
        finally:
            for _ in range(1000):  # Python looks for signals
                pass

    passes.register_codec(make, "made-late", ("where",))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        signal.signal(signal.SIGINT, before)


def test_registering() -> None:
    """A taken name and an object that is not a codec are errors."""
    with pytest.raises(mcr_dl.InvalidArgumentError, match="bf16"):
        passes.register_codec(codec_faults.Broken("nowhere"), "bf16")
    with pytest.raises(mcr_dl.InvalidTypeError, match="capacity"):
        passes.register_codec(object(), "nothing")  # type: ignore[arg-type]
    with pytest.raises(mcr_dl.InvalidTypeError, match="options: expected a list of names, got 'level'"):
        passes.register_codec(codec_faults.Broken, "levels", options="level")  # type: ignore[arg-type]
    passes.register_codec(codec_faults.Broken, "own-options", ("where",))  # type: ignore[arg-type]
    values = torch.randn(10)
    assert_equal(around(values, "own-options:where=nowhere"), values)
    with pytest.raises(mcr_dl.InvalidArgumentError, match="where, feedback"):
        passes.encode(values, "own-options:what=1")
