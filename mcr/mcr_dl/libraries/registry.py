# SPDX-License-Identifier: Apache-2.0
"""The backends that exist here: their names and descriptors, and the ones that can be used."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations

from mcr_dl import _C
from mcr_dl.base.errors import BackendUnavailableError, InvalidArgumentError, InvalidTypeError, McrError, text_of
from mcr_dl.libraries import c10d, mpi, nccl, null, shm, third_party
from mcr_dl.libraries.descriptor import MODULES, Library

VARIABLE = "MCR_DL_BACKENDS"
# The descriptors of the backends that are more than a module, in order of preference.
DESCRIBED: tuple[Library, ...] = (
    nccl.LIBRARY,  # before a CUDA-aware MPI
    shm.LIBRARY,  # before libraries that also reach other hosts
    mpi.LIBRARY,
    c10d.GLOO,
    mpi.MPICH,
    mpi.OPENMPI,
    c10d.FAKE,
    null.LIBRARY,
)


@dataclass(frozen=True)
class Condition:
    """One process's report on one backend. It has JSON's types only, as ranks exchange it."""

    library: str = ""  # as in available_backends(); empty if the backend cannot be used
    problem: str = ""
    absent: bool = False  # the machine has no such library or device, which is normal
    asked: bool = False  # the environment names the library
    domain: str = ""  # as in Library.domain()
    running: str = ""  # as in Library.running()


def describe(name: str) -> Library:
    """The descriptor of a backend; of an unknown name that of a plain module."""
    described = next((each for each in DESCRIBED if each.name == name), None)
    if described is not None:
        return described
    if name in c10d.plugged_in():
        return c10d.TorchLibrary(name)
    return (third_party.ThirdParty if name in third_party.names() else Library)(name)


def automatic(device: str | None = None) -> list[str]:
    """The backends behind ``auto`` and behind no name; for a device: those that take its memory. Others need a name."""
    return [each.name for each in DESCRIBED if each.automatic and (device is None or device in each.devices)]


def taking_communicators() -> list[str]:
    """The backends that can work on a communicator that the program has made."""
    return [each.name for each in DESCRIBED if each.communicators]


def rendezvous() -> str:
    """The backend whose ranks find each other without a store."""
    return next(each.name for each in DESCRIBED if each.rendezvous)


def equal_variables() -> dict[str, str]:
    """The values, here, of the libraries' variables of the environment that must be equal on all ranks."""
    return {name: os.environ.get(name) or "unset" for each in DESCRIBED for name in each.equal_variables}


def first_for(device: str) -> str:
    """The backend that is tried first for the memory of a device, of those that reach all hosts."""
    libraries = map(describe, known_names())
    return next(each.name for each in libraries if device in each.devices and not each.domain())


def known_names() -> list[str]:
    """Names of all backends that this installation knows, usable here or not, in order of preference."""
    described = [each.name for each in DESCRIBED if each.exists()]
    torchs = [name for name in c10d.plugged_in() if c10d.TorchLibrary(name).exists()]
    stems = sorted(path.stem for path in MODULES.glob("*.so"))
    built = [stem for stem in stems if not any(each.owns(stem) for each in DESCRIBED)]
    return list(dict.fromkeys([*described, *torchs, *built, *third_party.names()]))


def is_known(name: str) -> bool:
    """Whether a backend has this name, in any spelling. Names of candidates with variants or codecs do not count."""
    try:
        candidate = _C.CandidateName(name)
    except InvalidArgumentError:
        return False
    return not candidate.variant and not candidate.codec and not unknown_in(name)


def unknown_in(name: str) -> str:
    """The first backend in a candidate's name that this installation does not have; empty if it has all of them.

    Also called by the C++ core, to tell a typo from a forgotten ``init``.
    """
    candidate, known = _C.CandidateName(name), known_names()
    if not candidate.parts:
        return "" if candidate.backend in known else candidate.backend
    return next(filter(None, map(unknown_in, candidate.parts)), "")


