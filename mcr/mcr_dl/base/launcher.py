# SPDX-License-Identifier: Apache-2.0
"""How this process was started: rank, size and a store, from torchrun, mpiexec, srun or no launcher."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import resource
import socket
import stat
import struct
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as torch_dist

from mcr_dl.base import addresses
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.base.warning import warn

_SIOCGIFADDR = 0x8915  # Linux's request for an interface's address
_CONNECTIONS = 8  # of a rank with the store, at most
_FILES = 512  # that a process has open otherwise


@dataclass(frozen=True)
class Launch:
    """This process's launch, from the environment. ``local_rank`` is -1 where the launcher does not set it."""

    launcher: str
    rank: int
    size: int
    local_rank: int = -1


# launcher, rank, size, local rank: the first row whose rank and size are both set wins. A user's RANK comes first.
# Slurm sets SLURM_PROCID and SLURM_NTASKS in a batch script, too, which is not a rank: only srun sets the step's size.
_VARIABLES = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("mpiexec (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("mpiexec (MPICH)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)


def number(environment: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    """The integer in a variable. Raises InvalidArgumentError if it is not one, KeyError if the variable is not set."""
    if otherwise is not None and name not in environment:
        return otherwise
    if not re.fullmatch(r"-?[0-9]{1,18}", environment[name].strip()):
        raise InvalidArgumentError(f"{name}: expected a whole number, got {environment[name][:40]!r}")
    return int(environment[name])


def read(environment: Mapping[str, str] = os.environ) -> Launch:
    """Read the launcher's variables, unchecked; a process without a launcher is rank 0 of 1."""
    for launcher, rank, size, local_rank in _VARIABLES:
        if rank in environment and size in environment:
            return Launch(
                launcher, number(environment, rank), number(environment, size), number(environment, local_rank, -1)
            )
    return Launch("none", 0, 1, 0)


def detect(environment: Mapping[str, str] = os.environ) -> Launch:
    """As ``read``, checked. Raises InvalidArgumentError that names both variables for a rank outside the job's size."""
    found = read(environment)
    if 0 <= found.rank < found.size:
        return found
    rank, size = next(row[1:3] for row in _VARIABLES if row[0] == found.launcher)
    message = f"{rank}, {size}: expected a rank from 0 to {size} - 1, got {rank}={found.rank} and {size}={found.size}"
    raise InvalidArgumentError(message)


def require_both(environment: Mapping[str, str] = os.environ) -> None:
    """Raise InvalidArgumentError if RANK or WORLD_SIZE alone is set: each rank would be a job of its own."""
    _, rank, size, _ = _VARIABLES[0]
    if (rank in environment) == (size in environment) or environment.get(size, "").strip() == "1":
        return
    given, missing = (rank, size) if rank in environment else (size, rank)
    message = f"{missing}: expected a whole number, as {given} is {environment[given][:40]!r}, got no such variable"
    raise InvalidArgumentError(message)


def stated(rank: int, size: int) -> Launch:
    """The launch of a process whose program states rank and size. Raises InvalidArgumentError for another rank."""
    if not 0 <= rank < size:
        message = f"rank: expected 0 to {size - 1}, got {rank}"
        raise InvalidArgumentError(message)
    found = read()
    if found.launcher == "none":
        return Launch("arguments", rank, size, 0 if size == 1 else -1)
    return Launch(found.launcher, rank, size, found.local_rank)


def export_local_rank(rank: int = -1) -> None:
    """Set LOCAL_RANK in the environment, where programs read it, if the launcher gives it under another name.

    Without a launcher, only a process alone and the one whose program states ``rank`` 0 are known to be their host's
    first. Where only RANK and WORLD_SIZE are set, it is not known, unless there is one rank.
    """
    found = detect()
    local_rank = 0 if found.size == 1 else found.local_rank
    if local_rank >= 0 and (found.launcher != "none" or rank <= 0):
        os.environ.setdefault("LOCAL_RANK", str(local_rank))


def _stated_local_size(environment: Mapping[str, str] = os.environ) -> int | None:
    """How many ranks of the job run on this host, if the launcher says so. Equal on all ranks of a host."""
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        if name in environment:
            return number(environment, name)
    return _slurm_local_size(environment)


def _slurm_local_size(environment: Mapping[str, str]) -> int | None:
    """The tasks of the Slurm step on this node, if the ranks are the step's tasks."""
    size, tasks, node = "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"
    if any(name not in environment for name in (size, tasks, node)):
        return None
    if number(environment, size) != read(environment).size:
        return None
    before = number(environment, node)
    for part in environment[tasks].split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part.strip())
        if match is None:
            raise InvalidArgumentError(f"{tasks}: expected numbers as in 16(x8),3, got {environment[tasks][:40]!r}")
        before -= int(match[2] or 1)
        if before < 0:
            return int(match[1])
    return None


def least_local_size(environment: Mapping[str, str] = os.environ) -> int:
    """How many ranks of the job run on this host at least: this one, if the launcher does not say."""
    return _stated_local_size(environment) or 1


def local_size(environment: Mapping[str, str] = os.environ) -> int:
    """How many ranks of the job run on this host, from the launcher; all of them if it does not say."""
    stated = _stated_local_size(environment)
    return detect(environment).size if stated is None else stated


def own_core(local_rank: int, local_size: int) -> int | None:
    """A core that this rank can have for itself; None if this host has fewer usable cores than ranks."""
    usable = sorted(os.sched_getaffinity(0))
    return None if local_rank < 0 or local_size > len(usable) else usable[local_rank]


def cores() -> str:
    """The cores that this process may use, as the bits of a hexadecimal number."""
    return f"{sum(1 << core for core in os.sched_getaffinity(0)):x}"


