# SPDX-License-Identifier: Apache-2.0
"""Where the module of each backend lies, and which of them can be used here."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcr_dl import _C, _launch, _mpi_library, _nccl_library, _torch_backends
from mcr_dl._errors import BackendUnavailableError, InvalidArgumentError, InvalidTypeError

ENTRY_POINTS = "mcr_dl.backends"
VARIABLE = "MCR_DL_BACKENDS"
REAL = ("mpi", "nccl", "gloo")  # what "auto" and no name stand for; all others start by name only
_ASKED = {"mpi": "MCR_DL_MPI_LIB", "nccl": "MCR_DL_NCCL_LIB"}  # variables that name a library, and so ask for it
_NO_DEVICE = "no CUDA device"  # what the core says where there is none (src/backends/nccl/library.cc)
_MODULES = Path(_C.__file__).parent / "_backends"
_ADAPTERS = ("c10d",)  # modules that serve backends of other names


@dataclass(frozen=True)
class Condition:
    """What one process says of one backend. JSON's types alone, as ranks exchange it."""

    library: str = ""  # as in available_backends(); empty if the backend cannot be used
    problem: str = ""
    absent: bool = False  # the machine has no such library or device, which is normal
    asked: bool = False  # the environment names the library


def _third_party() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def known_names() -> list[str]:
    """Names of all backends that this installation knows, usable here or not, in the order of preference."""
    built = sorted(
        path.stem for path in _MODULES.glob("*.so") if path.stem not in _ADAPTERS and not path.stem.startswith("mpi_")
    )
    return list(dict.fromkeys(["mpi", "nccl", *_torch_backends.names(), *built, *_third_party()]))


def is_known(name: str) -> bool:
    """Whether some backend has this name (also called by the C++ core, to tell a typo from a forgotten ``init``)."""
    return all(part in known_names() for part in parts_of(name) or (name,))


def parts_of(name: str) -> tuple[str, ...]:
    """``("gloo", "mpi")`` for "gloo+mpi", whose messages are cut over the two; nothing for other backends."""
    first, _, second = name.partition("+")
    return (first, second) if second and first != second and "+" not in second else ()


def is_torch(name: str) -> bool:
    """Whether the backend is one of torch.distributed's, behind the c10d adapter."""
    return name not in ("mpi", "nccl") and name in _torch_backends.names()


def with_parts(names: Iterable[str]) -> list[str]:
    """What has to be started for these backends: the two that "gloo+mpi" needs come before it."""
    return list(dict.fromkeys(each for name in names for each in (*parts_of(name), name)))


def _module(stem: str) -> str:
    path = _MODULES / f"{stem}.so"
    if not path.exists():
        raise BackendUnavailableError(f"expected {path}, which every build of mcr_dl has: reinstall mcr_dl")
    return str(path)


SHARED_CORES = {
    f"MPIR_CVAR_{operation}_POSIX_INTRA_ALGORITHM": "mpir" for operation in ("ALLREDUCE", "BARRIER", "BCAST", "REDUCE")
}


def share_cores() -> None:
    """Let MPICH's ranks take turns where a host has more of them than cores (each variable can be set by hand).

    MPICH's shared-memory algorithms poll without giving up the core: with 4 ranks on 2 cores an all_reduce takes
    8 ms, and 14 µs with the general ones (bench/oversubscribed.py). It has to be said before MPI starts, and alike on
    all ranks of a host.
    """
    for name, value in SHARED_CORES.items():
        os.environ.setdefault(name, value)


def _share_cores_of_machine() -> None:
    """The same by two numbers that all ranks of a host know alone: under mpiexec MPI starts before they can speak."""
    if _launch.local_size() > (os.cpu_count() or 1):
        share_cores()


def is_stand_in(name: str) -> bool:
    """Whether the backend has only the library of our own tests, which nobody shall get without asking for it."""
    if name != "nccl":
        return False
    try:
        return _nccl_library.find().stand_in
    except _nccl_library.NcclLibraryError:
        return False


def _locate(name: str) -> tuple[str, str]:
    """The path of the backend's module, and that of the library which it binds at run time."""
    if name == "nccl":
        try:
            return _module(name), _nccl_library.find().path
        except _nccl_library.NcclLibraryError as error:
            raise BackendUnavailableError(str(error), absent=error.absent) from error
    return _locate_module(name), ""


def _locate_module(name: str) -> str:
    if name == "mpi":
        try:
            library = _mpi_library.load()
            _share_cores_of_machine()
        except _mpi_library.MpiLibraryError as error:
            raise BackendUnavailableError(str(error), absent=error.absent) from error
        return _module(_mpi_library.module(library))
    if is_torch(name):
        reason = _torch_backends.unavailable(name)
        if reason is not None:
            raise BackendUnavailableError(reason, absent=name in REAL)
        return _module("c10d")
    if name in _third_party():
        path = str(_third_party()[name].load()())
        if not os.path.isabs(path):  # dlopen would look in the current directory, or wherever the loader looks
            raise BackendUnavailableError(f"its entry point gives {path!r}: expected an absolute path")
        return path
    return _module(name)


