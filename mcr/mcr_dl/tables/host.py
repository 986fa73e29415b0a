# SPDX-License-Identifier: Apache-2.0
"""The machine and the software versions that a tuning table was measured on."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from mcr_dl import _C

_CPU_INFO = Path("/proc/cpuinfo")
_CPUS = Path("/sys/devices/system/cpu")
_NODES = Path("/sys/devices/system/node")
# The driver's own list: it names all devices, whatever CUDA_VISIBLE_DEVICES says, and starts no CUDA context.
_NVIDIA = Path("/proc/driver/nvidia/gpus")
_NVML = "libnvidia-ml.so.1"
_NVML_NAME = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE


@dataclass(frozen=True)
class Host:
    """A machine. ``fingerprint`` (16 hex digits) is equal for machines of one kind; memory is in GiB."""

    fingerprint: str
    cpu: str
    cores: int
    memory_gib: int
    accelerators: tuple[str, ...]
    system: str


@dataclass(frozen=True)
class Software:
    """Versions of MCR-DL, torch, Python and of the library behind each backend."""

    mcr_dl: str
    torch: str
    python: str
    backends: Mapping[str, str] = field(default_factory=dict)


def fingerprint(cpu: str, cores: int, system: str, accelerators: tuple[str, ...]) -> str:
    """16 hex digits made from the properties that determine speed. The host's name and memory are not among them."""
    text = json.dumps([cpu, cores, system, sorted(accelerators)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _cpu() -> str:
    """The processor's name, revision, layout and highest clock, as far as the system states them.

    A virtual machine often states only a vendor's name, so the name alone does not tell processors apart.
    """
    text = _read(_CPU_INFO)

    def field(name: str) -> str:
        match = re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE)
        return match.group(1).strip() if match else ""

    name = field("model name") or platform.processor() or platform.machine()
    revision = [f"{key} {field(key)}" for key in ("cpu family", "model", "stepping", "CPU part") if field(key)]
    return "; ".join([name, *revision, *_layout()])


def _layout() -> list[str]:
    cpu = _CPUS / "cpu0"
    nodes = len(list(_NODES.glob("node[0-9]*")))
    siblings = _read(cpu / "topology" / "thread_siblings_list")
    clock = _read(cpu / "cpufreq" / "cpuinfo_max_freq")
    caches = [
        f"L{level} {_read(cache / 'size')}"
        for cache in sorted((cpu / "cache").glob("index[0-9]*"))
        if (level := _read(cache / "level")) in ("2", "3")
    ]
    return [
        *([f"NUMA nodes {nodes}"] if nodes else []),
        *([f"threads of core 0: {siblings}"] if siblings else []),
        *caches,
        *([f"{int(clock) // 100_000 / 10} GHz"] if clock.isdigit() else []),
    ]


def _accelerators() -> tuple[str, ...]:
    texts = [path.read_text() for path in _NVIDIA.glob("*/information")]
    models = [re.search(r"^Model:\s*(.+)$", text, re.MULTILINE) for text in texts]
    return tuple(sorted(model.group(1).strip() for model in models if model)) or _told_by_nvml()


def _told_by_nvml() -> tuple[str, ...]:
    """The list from the driver's library, for containers without the driver's own. Starts no CUDA context either."""
    try:
        nvml = ctypes.CDLL(_NVML)
    except OSError:
        return ()
    if nvml.nvmlInit_v2() != 0:
        return ()
    number, names = ctypes.c_uint(0), []
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(number))
    for index in range(number.value):
        device, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NVML_NAME)
        found = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) == 0
        if found and nvml.nvmlDeviceGetName(device, name, ctypes.c_uint(_NVML_NAME)) == 0:
            names.append(name.value.decode(errors="replace").strip())
    nvml.nvmlShutdown()
    return tuple(sorted(names))


@cache
def host() -> Host:
    """The machine of this process. Accelerators are those of NVIDIA's driver."""
    cpu, cores, accelerators = _cpu(), os.cpu_count() or 1, _accelerators()
    system = f"{platform.system()} {platform.machine()}"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Host(fingerprint(cpu, cores, system, accelerators), cpu, cores, round(memory / 2**30), accelerators, system)


def software(libraries: Mapping[str, str]) -> Software:
    """The versions in use. ``libraries`` are those of the backends, or what ``available_backends()`` returns."""
    usable = {
        name: text.removeprefix("ok: ") for name, text in libraries.items() if not text.startswith("unavailable: ")
    }
    return Software(_C.__version__, str(torch.__version__), platform.python_version(), usable)
