# SPDX-License-Identifier: Apache-2.0
"""MPI: finds its library for this process. ``mpi`` is one that fits the launcher; ``mpich`` and ``openmpi`` name one.

Two libraries work in one process, as each module binds the symbols of its own library.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from torch.distributed import PrefixStore, Store

from mcr_dl.base import launcher as launchers
from mcr_dl.base.errors import BackendUnavailableError
from mcr_dl.libraries import pmix
from mcr_dl.libraries.descriptor import FusionLimits, Library, mapped_files, module_path
from mcr_dl.libraries.pmi import PmiResponder, Responder
from mcr_dl.libraries.pmix import PmixError, PmixResponder

Family = Literal["mpich", "openmpi"]

_NAMES: dict[Family, str] = {"mpich": "MPICH", "openmpi": "Open MPI"}
_VARIABLE = "MCR_DL_MPI_LIB"
_MODULE = "mpi_"  # begins the names of its modules, one for each ABI
SHARED_CORES = {
    f"MPIR_CVAR_{operation}_POSIX_INTRA_ALGORITHM": "mpir" for operation in ("ALLREDUCE", "BARRIER", "BCAST", "REDUCE")
}
_PMIX = "a PMIx launcher"
_CACHE = "/sbin/ldconfig"  # lists what the loader knows
# MPICH (and libraries with its ABI) has libmpi.so.12 and an older name; Open MPI has libmpi.so.40.
_FILE = re.compile(r"lib(mpi|mpich)\.so(\.\d+)*")
_STANDARD_ABI = re.compile(r"libmpi_abi\.so(\.\d+)*")


# By the family that a backend names; what is loaded stays.
_chosen: dict[Family | None, MpiLibrary] = {}


class MpiLibrary(NamedTuple):
    """An MPI library on this machine."""

    path: str
    family: Family
    how: str


class _Launcher(NamedTuple):
    name: str
    family: Family | None  # the family of the launcher that usually starts its processes
    exclusive: bool = True  # whether no other family's launcher can start them


class _World(NamedTuple):
    """The processes that MPI connects where no launcher starts it, and this process's place among them."""

    job: str  # equal in these processes alone
    rank: int
    size: int

    def require(self, rank: int, size: int) -> None:
        """Raise BackendUnavailableError if the process has another rank in a job, or the job is larger."""
        if rank != self.rank or size > self.size:
            message = (
                f"MPI runs in this process since an earlier start, as rank {self.rank} of {self.size}: expected the "
                f"same rank in a job of at most {self.size}, got rank {rank} of {size}; start a new process"
            )
            raise BackendUnavailableError(message)


def find(family: Family | None = None) -> MpiLibrary:
    """Choose the library, of the given family if any: the named one, else the one already loaded, else the launcher's,
    else the first one found. Raises BackendUnavailableError if there is none, or none that works under the launcher."""
    launcher = _launcher()
    return _check(_pick(family, launcher), launcher, family)


def load(family: Family | None = None) -> MpiLibrary:
    """Find the library and load it. Calling it again is cheap and changes nothing."""
    library = find(family)
    if family in _chosen and _chosen[family].path == library.path:
        return library  # also since its own global symbols would count as another library's below
    mode = os.RTLD_NOW
    if family is None and library.family == "openmpi":
        mode |= os.RTLD_GLOBAL  # the plugins of Open MPI up to 3 expect its symbols there, and mpi4py looks there first
    everywhere = ctypes.CDLL(None)
    sanitized = hasattr(everywhere, "__asan_init") or hasattr(everywhere, "__tsan_init")  # they refuse the mode below
    if hasattr(everywhere, "MPI_Init") and not sanitized:
        mode |= os.RTLD_DEEPBIND  # a library with global symbols is there: this one's own calls must not reach it
    try:
        ctypes.CDLL(library.path, mode=mode)
    except OSError as error:
        raise BackendUnavailableError(f"{library.path} ({library.how}) cannot be loaded: {error}") from error
    _chosen[family] = library
    return library


def module(library: MpiLibrary) -> str:
    """Name the backend's module for a loaded library: MPICH's ABI has two, for libraries with and without MPI 4."""
    if library.family == "mpich" and not hasattr(ctypes.CDLL(library.path), "MPI_Bcast_c"):
        return f"{_MODULE}mpich3"
    return f"{_MODULE}{library.family}"


