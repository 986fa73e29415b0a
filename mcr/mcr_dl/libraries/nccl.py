# SPDX-License-Identifier: Apache-2.0
"""NCCL: finds its library for this process, the named one, else torch's."""

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

from mcr_dl.base.errors import BackendUnavailableError
from mcr_dl.libraries.descriptor import Library, mapped_files, module_path

_VARIABLE = "MCR_DL_NCCL_LIB"
_FILE = re.compile(r"libnccl\.so(\.\d+)*")
_SONAME = "libnccl.so.2"
_STAND_IN = "mcr_dl_stand_in"  # the symbol that marks the tests' library
_NO_DEVICE = "no CUDA device"  # also the core's text where there is none (src/backends/nccl/library.cc)
_SHARING = (2, 30)  # the first version that lets ranks share a device on request
_SHARE, _HOST = "NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_HOSTID"


class NcclLibrary(NamedTuple):
    """An NCCL library on this machine."""

    path: str
    how: str
    stand_in: bool = False  # the tests' library, which works on host memory


def find() -> NcclLibrary:
    """Choose the library: the named one, else the one already loaded (torch's), else a wheel's, else the loader's.

    Raises BackendUnavailableError with the reason and advice. Checking the library loads it.
    """
    named = os.environ.get(_VARIABLE, "")
    if os.sep in named and not os.path.isabs(named):
        raise BackendUnavailableError(
            f"{_VARIABLE}={named}: expected an absolute path, or a name for the loader, got a relative path"
        )
    if named:
        return _loadable(named, f"named by {_VARIABLE}")
    if torch.version.cuda is None:
        message = f"{_NO_DEVICE}: torch {torch.__version__} is built without CUDA"
        raise BackendUnavailableError(message, absent=True)
    for path, how in _candidates():
        library = _loadable(path, how)
        if not library.stand_in:
            return library
    package = _packages()[0]
    message = (
        f"no NCCL library found; looked at {_VARIABLE}, the libraries loaded already, the nvidia-nccl packages and the "
        f"system's {_SONAME}. `pip install {package}` installs one"
    )
    raise BackendUnavailableError(message, absent=True)


def _loadable(path: str, how: str) -> NcclLibrary:
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        message = f"{path} ({how}) cannot be loaded: {error}"
        raise BackendUnavailableError(message) from error
    return NcclLibrary(path, how, hasattr(library, _STAND_IN))


def _candidates() -> Iterator[tuple[str, str]]:
    for path in mapped_files(_FILE):
        yield path, "already loaded"
    for path in _installed():
        yield path, "of an nvidia-nccl package"
    try:
        ctypes.CDLL(_SONAME)
    except OSError:
        return
    yield _SONAME, "the system's"


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


class Nccl(Library):
    """NCCL. It works on device memory alone."""

    automatic = True
    meets = True
    variable = _VARIABLE
    devices = ("cuda",)
    recorder = "nccl"
    title = "NCCL library"

    def exists(self) -> bool:
        """Every build has it; the library may be missing."""
        return True

    def locate(self) -> tuple[str, str]:
        """The module, and the library that it binds."""
        return module_path(self.name), find().path

    def require_named(self) -> None:
        """The loader must find the named library, which it loads."""
        if os.environ.get(self.variable):
            self.locate()

    def is_absent(self, error: BackendUnavailableError) -> bool:
        """The core may find no device after the library was found."""
        return error.absent or _NO_DEVICE in str(error)

    def is_stand_in(self) -> bool:
        """The tests' library works on host memory."""
        try:
            return find().stand_in
        except BackendUnavailableError:
            return False

    def needs_own_device(self) -> bool:
        """NCCL refuses ranks that share a device, unless a variable allows it."""
        return os.environ.get(_SHARE) != "1" and _HOST not in os.environ

    def share_device(self, rank: int) -> None:
        """By a variable from 2.30 on, by a host identifier for each rank before; the environment's values stay."""
        if torch.cuda.is_available() and torch.cuda.nccl.version() < _SHARING:  # type: ignore[no-untyped-call]
            os.environ.setdefault(_HOST, f"mcr-rank-{rank}")
        else:
            os.environ.setdefault(_SHARE, "1")

    def found(self, state: str) -> str:
        """The library, its version and the functions that it lacks, from the backend's state."""
        try:
            library = find()
        except BackendUnavailableError as error:
            return f"none: {error}"
        return f"{library.path} ({library.how}); {state.partition(': ')[2]}"


LIBRARY = Nccl("nccl")
