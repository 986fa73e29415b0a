# SPDX-License-Identifier: Apache-2.0
"""Adds the torch that a wheel is built against to its requirements (a provider of [[tool.dynamic-metadata]]).

The package uses torch's C++ API, which is kept within a minor version: a build against torch 2.13.0 requires
``torch==2.13.*``. mcr_dl/_installed.py checks the same at import, as later installations of torch may ignore it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any


def dynamic_metadata(settings: Mapping[str, Any], _project: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return ``project.dependencies``: those of the entry's settings and torch."""
    return {"dependencies": [*settings["dependencies"], _torch(settings["oldest-torch"])]}


def dynamic_wheel(_settings: Mapping[str, Any]) -> dict[str, bool]:
    """Declare that the requirements of a source distribution differ from those of a wheel made from it."""
    return {"dependencies": True}


def _installed() -> str | None:
    """The version of torch in this environment or, in an isolated build of pip, in the one outside."""
    try:
        return version("torch")
    except PackageNotFoundError:
        program = "import importlib.metadata as metadata; print(metadata.version('torch'))"
        command = [sys.executable, "-E", "-c", program]  # -E: pip isolates through Python's environment variables
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None


def _torch(oldest: str) -> str:
    found = _installed()
    if found is None:  # a source distribution can be made without torch; the build itself asks for it
        return f"torch>={oldest}"
    public = found.partition("+")[0]
    release = re.match(r"(\d+\.\d+)(\.\d+)*(\.post\d+)?$", public)
    return f"torch=={release[1]}.*" if release else f"torch=={public}"