class Mpi(Library):
    """An MPI library. The process ends it; where no launcher serves it, MPI_Init needs a responder on torch's store."""

    networks = True
    starts_collectively = True
    fusion = FusionLimits(1 << 18, 200, 1 << 15)  # measured by bench/fusion.py (docs/results/fusion.md)

    _responder: Responder | None = None
    _world: _World | None = None  # once the start has begun, which happens once in a process
    _runs = False

    def __init__(self, name: str, family: Family | None = None) -> None:
        """``family``: that of its library; None for the one that fits the launcher."""
        super().__init__(name)
        self.family = family
        if family is None:
            self.automatic = self.communicators = self.rendezvous = True
            self.variable, self.title = _VARIABLE, "MPI library"

    def exists(self) -> bool:
        """Every build has it; the library may be missing."""
        return True

    def owns(self, stem: str) -> bool:
        """One module for each ABI."""
        return self.family is None and stem.startswith(_MODULE)

    def locate(self) -> tuple[str, str]:
        """The module for the library's ABI. Loads the library."""
        library = load(self.family)
        # By two numbers that every rank of a host knows: mpiexec's ranks cannot communicate before MPI has started.
        if launchers.local_size() > (os.cpu_count() or 1):
            self.share_cores()
        return module_path(module(library)), library.path

    def require_named(self) -> None:
        """The named library must exist and fit the launcher. It is not loaded."""
        if os.environ.get(self.variable):
            find(self.family)

    def require_launcher(self, size: int) -> None:
        """Open MPI without a PMIx server starts under its own launcher only."""
        library = find(self.family)
        if size > 1 and not _starts_alone(library) and not _is_served(library):
            message = (
                "this Open MPI needs its own launcher, as it has no libpmix with a server's interface; run "
                f"`mpiexec -n {size} python script.py`, or use MPICH under torchrun: `pip install mpich` and "
                f"`{_VARIABLE}=mpich torchrun ...`"
            )
            raise BackendUnavailableError(message)

    def share_cores(self) -> None:
        """Let MPICH's ranks take turns where a host has more ranks than cores (each variable can be set by hand).

        MPICH's shared-memory algorithms poll without yielding the core: with 4 ranks on 2 cores an all_reduce takes
        8 ms, and 14 µs with the general algorithms (bench/oversubscribed.py). The variables must be set before MPI
        starts, and equally on all ranks of a host.
        """
        for name, value in SHARED_CORES.items():
            os.environ.setdefault(name, value)

    def start(self, store: Store, rank: int, size: int) -> None:
        """Make sure that MPI_Init finds a process manager: the launcher's, or a responder on torch's store.

        Raises BackendUnavailableError if MPI runs since an earlier start, and the process had another place in it.
        """
        if self._world is not None:
            self._world.require(rank, size)
            return
        if self._runs:  # by a launcher, whose variables may be gone since, so that child programs can use MPI
            return
        library, store = find(self.family), PrefixStore(f"{self.name}/start", store)
        if _is_served(library):
            return
        job = uuid.uuid4().hex
        if size > 1:
            job = store.compare_set("world", "", job).decode()  # that of the first rank to come
            self._responder = _respond(library, store, rank, size)
        self._world = _World(job, rank, size)

    def started(self) -> None:
        """Note that MPI runs, if it does, and hide the responder from child programs."""
        library = _chosen.get(self.family)
        if library is None or not _is_initialized(library):
            return
        self._runs = True
        if self._responder is not None:
            self._responder.hide()

    def running(self) -> str:
        """The world's job. A process that replaces a lost rank has the job, too, but its MPI does not start."""
        if self._world is None:
            return ""
        return self._world.job if self._runs else f"{self._world.job}, not started"

    def ends_with(self, backends: Sequence[str], size: int) -> bool:
        """MPI_Finalize waits for all ranks of MPI, which starts once in a process.

        Under a launcher it may wait for any time: if one of them fails, the launcher ends all.
        """
        if not self._runs or self._world is None:
            return True
        return size == self._world.size and self.name in backends

    def ends_all(self) -> bool:
        """MPI's launcher ends all processes if one ends without MPI_Finalize, where each rank waits for the others."""
        return self._runs and self._world is None

    def leave(self) -> None:
        """The responder takes MPI's requests from now on as part of its finalization."""
        if self._responder is not None:
            self._responder.leave()

    def close(self) -> None:
        """Stop the responder: MPI has ended."""
        if self._responder is not None:
            self._responder.close()

    def found(self, state: str) -> str:
        """The library's family and path, or the reason why there is none."""
        del state
        try:
            library = find(self.family)
        except BackendUnavailableError as error:
            return f"none: {error}"
        return f"{library.family}, {library.path} ({library.how})"


LIBRARY = Mpi("mpi")
MPICH = Mpi("mpich", "mpich")
OPENMPI = Mpi("openmpi", "openmpi")


