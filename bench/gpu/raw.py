# SPDX-License-Identifier: Apache-2.0
"""NCCL called from C++ (raw_nccl.cc), through one ctypes call for many NCCL calls."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from gpu.device import Device

OPS = {"all_reduce": 0, "all_gather_single": 1}
_ID_BYTES = 128


def build(folder: Path) -> Path:
    """Compile the loop; returns the library."""
    library = folder / "raw_nccl.so"
    source = Path(__file__).with_name("raw_nccl.cc")
    compiler = os.environ.get("CXX", "c++")
    flags = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(source), "-o", str(library), "-ldl"], check=True)
    return library


def library_path() -> str:
    """The libnccl that torch has loaded, or the one in MCR_DL_NCCL_LIB."""
    named = os.environ.get("MCR_DL_NCCL_LIB", "")
    if named:
        return named
    for line in Path("/proc/self/maps").read_text().splitlines():
        place = line.split(maxsplit=5)[-1]
        if re.fullmatch(r"libnccl\.so(\.\d+)*", Path(place).name):
            return place
    raise FileNotFoundError("torch has loaded no libnccl, and MCR_DL_NCCL_LIB names none")


class Raw:
    """One communicator over all ranks. Collective."""

    def __init__(self, loop: Path, store: Any, rank: int, ranks: int, device: Device) -> None:
        self._c, self._device = ctypes.CDLL(str(loop)), device
        self._c.raw_problem.restype = ctypes.c_char_p
        self._c.raw_connect.restype = ctypes.c_void_p
        self._c.raw_loop.restype = ctypes.c_double
        if self._c.raw_open(library_path().encode()) != 0:
            raise RuntimeError(self._c.raw_problem().decode())
        identity = ctypes.create_string_buffer(_ID_BYTES)
        if rank == 0:
            if self._c.raw_unique_id(identity) != 0:
                raise RuntimeError("ncclGetUniqueId failed")
            store.set("raw/id", identity.raw.hex())
        identity.raw = bytes.fromhex(store.get("raw/id").decode())
        self._comm = ctypes.c_void_p(self._c.raw_connect(identity, ctypes.c_int(ranks), ctypes.c_int(rank)))
        if not self._comm.value:
            raise RuntimeError(self._c.raw_problem().decode())
        self._side = device.stream()

    @property
    def version(self) -> str:
        number = int(self._c.raw_version())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def loop(self, op: str, calls: int, source: torch.Tensor, target: torch.Tensor, *, asynchronous: bool) -> float:
        """Seconds of the host per call. An all_reduce is in place, in `target`."""
        count = target.numel() if op == "all_reduce" else source.numel()
        stream = self._device.handle(self._device.current())
        side = self._device.handle(self._side)
        taken = float(
            self._c.raw_loop(
                self._comm, OPS[op], calls, ctypes.c_void_p(source.data_ptr()), ctypes.c_void_p(target.data_ptr()),
                ctypes.c_size_t(count), ctypes.c_void_p(stream), ctypes.c_void_p(side), int(asynchronous),
            )
        )  # fmt: skip
        if taken < 0:
            raise RuntimeError(f"raw {op}: result {-taken:.0f}")
        return taken

    def close(self) -> None:
        self._device.synchronize()
        self._c.raw_close(self._comm)