def networks() -> int:
    """The number of this host's network interfaces with an IPv4 address, without the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return sum(not _address(probe, name).startswith("127.") for _, name in socket.if_nameindex())


def _address(probe: socket.socket, interface: str) -> str:
    """The interface's IPv4 address; the loopback's if it has none."""
    request = struct.pack("256s", interface.encode()[:15])
    try:
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
    except OSError:
        return "127.0.0.1"


def crowded(nodes: Sequence[Any], masks: Sequence[str]) -> list[bool]:
    """For each rank, whether its node has more ranks than usable cores, from the nodes and ``cores()`` of all ranks."""
    usable: dict[Any, int] = defaultdict(int)
    for node, mask in zip(nodes, masks, strict=True):
        usable[node] |= int(mask, 16)
    ranks = Counter(nodes)
    return [ranks[node] > usable[node].bit_count() for node in nodes]


def has_mpi_launcher(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether an MPI launcher answers MPI_Init here (PMI-1, PMI-2 or PMIx)."""
    return any(name in environment for name in ("PMI_FD", "PMI_PORT", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"))


def store_outlives(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the launcher, rather than rank 0, holds the store."""
    return environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def holds(store: torch_dist.Store) -> bool:
    """Whether the store ends with this process, as one of its sockets listens at the store's port."""
    while isinstance(store, torch_dist.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, torch_dist.TCPStore):
        return False
    try:
        numbers = [*map(int, os.listdir("/proc/self/fd"))]
    except OSError:  # no descriptor is left for the folder, or there is none
        return False
    for number in numbers:
        with contextlib.suppress(OSError):  # a file that has been closed
            if stat.S_ISSOCK(os.fstat(number).st_mode) and _listens_at(number) == store.port:
                return True
    return False


def _listens_at(descriptor: int) -> int:
    """The port at which a socket listens; -1 if it does not."""
    with socket.socket(fileno=os.dup(descriptor)) as each:
        if each.family not in (socket.AF_INET, socket.AF_INET6):
            return -1
        listens = each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        return int(each.getsockname()[1]) if listens else -1


def make_room(launch: Launch) -> None:
    """Let rank 0, which serves the store, hold the connections of all ranks. Warns if the system does not allow it."""
    if launch.rank != 0 or store_outlives():
        return
    needed = launch.size * _CONNECTIONS + _FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    if soft < needed:
        message = (
            f"rank 0 may have {soft} open files, but serves the store of {launch.size} ranks, with up to {needed}: "
            f"raise the limit (ulimit -n)"
        )
        warn(message)


def first_host(nodelist: str) -> str:
    """The first host in Slurm's compressed list: ``gpu[03-07,09],login`` -> ``gpu03``."""
    match = re.match(r"(?:[^,\[]|\[[^\],-]+[^\]]*\])+", nodelist)
    if match is None:
        raise InvalidArgumentError(f"SLURM_JOB_NODELIST: expected a list of hosts, got {nodelist!r}")
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", match[0])


def _slurm_step(environment: Mapping[str, str]) -> tuple[int, int]:
    """The job and the step. Older versions of Slurm have another name for the step."""
    name = "SLURM_STEP_ID" if "SLURM_STEP_ID" in environment else "SLURM_STEPID"
    return number(environment, "SLURM_JOB_ID", 0), number(environment, name, 0)


def slurm_address(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Host and port where the ranks of a Slurm step meet: the step's first host, a port derived from job and step.

    Equal on all ranks of the step, as Slurm gives them the same variables.
    """
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or socket.gethostname()
    job, step = _slurm_step(environment)
    return first_host(nodes), 15000 + (job * 131 + step) % 45000


def slurm_store(launch: Launch, timeout: timedelta) -> torch_dist.Store:
    """The store of a Slurm step. Ranks of another step whose port is the same do not meet these, but time out."""
    store = tcp_store(*slurm_address(), launch.rank, launch.size, timeout)
    job, step = _slurm_step(os.environ)
    return torch_dist.PrefixStore(f"{job}.{step}", store)


def machine() -> str:
    """Identify the machine: hosts may have equal names."""
    name = socket.gethostname()
    try:
        return f"{name}/{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    except OSError:
        return name


def host_identity() -> str:
    """Identify the host for shared memory: host name, running kernel and /dev/shm must all be equal."""
    return machine_with("/dev/shm")


def machine_with(path: str) -> str:
    """Identify the machine and a file that its containers may each have for themselves, unless it is not there."""
    with contextlib.suppress(OSError):
        file = Path(path).stat()
        return f"{machine()}/{file.st_dev}.{file.st_ino}"
    return machine()


def own_address(size: int) -> str:
    """Where the ranks of a job of ``size`` reach this host: by its name, if that can be resolved."""
    host = socket.gethostname()
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        if size == 1 or _stated_local_size() == size:
            return "127.0.0.1"
        if found := addresses.to_other_networks():
            return found
        if local_size() == size:
            return "127.0.0.1"
    return host


def tcp_store(host: str, port: int, rank: int, size: int, timeout: timedelta) -> torch_dist.Store:
    """The store of a group of ``size``: served by rank 0, reached by the others."""
    return torch_dist.TCPStore(host, port, size, rank == 0, timeout, wait_for_workers=False)


def listen(size: int, timeout: timedelta) -> tuple[str, torch_dist.Store]:
    """On rank 0: a store on a free port, and its address as ``host:port``."""
    store = torch_dist.TCPStore(own_address(size), 0, size, True, timeout, wait_for_workers=False)
    return f"{store.host}:{store.port}", store
