# SPDX-License-Identifier: Apache-2.0
"""The commands' entry points. The library needs torch and NumPy alone; commands say which package they lack."""

from __future__ import annotations

import importlib
import sys

# Only commands, tables and pictures need these.
OPTIONAL = ("jsonschema", "matplotlib", "platformdirs", "rich")
_LACKS_PACKAGE = 2  # exit code


def run(program: str, module: str) -> int:
    """Call ``main()`` of the module; one line and exit code 2 if one of ``OPTIONAL`` is not installed."""
    try:
        code: int = importlib.import_module(module).main()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in OPTIONAL:
            raise
        print(f"{program}: error: needs {package}, which is not installed: pip install {package}", file=sys.stderr)
        return _LACKS_PACKAGE
    return code or 0


def bench() -> int:
    """``mcr-bench``."""
    return run("mcr-bench", "mcr_dl.bench.cli")


def info() -> int:
    """``mcr-info``."""
    return run("mcr-info", "mcr_dl.info")


def trace() -> int:
    """``mcr-trace``."""
    return run("mcr-trace", "mcr_dl.trace.cli")


def tune() -> int:
    """``mcr-tune``."""
    return run("mcr-tune", "mcr_dl.tuning.cli")


def testing() -> int:
    """``python -m mcr_dl.testing``."""
    return run("python -m mcr_dl.testing", "mcr_dl.testing.cli")