def _respond(library: MpiLibrary, store: Store, rank: int, size: int) -> Responder:
    """Answer the library's MPI_Init from now on. Raises BackendUnavailableError if that cannot start."""
    if library.family == "mpich":
        return PmiResponder(store, rank, size)
    try:
        return PmixResponder(store, rank, size, library.path)
    except PmixError as error:
        raise BackendUnavailableError(f"{library.path} ({library.how}) cannot start: {error}") from error


def _launcher() -> _Launcher:
    environment = os.environ
    # The innermost first: torchrun may itself run under another launcher, whose variables its children inherit.
    if "TORCHELASTIC_RUN_ID" in environment:
        return _Launcher("torchrun", "mpich")
    if "OMPI_COMM_WORLD_SIZE" in environment:
        return _Launcher("Open MPI's mpiexec", "openmpi")
    if "PMIX_RANK" in environment:
        return _Launcher(_PMIX, "openmpi", exclusive=False)
    if "PMI_FD" in environment or "PMI_RANK" in environment:
        return _Launcher("MPICH's mpiexec", "mpich", exclusive="SLURM_PROCID" not in environment)
    return _Launcher("no MPI launcher", None, exclusive=False)


def _pick(family: Family | None, launcher: _Launcher) -> MpiLibrary:
    named = _named_ones()
    wanted = family
    if family is None and named:  # the launcher decides among several
        wanted = launcher.family if _answers(launcher) and launcher.family in named else next(iter(named))
    required = wanted is not None
    library = None if wanted is None else named.get(wanted)
    if library is not None:
        return library
    if family in _chosen:
        return _chosen[family]
    loaded = _loaded(wanted)
    if loaded is not None:
        return loaded
    wanted = wanted or launcher.family
    if wanted in _chosen:
        return _chosen[wanted]
    found = list(_candidates())
    fitting = [each for each in found if wanted in (None, each.family)]
    if (required and not fitting) or not found:
        raise _not_found(wanted)
    return (fitting or found)[0]


def _named_ones() -> dict[Family, MpiLibrary | None]:
    """The families that the variable names, in its order, each with its library; None if that is to be found."""
    named: dict[Family, MpiLibrary | None] = {}
    for name in filter(None, os.environ.get(_VARIABLE, "").split(os.pathsep)):
        if name in _NAMES:
            named.setdefault("mpich" if name == "mpich" else "openmpi", None)
        else:
            library = _named(name)
            named.setdefault(library.family, library)
    return named


def _check(library: MpiLibrary, launcher: _Launcher, family: Family | None) -> MpiLibrary:
    """Reject a library that would take each process for a job of its own."""
    if launcher.family == library.family or not launcher.exclusive:
        return library
    # Under another family's mpiexec a second library starts alone, as the ranks meet over the first one.
    if (launcher.name == "torchrun" or family is not None) and _starts_alone(library):
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
    raise BackendUnavailableError(
        f"this program was started by {launcher.name}, which cannot start the MPI library that it uses: {mine} at "
        f"{library.path} ({library.how}); {fix}"
    )


def _is_initialized(library: MpiLibrary) -> bool:
    """Whether the loaded library has been initialized."""
    flag = ctypes.c_int(0)
    ctypes.CDLL(library.path).MPI_Initialized(ctypes.byref(flag))
    return bool(flag.value)


def _starts_alone(library: MpiLibrary) -> bool:
    """Whether the library needs no MPI launcher."""
    return library.family == "mpich" or pmix.server_library(library.path) is not None


def _is_served(library: MpiLibrary) -> bool:
    """Whether an MPI launcher answers the library's MPI_Init here. A library of another family must be loaded."""
    launcher = _launcher()
    if not _answers(launcher):
        return False
    if launcher.family == library.family:
        return True
    return not launcher.exclusive and (launcher.name != _PMIX or _speaks_pmix(library))


def _speaks_pmix(library: MpiLibrary) -> bool:
    """Whether an MPICH was built with PMIx, which is a library of its own. PyPI's was not."""
    return hasattr(ctypes.CDLL(library.path), "PMIx_Init")


def _answers(launcher: _Launcher) -> bool:
    """Whether the launcher answers MPI_Init. Around torchrun another one may, but for torchrun itself."""
    return launcher.name != "torchrun" and launchers.has_mpi_launcher()


def _not_found(wanted: Family | None) -> BackendUnavailableError:
    package = wanted or "mpich"
    what = _NAMES[wanted] if wanted else "MPI (libmpi.so.12, libmpi.so.40 or libmpich.so.12)"
    places = ", ".join(dict.fromkeys(str(place) for place, _ in _places()))
    return BackendUnavailableError(
        f"no {what} library found; looked at {_VARIABLE}, the libraries loaded already, {places} and the system's. "
        f"`pip install {package}` installs one",
        absent=True,
    )


