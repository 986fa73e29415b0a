# SPDX-License-Identifier: Apache-2.0
"""Finds the NCCL library for this process: the named one, else torch's."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

_VARIABLE = "MCR_DL_NCCL_LIB"
_FILE = re.compile(r"libnccl\.so(\.\d+)*")
_SONAME = "libnccl.so.2"
_STAND_IN = "mcr_dl_stand_in"  # the symbol that marks the tests' library


class NcclLibraryError(RuntimeError):
    """There is no NCCL library or no device for it (``absent``), or none that can be used here."""

    def __init__(self, text: str, *, absent: bool = False) -> None:
        super().__init__(text)
        self.absent = absent


class NcclLibrary(NamedTuple):
    """An NCCL library on this machine."""

    path: str
    how: str
    stand_in: bool = False  # the tests' library, which works on host memory


def find() -> NcclLibrary:
    """Choose the library: the named one, else the one already loaded (torch's), else a wheel's, else the loader's.

    Raises NcclLibraryError with the reason and advice. Checking the library loads it.
    """
    named = os.environ.get(_VARIABLE, "")
    if os.sep in named and not os.path.isabs(named):
        raise NcclLibraryError(
            f"{_VARIABLE}={named}: expected an absolute path, or a name for the loader, got a relative path"
        )
    if named:
        return _loadable(named, f"named by {_VARIABLE}")
    if torch.version.cuda is None:
        message = f"no CUDA device: torch {torch.__version__} is built without CUDA"
        raise NcclLibraryError(message, absent=True)
    for path, how in _candidates():
        library = _loadable(path, how)
        if not library.stand_in:
            return library
    package = _packages()[0]
    message = (
        f"no NCCL library found; looked at {_VARIABLE}, the libraries loaded already, the nvidia-nccl packages and the "
        f"system's {_SONAME}. `pip install {package}` (the extra mcr-dl[{package[-4:]}]) installs one"
    )
    raise NcclLibraryError(message, absent=True)


def _loadable(path: str, how: str) -> NcclLibrary:
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        message = f"{path} ({how}) cannot be loaded: {error}"
        raise NcclLibraryError(message) from error
    return NcclLibrary(path, how, hasattr(library, _STAND_IN))


def _candidates() -> Iterator[tuple[str, str]]:
    for path in _loaded():
        yield path, "already loaded"
    for path in _installed():
        yield path, "of an nvidia-nccl package"
    try:
        ctypes.CDLL(_SONAME)
    except OSError:
        return
    yield _SONAME, "the system's"


def _loaded() -> list[str]:
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in maps.splitlines() if "/" in line)
    return [path for path in paths if _FILE.fullmatch(Path(path).name)]


def _packages() -> list[str]:
    """Names of NVIDIA's packages; the one for torch's own CUDA version comes first."""
    major = (torch.version.cuda or "13").partition(".")[0]
    return list(dict.fromkeys([f"nvidia-nccl-cu{major}", "nvidia-nccl-cu13", "nvidia-nccl-cu12"]))


def _installed() -> Iterator[str]:
    for package in _packages():
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if _FILE.fullmatch(file.name) and (path := Path(str(file.locate()))).exists():
                yield str(path)
    # Packages may come without a list of their files; the folder is known all the same.
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ImportError:
        return
    for folder in spec.submodule_search_locations or [] if spec is not None else []:
        yield from (str(path) for path in sorted(Path(folder, "lib").glob("libnccl.so*")))
