# SPDX-License-Identifier: Apache-2.0
"""The commands' entry points. The library needs torch and NumPy alone; commands say which package they lack.

It is a separate package so that nothing is imported before the entry points run: Ctrl-C ends a command quietly also
while torch is imported, which takes seconds.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

# Only commands, tables and pictures need these.
OPTIONAL = ("jsonschema", "matplotlib", "platformdirs", "rich")
_LACKS_PACKAGE, _INTERRUPTED = 2, 130  # exit codes


def _entry(program: str, module: str) -> Callable[[], int]:
    """A function that imports a command's module and runs its ``main``, so that it reports a package that is missing.

    It prints one line and returns exit code 2 if one of ``OPTIONAL`` is not installed, and returns 130 on Ctrl-C.
    """

    def run() -> int:
        try:
            code: int = importlib.import_module(module).main()
            return code
        except KeyboardInterrupt:  # while it is imported
            return _INTERRUPTED
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in OPTIONAL:
                raise
            print(f"{program}: error: needs {package}, which is not installed: pip install {package}", file=sys.stderr)
            return _LACKS_PACKAGE

    return run


bench = _entry("mcr-bench", "mcr_dl.bench.cli")
info = _entry("mcr-info", "mcr_dl.info.cli")
trace = _entry("mcr-trace", "mcr_dl.trace.cli")
tune = _entry("mcr-tune", "mcr_dl.tuning.cli")
testing = _entry("python -m mcr_dl.testing", "mcr_dl.testing.cli")
