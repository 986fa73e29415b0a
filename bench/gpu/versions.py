# SPDX-License-Identifier: Apache-2.0
"""The software and devices of this machine, and the backends that mcr_dl can use."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from pathlib import Path
from typing import Any

import torch

import mcr_dl
from gpu import jobs
from mcr_dl.tables.host import host

_PACKAGES = ("cupy", "mpi4py", "jsonschema", "platformdirs", "rich")


def facts() -> dict[str, Any]:
    """Versions and devices."""
    found: dict[str, Any] = {
        "mcr_dl": mcr_dl.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "cpu": host().cpu,
        "cores": host().cores,
        "accelerators": list(host().accelerators),
        "backends": mcr_dl.available_backends(),
        "packages": {name: importlib.util.find_spec(name) is not None for name in _PACKAGES},
        "nccl_wheels": {
            each.name: each.version
            for each in importlib.metadata.distributions()
            if (each.name or "").startswith("nvidia-nccl")
        },
    }
    if torch.cuda.is_available():
        found["devices"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        found["torch_nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return found


def main() -> int:
    """Print and write them; exit code 1 if nccl was requested and is not usable."""
    folder, wanted = Path(sys.argv[1]), sys.argv[2]
    found = facts()
    for name, value in found.items():
        print(f"{name}: {value}")
    state = found["backends"].get(wanted, "unknown")
    parts = [f"torch {found['torch']}", f"Python {found['python']}", *(found.get("devices") or ["no GPU"])]
    document = {**found, "line": f"{', '.join(parts)}; {wanted} {state}", "failed": not state.startswith("ok")}
    return jobs.finish(folder, "versions", document, "")


if __name__ == "__main__":
    sys.exit(main())
