# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries: CuPy's current stream, on a stand-in for CuPy, which needs a GPU."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch

from mcr_dl import InvalidArgumentError
from mcr_dl.base import arrays


class Stream:
    """cupy.cuda.Stream: only its pointer matters."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module with arrays on two devices, each with its own current stream."""
    module = types.ModuleType("cupy")
    current = {0: Stream(0), 1: Stream(0x1234)}
    on = [0]

    class Device:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            on.append(self.index)

        def __exit__(self, *_: object) -> None:
            on.pop()

    class ndarray:
        def __init__(self, device: int, memory: torch.Tensor | None = None) -> None:
            self.device = Device(device)
            self.memory = memory

        def __dlpack__(self, **given: object) -> object:
            return self.memory.__dlpack__(**given)  # type: ignore[union-attr, arg-type]

        def __dlpack_device__(self) -> object:
            return self.memory.__dlpack_device__()  # type: ignore[union-attr]

    ndarray.__module__ = "cupy"
    module.ndarray = ndarray  # type: ignore[attr-defined]
    module.cuda = types.SimpleNamespace(get_current_stream=lambda: current[on[-1]])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_the_stream_of_the_arrays_device(cupy: types.ModuleType) -> None:
    """CuPy has a current stream for each device; the array's device counts, not the current one."""
    assert arrays.stream_of(cupy.ndarray(0)) == 0
    assert arrays.stream_of(cupy.ndarray(1)) == 0x1234


def test_subclasses_of_cupys_arrays(cupy: types.ModuleType) -> None:
    """Also those that other packages define."""

    class Own(cupy.ndarray):  # type: ignore[name-defined, misc]
        pass

    assert arrays.stream_of(Own(1)) == 0x1234


@pytest.mark.parametrize("value", [torch.ones(1), np.ones(1), 3, None, object()])
def test_others_have_none(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy is not imported for them."""
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it would fail
    assert arrays.stream_of(value) is None


def test_an_array_comes_through_dlpack(cupy: types.ModuleType) -> None:
    """The tensor uses the same memory."""
    memory = torch.arange(4.0)
    tensor = arrays.as_tensor(cupy.ndarray(0, memory), "tensor")
    assert tensor.data_ptr() == memory.data_ptr()


@pytest.mark.parametrize("code", "bBhHiIlLqQpPfdFD?e")
def test_equal_types_of_numpy(code: str) -> None:
    """NumPy has several types for the same numbers: all are accepted, on the same memory, also in Fortran order."""
    array = np.asfortranarray(np.arange(6).reshape(2, 3).astype(code))
    tensor = arrays.as_tensor(array, "tensor")
    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.tolist() == array.tolist()
    assert tensor.element_size() == array.itemsize
    assert tensor.is_floating_point() == (np.dtype(code).kind == "f")


def test_other_types_of_numpy() -> None:
    """The error names the parameter and the type."""
    for array in (np.zeros(2, ">i4"), np.zeros(2, "datetime64[s]"), np.array([None])):
        with pytest.raises(InvalidArgumentError, match=r"tensor: expected an array whose memory can be shared"):
            arrays.as_tensor(array, "tensor")


def test_read_only_arrays() -> None:
    """They can be read but not written, whatever the parameter's name."""
    array = np.arange(3.0)
    array.flags.writeable = False
    assert arrays.as_tensor(array, "tensor", False).tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(InvalidArgumentError, match="read-only"):
        arrays.as_tensor(array, "input", True)


def test_the_device_is_current_only_while_asked(cupy: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current device is restored, even if CuPy fails."""

    def fail() -> None:
        raise RuntimeError("cudaErrorDevicesUnavailable")

    with monkeypatch.context() as patch:
        patch.setattr(cupy.cuda, "get_current_stream", fail)
        with pytest.raises(RuntimeError, match="Unavailable"):
            arrays.stream_of(cupy.ndarray(1))
    assert cupy.cuda.get_current_stream().ptr == 0