def _named(path: str) -> MpiLibrary:
    if os.sep in path and not os.path.isabs(path):
        raise BackendUnavailableError(
            f"{_VARIABLE}={path}: expected an absolute path, or 'mpich' or 'openmpi', got a relative one"
        )
    resolved = path if os.path.isabs(path) and os.path.isfile(path) else _of_the_system(path)
    if resolved is None:
        raise BackendUnavailableError(
            f"{_VARIABLE}={path}: no such file; it takes the path of a libmpi, or 'mpich' or 'openmpi'. "
            "`pip install mpich` installs an MPI library"
        )
    return MpiLibrary(resolved, _family(resolved), f"named by {_VARIABLE}")


def _loaded(family: Family | None) -> MpiLibrary | None:
    """The library of the family that the program has loaded; of any family: none that a named family has."""
    named = {library.path for of, library in _chosen.items() if of is not None}
    for path in mapped_files(_FILE):
        if family == _family(path) or (family is None and path not in named):
            return MpiLibrary(path, _family(path), "already loaded")
    for path in mapped_files(_STANDARD_ABI):
        raise BackendUnavailableError(
            f"this process has loaded {path}, MPI's standard ABI, which is not supported yet; load MPICH's or Open "
            "MPI's own library first (with mpi4py: set MPI4PY_LIBMPI to its path)"
        )
    return None


def _candidates() -> Iterator[MpiLibrary]:
    for place, how in _places():
        for path in sorted(place.glob("libmpi*.so*")):
            # libmpi.so itself may be a linker script.
            if _FILE.fullmatch(path.name) and path.suffix != ".so" and _is_ours(str(path)):
                yield MpiLibrary(str(path), _family(str(path)), how)
    for name in ("mpi", "mpich"):
        found = _of_the_system(name)
        if found is not None:
            yield MpiLibrary(found, _family(found), "the system's")


def _of_the_system(name: str) -> str | None:
    """Find a library as the loader does, by its short name (``mpi``) or file name: in LD_LIBRARY_PATH or its cache.

    ctypes.util.find_library also asks the compilers and linkers that PATH happens to name.
    """
    if os.sep in name:
        return None
    pattern = re.compile(re.escape(name) if ".so" in name else rf"lib{re.escape(name)}\.so\.\d+")
    for folder in filter(os.path.isabs, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)):
        with suppress(OSError):
            files = sorted(file for file in os.listdir(folder) if pattern.fullmatch(file))
            if files:
                return os.path.join(folder, files[0])
    with suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run([_CACHE, "-p"], capture_output=True, text=True, timeout=10, check=False).stdout
        for line in listed.splitlines():  # "	libm.so.6 (libc6,x86-64) => /lib/x86_64-linux-gnu/libm.so.6"
            soname, _, path = line.strip().partition(" => ")
            if path and pattern.fullmatch(soname.partition(" ")[0]) and _is_ours(path):
                return path
    return None


def _is_ours(path: str) -> bool:
    """Whether the library can be read and has this process's word size: the cache may list libraries for others."""
    with suppress(OSError), open(path, "rb") as file:
        return file.read(5) == b"\x7fELF" + bytes([2 if sys.maxsize > 2**32 else 1])
    return False


def _places() -> dict[tuple[Path, str], None]:
    """List the directories where packages put the library, each with the reason to look there."""
    # A wheel puts the library next to the site-packages that it is installed in, also in another environment.
    packages = [path for path in map(Path, sys.path) if path.name in ("site-packages", "dist-packages")]
    prefixes_of_packages = [path.parents[2] for path in packages if path.is_absolute() and len(path.parents) > 2]
    prefixes = dict.fromkeys([Path(sys.prefix), Path(sys.base_prefix), *prefixes_of_packages])
    places = {(prefix / "lib", f"in {prefix}"): None for prefix in prefixes}
    # An empty or relative entry of PATH would mean the current directory; leave those out.
    path = os.pathsep.join(filter(os.path.isabs, os.get_exec_path()))
    for tool in ("mpicc", "mpiexec"):
        found = shutil.which(tool, path=path)
        if found is None:
            continue
        for executable in (Path(found), Path(found).resolve()):
            prefix = executable.parent.parent
            for directory in ("lib", "lib64"):
                places[prefix / directory, f"with {tool} in {prefix}"] = None
    return places


def _family(path: str) -> Family:
    """Find out the family from the library's symbols, without loading it; from its name if it has none to read."""
    with (
        suppress(OSError, ValueError),  # loading the library says why it cannot be read; an empty one cannot be mapped
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return "openmpi" if content.find(b"\0ompi_mpi_comm_self\0") >= 0 else "mpich"
    version = path.rpartition(".so.")[2].partition(".")[0]
    return "openmpi" if version in ("20", "40") else "mpich"