def require_candidate(
    text: str, source: str = "", *, also: Iterable[str] = ("auto",), advice: str = "", codec: bool = True
) -> _C.CandidateName:
    """Parse a candidate's name.

    Raises InvalidArgumentError, which names the source, if there is one: for an unknown backend, whose text has the
    names that the caller takes ``also`` and the ``advice``, or for a codec, unless it may have one.

    Variants and codecs are not checked here: the libraries of a group say which ones they have.
    """
    where = f"{source}: " if source else ""
    try:
        candidate = _C.CandidateName(text)
        unknown = unknown_in(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{where}{error}") from None
    if unknown:
        got = f"{unknown!r} in {text!r}" if candidate.parts else f"{unknown!r}"
        message = f"expected one of {', '.join((*known_names(), *also))}, got the unknown name {got}"
        raise InvalidArgumentError(f"{where}{message}{': ' if advice else ''}{advice}")
    if candidate.codec and not codec:
        message = f"expected a candidate without a codec, which calls or Compress can name, got {text!r}"
        raise InvalidArgumentError(f"{where}{message}")
    return candidate


def require_backend(text: str, source: str) -> str:
    """A backend's name in its canonical spelling, such as ``stripe(gloo,mpi)``.

    Raises InvalidArgumentError for other candidates too.
    """
    candidate = require_candidate(text, source)
    if candidate.variant or candidate.codec:
        message = f"{source}: expected a backend, which brings its variants, as {candidate.backend}, got {text!r}"
        raise InvalidArgumentError(message)
    return candidate.backend


def parts_of(name: str) -> tuple[str, ...]:
    """The backends that a backend is made of, and those that these are made of, each after its own; else nothing.

    ``("gloo", "mpi")`` for "stripe(gloo,mpi)", which cuts messages over the two.
    """
    return tuple(dict.fromkeys(each for part in _C.CandidateName(name).parts for each in (*parts_of(part), part)))


def collective_starters(name: str) -> list[str]:
    """The libraries of the backend, or of its parts, that all ranks of a job start and end together."""
    return [each for each in parts_of(name) or (name,) if describe(each).starts_collectively]


def is_of_one_host(name: str) -> bool:
    """Whether the backend, or a part of it, connects only processes of one host."""
    return any(describe(each).domain() for each in parts_of(name) or (name,))


def is_hierarchical(name: str) -> bool:
    """Whether the backend has a part for each dimension of a topology, as "hier(shm,mpi)"."""
    return _C.CandidateName(name).hierarchical


def _needed(name: str) -> tuple[str, ...]:
    """The parts whose communicators of the whole group the backend uses: of a hierarchy only the outermost."""
    return tuple(_C.CandidateName(name).parts[-1:]) if is_hierarchical(name) else parts_of(name)


def with_needed(names: Iterable[str]) -> list[str]:
    """Add the backends that these need in a job: the two parts of "stripe(gloo,mpi)" come before it, "mpi" before
    "hier(shm,mpi)", whose "shm" may be unable to serve all ranks, and "mpi", which starts on all, before
    "hier(mpi,gloo)"."""

    def needed(name: str) -> list[str]:
        parts = (*_needed(name), *(collective_starters(name) if is_hierarchical(name) else ()))
        return [each for part in parts for each in (*needed(part), part)]

    backends = [_C.CandidateName(name).backend for name in names]
    return list(dict.fromkeys(each for name in backends for each in (*needed(name), name)))


def with_parts(names: Iterable[str]) -> list[str]:
    """Add the backends that these are made of, before them."""
    backends = [_C.CandidateName(name).backend for name in names]
    return list(dict.fromkeys(each for name in backends for each in (*parts_of(name), name)))


def _require_host(name: str) -> None:
    """Raise InvalidArgumentError if a part takes no host memory: a rank that is alone in its line connects no part, and
    so would not notice."""
    for part in parts_of(name):
        if "cpu" not in describe(part).devices:
            message = f"backend: {name!r} has a part for each dimension: expected libraries of the host, got {part!r}"
            raise InvalidArgumentError(message)


def load(name: str) -> str:
    """Load the backend's module and return its path; "" for a backend that is made of others.

    Raises InvalidArgumentError for an unknown name, or for a part that cannot serve a dimension, and
    BackendUnavailableError, with the reason, if it cannot be used.
    """
    name = require_backend(name, "backend")
    if parts := _C.CandidateName(name).parts:
        if is_hierarchical(name):
            _require_host(name)
        for part in parts:
            load(part)
        if is_hierarchical(name):
            _C.add_over_dimensions(_C.CandidateName(name).algorithm, parts)
        else:
            _C.add_striped(*parts)
        return ""
    try:
        path, library = describe(name).locate()
    except BackendUnavailableError as error:
        _C.missing_backend(name, str(error))
        message = f"backend '{name}' is unavailable: {error}"
        raise BackendUnavailableError(message, absent=error.absent) from error
    _C.load_backend(name, path, library)
    return path


def parse_backends(backend: str | Iterable[str] | None) -> list[str]:
    """Parse ``"mpi"``, ``["mpi", "gloo"]``, ``"mpi,gloo"`` or ``"cpu:mpi,cuda:nccl"`` into names; none for auto. Names
    are returned in their canonical spelling.

    None and ``"mcr"``, torch's name for MCR-DL, stand for the value of MCR_DL_BACKENDS. Raises InvalidArgumentError or
    InvalidTypeError that names the wrong part, and the variable if the names come from it.
    """
    return _parse(backend)[1]


def _parse(backend: str | Iterable[str] | None, given: list[str] | None = None) -> tuple[str, list[str]]:
    """The argument or the variable that the names come from, and the names. ``given``: as for ``parse_for_job``."""
    source = "backend"
    parts = _parts(backend, source)
    if backend is None or _plain(parts) == [c10d.OURS]:
        if given:
            return source, given
        source, backend = VARIABLE, os.environ.get(VARIABLE, "auto")
        parts = _parts(backend, source)
    if _plain(parts) in (["auto"], [c10d.OURS]):
        return source, []
    if not parts:
        message = f"{source}: expected at least one name, or 'auto' for all that can be used, got {backend!r}"
        raise InvalidArgumentError(message)
    return source, list(dict.fromkeys(_parse_name(part, source, backend) for part in parts))


def _parts(backend: str | Iterable[str] | None, source: str) -> list[str]:
    """The names in the argument, or in the variable, in their order and as they are spelled there."""
    if backend is None:
        return []
    if isinstance(backend, (set, frozenset)):  # whose order differs between processes
        message = f"{source}: expected names in order of preference, got the set {backend!r}"
        raise InvalidTypeError(message)
    if not hasattr(backend, "__iter__"):
        message = f"{source}: expected a name, a list of names or None, got {backend!r}"
        raise InvalidTypeError(message)
    return _C.split_names(backend) if isinstance(backend, str) else list(backend)


def _plain(parts: list[str]) -> list[str]:
    """The names without differences in spelling; empty texts for entries that are no texts."""
    return [part.strip().lower() if isinstance(part, str) else "" for part in parts]


def _parse_name(part: object, source: str, backend: object) -> str:
    if not isinstance(part, str) or not part.strip():
        message = f"{source}: expected names of backends, or auto, got {backend!r}"
        raise InvalidArgumentError(message)
    name = part.strip().lower()
    device, colon, rest = name.partition(":")
    if (alone := rest or name) in ("auto", c10d.OURS):
        message = f"{source}: expected {alone!r} alone, got {backend!r}"
        raise InvalidArgumentError(message)
    if colon and device in ("cpu", "cuda"):
        return require_backend(rest, source)
    if colon and device.isidentifier() and device not in known_names():
        message = f"{source}: expected 'cpu:<name>' or 'cuda:<name>', got {part!r}"
        raise InvalidArgumentError(message)
    return require_backend(name, source)


def parse_for_group(backend: str | Iterable[str] | None) -> list[str]:
    """As ``parse_backends``, for a new group: the parts of "stripe(gloo,mpi)" and the last one of "hier(shm,mpi)" must
    come before it."""
    return _parse_for_group(backend)[1]


def _parse_for_group(backend: str | Iterable[str] | None, given: list[str] | None = None) -> tuple[str, list[str]]:
    source, names = _parse(backend, given)
    for index, name in enumerate(names):
        for missing in sorted(set(_needed(name)) - set(names[:index])):
            use = "uses one across its lines," if is_hierarchical(name) else "cuts messages over two"
            message = f"{source}: {name!r} {use} of the group's: expected {missing!r} before it"
            raise InvalidArgumentError(f"{message}, got {', '.join(names)}")
    return source, names


def parse_for_job(backend: str | Iterable[str] | None, given: list[str] | None = None) -> list[str]:
    """As ``parse_for_group``, for a job: libraries that start on all ranks together must come before the backends
    that they are a part of: the ranks of a hierarchy on uneven hosts would not start them together.

    ``given``: names that an earlier call has returned; None and ``"mcr"`` stand for these, if there are any.
    """
    source, names = _parse_for_group(backend, given)
    for index, name in enumerate(names):
        for missing in sorted(set(collective_starters(name)) - set(names[: index + 1])):
            message = f"{source}: {name!r} has a part that starts on all ranks of the job: expected {missing!r} before"
            raise InvalidArgumentError(f"{message} it, got {', '.join(names)}")
    return names


def require_environment() -> None:
    """Check the variables that name backends and their libraries, also those that the caller does not use.

    Raises InvalidArgumentError or BackendUnavailableError, which names the variable.
    """
    parse_for_job(None)
    for library in DESCRIBED:
        library.require_named()


def combined(backends: Iterable[str], local: Iterable[str], *, several_networks: bool) -> list[str]:
    """The backends made of others that ``auto`` adds in a job of several hosts: hierarchies of a ``local`` backend, one
    of a host, and one between hosts; if every host has several networks, stripes over two between hosts, too."""
    across = [name for name in backends if describe(name).networks]
    pairs = combinations(sorted(across), 2) if several_networks else ()
    stripes = [f"stripe({one},{two})" for one, two in pairs]
    hierarchies = [[f"hier({inner},{outer})" for inner in local for outer in each] for each in (across, stripes)]
    return [_C.CandidateName(name).backend for name in (*hierarchies[0], *stripes, *hierarchies[1])]


def condition(name: str, size: int, *, named: bool) -> Condition:
    """Whether this process can start the backend in a job of ``size`` ranks, and with which library. Starts nothing.

    ``named``: the program names the backend; only then is the tests' stand-in for NCCL accepted.
    """
    library = describe(name)
    asked = bool(os.environ.get(library.variable, ""))
    try:
        load(name)
    except BackendUnavailableError as error:
        return Condition(problem=text_of(error), absent=library.is_absent(error), asked=asked)
    except McrError:
        raise
    except Exception as error:  # of files and of other packages: all ranks must learn of it
        return Condition(problem=f"backend '{name}' is unavailable: {type(error).__name__}: {error}", asked=asked)
    try:
        library.require_launcher(size)
    except BackendUnavailableError as error:
        return Condition(problem=f"backend '{name}' is unavailable: {error}", asked=asked)
    if not named and library.is_stand_in():
        return Condition(problem="only the tests' library is there", absent=True)
    status = _C.backend_status()[name]
    return Condition(library=status, asked=asked, domain=library.domain(), running=library.running())


def usable() -> list[str]:
    """The backends behind ``auto`` that this process can load."""
    return [name for name in automatic() if condition(name, 1, named=False).library]


def nameable(backend: object) -> str:
    """The name of a backend for calls that name none. Raises InvalidArgumentError if it cannot be one."""
    if not isinstance(backend, str):
        message = f"backend: expected one of {', '.join(known_names())}, auto, got {backend!r}"
        raise InvalidArgumentError(message)
    if _plain([backend]) == ["auto"]:
        return "auto"
    return require_candidate(backend, "backend", codec=False).name


@contextmanager
def use(backend: str) -> Iterator[None]:
    """Set the backend of calls in the block that name none: mcr_dl's, torch.distributed's, DDP's in a backward pass.

    It applies to this thread, to autograd's threads that work for it, and to callbacks of futures: get the future and
    add its callbacks inside one block, as a callback may run at once. ``"auto"`` undoes an outer block. Raises
    InvalidArgumentError for an unknown name; a call raises NotInitializedError if its group lacks the backend.
    """
    before = _C.name_backend(nameable(backend))
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
    misnamed = dict.fromkeys(third_party.misnamed(), f"unavailable: {third_party.MISNAMED}")
    return {name: status[name] for name in known_names()} | misnamed