def load(name: str) -> str:
    """Load the backend's module and return its path; "" for one that is made of two others.

    Raises InvalidArgumentError for an unknown name and BackendUnavailableError, with the reason, if it cannot be used.
    """
    if not is_known(name):
        message = f"backend: expected one of {', '.join(known_names())}, auto, got the unknown name {name!r}"
        raise InvalidArgumentError(message)
    if parts := parts_of(name):
        for part in parts:
            load(part)
        _C.add_striped(*parts)
        return ""
    try:
        path, library = _locate(name)
    except BackendUnavailableError as error:
        _C.missing_backend(name, str(error))
        message = f"backend '{name}' is unavailable: {error}"
        raise BackendUnavailableError(message, absent=error.absent) from error
    _C.load_backend(name, path, library)
    return path


def parse_backends(backend: str | Iterable[str] | None) -> list[str]:
    """The names in ``"mpi"``, ``["mpi", "gloo"]``, ``"mpi,gloo"`` or ``"cpu:mpi,cuda:nccl"``; none for auto.

    None and torch's name of us, ``"mcr"``, stand for what MCR_DL_BACKENDS says. Raises InvalidArgumentError or
    InvalidTypeError naming what is wrong, and the variable if the names come from there.
    """
    source = "backend"
    if backend in (None, _torch_backends.OURS):
        source, backend = VARIABLE, os.environ.get(VARIABLE, "auto")
    if backend == "auto":
        return []
    if not hasattr(backend, "__iter__"):
        message = f"{source}: expected a name, a list of names or None, got {backend!r}"
        raise InvalidTypeError(message)
    parts = backend.split(",") if isinstance(backend, str) else list(backend)
    if not parts:
        message = f"{source}: expected at least one name, or 'auto' for all that can be used, got {backend!r}"
        raise InvalidArgumentError(message)
    return list(dict.fromkeys(_parse_name(part, source, backend) for part in parts))


def _parse_name(part: object, source: str, backend: object) -> str:
    if not isinstance(part, str) or not part.strip():
        message = f"{source}: expected names of backends, or auto, got {backend!r}"
        raise InvalidArgumentError(message)
    device, _, name = part.strip().lower().rpartition(":")
    if device not in ("", "cpu", "cuda"):
        message = f"{source}: expected 'cpu:<name>' or 'cuda:<name>', got {part!r}"
        raise InvalidArgumentError(message)
    if not is_known(name):
        message = f"{source}: expected one of {', '.join(known_names())}, auto, got the unknown name {name!r}"
        raise InvalidArgumentError(message)
    return name


def parse_for_group(backend: str | Iterable[str] | None) -> list[str]:
    """The same for a group that is to be made: of "gloo+mpi" the two parts must come before it."""
    names = parse_backends(backend)
    for place, name in enumerate(names):
        for missing in sorted(set(parts_of(name)) - set(names[:place])):
            message = f"backend: {name!r} cuts messages over two of the group's: expected {missing!r} before it"
            raise InvalidArgumentError(f"{message}, got {', '.join(names)}")
    return names


def condition(name: str, size: int, *, named: bool) -> Condition:
    """Whether this process can start the backend in a job of so many ranks, and with which library. Does not start it.

    ``named``: the program names it; only then is the tests' stand-in for NCCL good enough.
    """
    asked = bool(os.environ.get(_ASKED.get(name, ""), ""))
    try:
        load(name)
        if name == "mpi":
            _mpi_library.require_launcher(size)
    except BackendUnavailableError as error:
        absent = error.absent or _NO_DEVICE in str(error)
        return Condition(problem=str(error), absent=absent, asked=asked)
    except _mpi_library.MpiLibraryError as error:
        return Condition(problem=f"backend '{name}' is unavailable: {error}", asked=asked)
    if not named and is_stand_in(name):
        return Condition(problem="only the tests' library is there", absent=True)
    return Condition(library=_C.backend_status()[name], asked=asked)


def usable() -> list[str]:
    """Those of the libraries behind ``auto`` that this process can load."""
    return [name for name in REAL if condition(name, 1, named=False).library]


@contextmanager
def use(backend: str) -> Iterator[None]:
    """Name the backend of the calls in the block that name none: ours, torch.distributed's, DDP's in a backward pass.

    It holds for this thread and those on which autograd works for it. ``"auto"`` undoes an outer block. Raises
    InvalidArgumentError for an unknown name; a call raises NotInitializedError if its group lacks the backend.
    """
    name = backend.partition(":")[0] if isinstance(backend, str) else ""
    if name != "auto" and not is_known(name):
        message = f"backend: expected one of {', '.join(known_names())}, auto, got {backend!r}"
        raise InvalidArgumentError(message)
    before = _C.name_backend(backend)
    try:
        yield
    finally:
        _C.name_backend(before)


def available_backends() -> dict[str, str]:
    """Every known backend with its state: ``{"mpi": "ok: MPICH 5.0.2", "nccl": "unavailable: <reason>"}``."""
    for name in known_names():
        try:
            load(name)
        except BackendUnavailableError:
            continue  # the registry remembers the reason
    status = _C.backend_status()
    return {name: status[name] for name in known_names()}
