# SPDX-License-Identifier: Apache-2.0
"""The headers against which backends of other packages are built."""

from __future__ import annotations

from pathlib import Path

from mcr_dl import _C

_FOLDER = Path(_C.__file__).parent


def include_path() -> str:
    """The folder of the headers that a backend of another package includes: ``base/``, ``device/`` and ``plugin/``.

    A module that was compiled with another version of the interface (``kPluginVersion``) is refused when it is loaded.
    Mirrors torch.utils.cpp_extension.include_paths.
    """
    return str(_FOLDER / "include")


def library_path() -> str:
    """The path of this installation's core library, against which a backend of another package is linked.

    torch has no such function.
    """
    return str(_FOLDER / "libmcr_dl_core.so")
