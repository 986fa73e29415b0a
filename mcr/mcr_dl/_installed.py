# SPDX-License-Identifier: Apache-2.0
"""Rejects, before ``_C`` is loaded, an installation that was never built or was built against another torch.

``_C`` uses torch's C++ API, which changes with every minor version: with another version the loader would report an
undefined symbol, or nothing, and the process would crash later. Patch versions keep the API, and the CPU and CUDA
builds of one version have the same API. A pre-release matches only itself.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

_HOW = "pip install --no-deps"


def problem(built: str, found: str) -> str:
    """Say why a module built against one version of torch cannot work with another; empty if it can."""
    if _api(built) == _api(found):
        return ""
    return (
        f"mcr_dl was built against torch {built}, found {found}; reinstall it from its source: {_HOW} ., or install "
        f"torch {built.partition('+')[0]}"
    )


def _api(version: str) -> str:
    public = version.partition("+")[0]
    release = re.fullmatch(r"(\d+\.\d+)(\.\d+)*(\.post\d+)?", public)
    return release[1] if release else public


try:
    from mcr_dl._build import TORCH
except ModuleNotFoundError as error:
    _folder = Path(__file__).parent
    _problem = (
        f"mcr_dl in {_folder} has not been built: run `make build` in its source and use .venv/bin/python, or install "
        f"it: {_HOW} ."
    )
    raise ImportError(_problem) from error
_problem = problem(TORCH, torch.__version__)
if _problem:
    raise ImportError(_problem)
