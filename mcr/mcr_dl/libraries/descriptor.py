# SPDX-License-Identifier: Apache-2.0
"""The description of one backend for Python: how its library is found, its devices, its defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mcr_dl import _C
from mcr_dl.base.errors import BackendUnavailableError

if TYPE_CHECKING:
    from torch.distributed import Store

MODULES = Path(_C.__file__).parent / "_backends"


class FusionLimits(NamedTuple):
    """When the pass "fuse" flushes a buffer, and which calls it may hold."""

    buffer_bytes: int  # the paper's B
    hold_microseconds: int  # the paper's T
    largest_bytes: int


def module_path(stem: str) -> str:
    """The path of one of the installed modules."""
    path = MODULES / f"{stem}.so"
    if not path.exists():
        raise BackendUnavailableError(f"expected {path}, which every build of mcr_dl has: reinstall mcr_dl")
    return str(path)


def mapped_files(pattern: re.Pattern[str]) -> list[str]:
    """The files of this name in the process's memory."""
    try:
        maps = os.fsdecode(Path("/proc/self/maps").read_bytes())
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in maps.splitlines() if "/" in line)
    return [path for path in paths if pattern.fullmatch(Path(path).name)]


class Library:
    """The descriptor of one backend. This class describes a plain module, which needs no entry anywhere.

    A backend with other needs has a subclass in a file of its own, and an object in ``registry.DESCRIBED``. Nothing
    else in Python compares names of backends. The class attributes are equal on all ranks.
    """

    automatic = False  # whether "auto" starts it where all ranks can use it
    variable = ""  # the environment variable that names its library, and thereby asks for the backend
    devices: tuple[str, ...] = ("cpu",)  # whose memory its calls take; device tensors reach host libraries by staging
    measured = True  # whether benchmarks and tuning measure it
    starts_collectively = False  # whether its library starts on all ranks together, so that init must name it
    meets = False  # whether the members meet before they connect: nothing ends a wait inside it if another one fails
    communicators = False  # whether it can work on a communicator that the program has made
    networks = False  # whether hierarchies use it between hosts, and stripes use it for one of several networks
    rendezvous = False  # whether its ranks find each other without a store
    equal_variables: tuple[str, ...] = ()  # of the environment: unlike ones let its ranks wait for each other
    # Measured by bench/fusion.py for gloo (docs/results/fusion.md).
    fusion = FusionLimits(1 << 20, 1000, 1 << 16)
    recorder = "gloo"  # its name for torch's flight recorder, which takes all host libraries for gloo
    title = ""  # of the library in ``python -m mcr_dl.info``; empty: it is not listed

    def __init__(self, name: str) -> None:
        """``name``: the backend's, as programs write it."""
        self.name = name

    def exists(self) -> bool:
        """Whether this installation has the backend, usable here or not."""
        return (MODULES / f"{self.name}.so").exists()

    def owns(self, stem: str) -> bool:
        """Whether the module of that name belongs to this backend."""
        return stem == self.name

    def locate(self) -> tuple[str, str]:
        """The path of the backend's module, and of the library that the module binds when it is loaded, if any.

        Raises BackendUnavailableError with the reason if there is none.
        """
        return module_path(self.name), ""

    def require_named(self) -> None:
        """Raise BackendUnavailableError if ``variable`` is set and names no library that this process can use."""

    def domain(self) -> str:
        """Identify the set of processes that the library can connect with this one; empty: those of the whole job."""
        return ""

    def require_launcher(self, size: int) -> None:
        """Raise BackendUnavailableError if the library cannot start ``size`` ranks under this launcher."""

    def is_absent(self, error: BackendUnavailableError) -> bool:
        """Whether the error means that the machine has no such library or device, which is normal."""
        return error.absent

    def is_stand_in(self) -> bool:
        """Whether only the tests' library is there, which is never used without being named."""
        return False

    def needs_own_device(self) -> bool:
        """Whether two ranks must not have the same device."""
        return False

    def share_device(self, rank: int) -> None:
        """Let ranks share a device, which ``rank`` does on purpose. Called before the library starts."""

    def share_cores(self) -> None:
        """Prepare for a host with more ranks than cores. Called before the library starts."""

    def start(self, store: Store, rank: int, size: int) -> None:
        """Prepare the start of the library. Called before each communicator is made; ``store`` has all ranks."""

    def started(self) -> None:
        """Called after each communicator has been made, or not: the library may run even if that has failed."""

    def running(self) -> str:
        """Identify the processes with which the library runs in this one, where it can start only once in a process.

        Empty if it has not started, or if all processes that it can connect start it together anyway.
        """
        return ""

    def argument(self, store: Store, group: _C.Group) -> object:
        """The argument of the module for a new communicator; ``store`` has the members of the group."""
        del store, group
        return None

    def reads_later(self, size: int) -> bool:
        """Whether a communicator of so many ranks reads its store also after it was made. Equal on its ranks."""
        del size
        return False

    def ends_with(self, backends: Sequence[str], size: int) -> bool:
        """Whether the library can end with the ranks of the latest life: all of its own are among them, or are awaited.

        ``backends``, ``size``: those of that life. Equal on all of its ranks.
        """
        del backends, size
        return True

    def ends_all(self) -> bool:
        """Whether the end of this process would end those of the other ranks, unless all have come to theirs."""
        return False

    def leave(self) -> None:
        """Called when the process begins to end the libraries."""

    def close(self) -> None:
        """Called when the process has ended the libraries."""

    def found(self, state: str) -> str:
        """Describe the library for ``python -m mcr_dl.info``; ``state`` is that of ``available_backends()``."""
        return state
