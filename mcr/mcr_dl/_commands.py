# SPDX-License-Identifier: Apache-2.0
"""The commands' entry points. The library needs torch and NumPy alone; commands say which package they lack."""

from __future__ import annotations

import sys
from collections.abc import Callable

# Only commands, tables and pictures need these.
OPTIONAL = ("jsonschema", "matplotlib", "platformdirs", "rich")
_LACKS_PACKAGE, _INTERRUPTED = 2, 130  # exit codes


def _run(program: str, command: Callable[[], int]) -> int:
    """Import and call the command; one line and exit code 2 if one of ``OPTIONAL`` is not installed, 130 on Ctrl-C."""
    try:
        return command()
    except KeyboardInterrupt:  # while it is imported
        return _INTERRUPTED
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in OPTIONAL:
            raise
        print(f"{program}: error: needs {package}, which is not installed: pip install {package}", file=sys.stderr)
        return _LACKS_PACKAGE


# Each function imports its command, so that ``_run`` reports a package that is missing.
def _bench() -> int:
    from mcr_dl.bench.cli import main

    return main()


def _info() -> int:
    from mcr_dl.info.cli import main

    return main()


def _trace() -> int:
    from mcr_dl.trace.cli import main

    return main()


def _tune() -> int:
    from mcr_dl.tuning.cli import main

    return main()


def _testing() -> int:
    from mcr_dl.testing.cli import main

    return main()


def bench() -> int:
    """``mcr-bench``."""
    return _run("mcr-bench", _bench)


def info() -> int:
    """``mcr-info``."""
    return _run("mcr-info", _info)


def trace() -> int:
    """``mcr-trace``."""
    return _run("mcr-trace", _trace)


def tune() -> int:
    """``mcr-tune``."""
    return _run("mcr-tune", _tune)


def testing() -> int:
    """``python -m mcr_dl.testing``."""
    return _run("python -m mcr_dl.testing", _testing)
