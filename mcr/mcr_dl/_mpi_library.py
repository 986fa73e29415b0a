# SPDX-License-Identifier: Apache-2.0
"""Finds the MPI library that this process shall use, and loads it where the backend's module can see its symbols."""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

Family = Literal["mpich", "openmpi"]

_NAMES: dict[Family, str] = {"mpich": "MPICH", "openmpi": "Open MPI"}
_VARIABLE = "MCR_DL_MPI_LIB"
# libmpi.so.12 and its older name are MPICH's (and those of the libraries with its ABI), libmpi.so.40 is Open MPI's.
_FILE = re.compile(r"lib(mpi|mpich)\.so(\.\d+)*")
_STANDARD_ABI = re.compile(r"libmpi_abi\.so(\.\d+)*")


class MpiLibraryError(RuntimeError):
    """There is no MPI library, or none that works under this program's launcher."""


class MpiLibrary(NamedTuple):
    """An MPI library on this machine."""

    path: str
    family: Family
    how: str


class _Launcher(NamedTuple):
    name: str
    family: Family | None  # whose processes it usually starts
    exclusive: bool = True  # whether it can start no other's


def find() -> MpiLibrary:
    """Choose the library: the one named, else the one already loaded, else the launcher's, else the first one found."""
    launcher = _launcher()
    named = os.environ.get(_VARIABLE, "")
    if named and named not in _NAMES:
        return _check(_named(named), launcher)
    loaded = _loaded()
    if loaded is not None:
        return _check(loaded, launcher)
    wanted: Family | None = launcher.family
    if named:
        wanted = "mpich" if named == "mpich" else "openmpi"
    other: MpiLibrary | None = None
    for library in _candidates():
        if wanted in (None, library.family):
            return _check(library, launcher)
        other = other or library
    if named or other is None:
        raise _not_found(wanted)
    return _check(other, launcher)


def load() -> MpiLibrary:
    """Find the library and make its symbols global. Calling it again is cheap and changes nothing."""
    library = find()
    try:
        ctypes.CDLL(library.path, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    except OSError as error:
        raise MpiLibraryError(f"{library.path} ({library.how}) cannot be loaded: {error}") from error
    return library


def _launcher() -> _Launcher:
    environment = os.environ
    # The innermost first: torchrun may itself run under another launcher, whose variables its children inherit.
    if "TORCHELASTIC_RUN_ID" in environment:
        return _Launcher("torchrun", "mpich")
    if "OMPI_COMM_WORLD_SIZE" in environment:
        return _Launcher("Open MPI's mpiexec", "openmpi")
    if "PMIX_RANK" in environment:
        return _Launcher("a PMIx launcher", "openmpi", exclusive=False)
    if "PMI_FD" in environment or "PMI_RANK" in environment:
        return _Launcher("MPICH's mpiexec", "mpich", exclusive="SLURM_PROCID" not in environment)
    return _Launcher("no MPI launcher", None, exclusive=False)


def _check(library: MpiLibrary, launcher: _Launcher) -> MpiLibrary:
    """Refuse a library that would take each process for a job of its own."""
    if launcher.family == library.family or not launcher.exclusive:
        return library
    mine = _NAMES[library.family]
    if launcher.name == "torchrun":
        fix = (
            f"start it with Open MPI's `mpiexec -n N python ...`, or `pip install mpich` and, if Open MPI is still "
            f"chosen, set {_VARIABLE}=mpich"
        )
    else:
        package = "openmpi" if launcher.family == "openmpi" else "mpich"
        fix = (
            f"start it with {mine}'s mpiexec, or `pip install {package}` and, if {mine} is still chosen, set "
            f"{_VARIABLE}={package}"
        )
    raise MpiLibraryError(
        f"this program was started by {launcher.name}, which cannot start the MPI library that it uses: {mine} at "
        f"{library.path} ({library.how}); {fix}"
    )


def _not_found(wanted: Family | None) -> MpiLibraryError:
    package = wanted or "mpich"
    what = _NAMES[wanted] if wanted else "MPI (libmpi.so.12, libmpi.so.40 or libmpich.so.12)"
    places = ", ".join(str(place) for place, _ in _places())
    return MpiLibraryError(
        f"no {what} library found; looked at {_VARIABLE}, the libraries loaded already, {places} and the system's. "
        f"`pip install {package}` installs one"
    )


def _named(path: str) -> MpiLibrary:
    resolved = path if os.path.isfile(path) else ctypes.util.find_library(path)
    if resolved is None:
        raise MpiLibraryError(
            f"{_VARIABLE}={path}: no such file; it takes the path of a libmpi, or 'mpich' or 'openmpi'. "
            "`pip install mpich` installs an MPI library"
        )
    return MpiLibrary(resolved, _family(resolved), f"named by {_VARIABLE}")


def _loaded() -> MpiLibrary | None:
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in maps.splitlines() if "/" in line)
    for path in paths:
        if _FILE.fullmatch(Path(path).name):
            return MpiLibrary(path, _family(path), "already loaded")
    for path in paths:
        if _STANDARD_ABI.fullmatch(Path(path).name):
            raise MpiLibraryError(
                f"this process has loaded {path}, MPI's standard ABI, which is not supported yet; load MPICH's or Open "
                "MPI's own library first (with mpi4py: set MPI4PY_LIBMPI to its path)"
            )
    return None


def _candidates() -> Iterator[MpiLibrary]:
    for place, how in _places():
        for path in sorted(place.glob("libmpi*.so*")):
            # libmpi.so itself may be a text for the linker.
            if _FILE.fullmatch(path.name) and path.suffix != ".so":
                yield MpiLibrary(str(path), _family(str(path)), how)
    for name in ("mpi", "mpich"):
        soname = ctypes.util.find_library(name)
        if soname is not None:
            yield MpiLibrary(soname, _family(soname), "the system's")


def _places() -> dict[tuple[Path, str], None]:
    """List the directories where packages put the library, each with the reason to look there."""
    # A wheel puts the library beside the site-packages that it is installed in, also into another environment.
    beside = [Path(entry).parents[2] for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    prefixes = dict.fromkeys([Path(sys.prefix), Path(sys.base_prefix), *beside])
    places = {(prefix / "lib", f"in {prefix}"): None for prefix in prefixes}
    for tool in ("mpicc", "mpiexec"):
        found = shutil.which(tool)
        if found is None:
            continue
        for executable in (Path(found), Path(found).resolve()):
            prefix = executable.parent.parent
            for directory in ("lib", "lib64"):
                places[prefix / directory, f"beside {tool} in {prefix}"] = None
    return places


def _family(path: str) -> Family:
    """Tell the family from the library's symbols, without loading it; from its name where there is only that."""
    if os.path.isfile(path):
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return "openmpi" if content.find(b"\0ompi_mpi_comm_self\0") >= 0 else "mpich"
    version = path.rpartition(".so.")[2].partition(".")[0]
    return "openmpi" if version in ("20", "40") else "mpich"
