# SPDX-License-Identifier: Apache-2.0
"""MCR-DL: one torch.distributed-like API over several communication libraries, chosen call by call.

>>> import mcr_dl as dist
>>> dist.init_process_group(["mpi", "gloo"])
>>> dist.all_reduce(x)                                  # the group's choice
>>> work = dist.all_to_all_single(y, z, backend="gloo", async_op=True)
>>> dist.all_reduce("mpi", x)                           # the MCR-DL paper's spelling: backend first
"""

from typing import TYPE_CHECKING

import torch.distributed as _torch_dist
from torch.distributed import (
    FileStore,
    GroupMember,
    HashStore,
    PrefixStore,
    ProcessGroup,
    ReduceOp,
    Store,
    TCPStore,
    default_pg_timeout,
    is_torchelastic_launched,
)

from mcr_dl import _installed as _installed  # refuses an installation that does not fit torch, before _C is loaded

# isort: split
from mcr_dl import _C, deepspeed
from mcr_dl import schedule as schedule
from mcr_dl._C import *  # noqa: F403  the operations, as the op table lists them
from mcr_dl._C import Options, Work
from mcr_dl.base.errors import (
    BackendError,
    BackendUnavailableError,
    CollectiveTimeoutError,
    DesyncError,
    InvalidArgumentError,
    InvalidTypeError,
    McrError,
    NotInitializedError,
    PeerLostError,
    UnsupportedError,
)
from mcr_dl.base.signature import attach as _attach
from mcr_dl.groups import torch_groups
from mcr_dl.groups.barriers import monitored_barrier
from mcr_dl.groups.batches import P2POp, batch_isend_irecv
from mcr_dl.groups.batches import coalescing_manager as _coalescing_manager
from mcr_dl.groups.default_group import destroy_process_group, finalize, init_process_group, synchronize
from mcr_dl.groups.growing import grow, rejoin
from mcr_dl.groups.making import new_group, new_subgroups, new_subgroups_by_enumeration, split_group
from mcr_dl.groups.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from mcr_dl.groups.queries import (
    get_backend,
    get_backend_config,
    get_backends,
    get_default_backend_for_device,
    get_global_rank,
    get_group_rank,
    get_node_local_rank,
    get_process_group_ranks,
    get_rank,
    get_size,
    get_world_size,
)
from mcr_dl.groups.shrinking import shrink
from mcr_dl.groups.topology import Dimension, Topology, set_topology, topology
from mcr_dl.groups.upstream import get_distributed_engine, init_distributed, init_processes
from mcr_dl.libraries.availability import (
    is_backend_available,
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
)
from mcr_dl.libraries.headers import include_path, library_path
from mcr_dl.libraries.registry import available_backends, use
from mcr_dl.passes.chain import get_passes, register_pass, set_passes
from mcr_dl.records.log import records as log_records
from mcr_dl.records.log import reset as reset_log
from mcr_dl.runtime.shared_tensors import empty_shared
from mcr_dl.runtime.state import is_initialized
from mcr_dl.trace import configure, log_summary
from mcr_dl.tuning.explain import Explanation, explain
from mcr_dl.tuning.refine import Change, refine, refine_step
from mcr_dl_autoload import register as _register_backend

_attach()
_register_backend()
init = init_process_group
__version__: str = _C.__version__


def is_available() -> bool:
    """Return True: the package can be used wherever it can be imported (torch.distributed.is_available)."""
    return True


class _GroupType(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:  # torch's name
        return torch_groups.world()


class group(metaclass=_GroupType):  # torch's name
    """``group.WORLD`` is the default group, or None before init (torch.distributed.group)."""


__all__ = [
    "BackendError",
    "BackendUnavailableError",
    "Change",
    "CollectiveTimeoutError",
    "DesyncError",
    "Dimension",
    "Explanation",
    "FileStore",
    "GroupMember",
    "HashStore",
    "InvalidArgumentError",
    "InvalidTypeError",
    "McrError",
    "NotInitializedError",
    "Options",
    "P2POp",
    "PeerLostError",
    "PrefixStore",
    "ProcessGroup",
    "ReduceOp",
    "Store",
    "TCPStore",
    "Topology",
    "UnsupportedError",
    "Work",
    "_coalescing_manager",
    "all_gather_object",
    "available_backends",
    "batch_isend_irecv",
    "broadcast_object_list",
    "configure",
    "deepspeed",
    "default_pg_timeout",
    "destroy_process_group",
    "empty_shared",
    "explain",
    "finalize",
    "gather_object",
    "get_backend",
    "get_backend_config",
    "get_backends",
    "get_default_backend_for_device",
    "get_distributed_engine",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_passes",
    "get_process_group_ranks",
    "get_rank",
    "get_size",
    "get_world_size",
    "group",
    "grow",
    "include_path",
    "init",
    "init_distributed",
    "init_process_group",
    "init_processes",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "library_path",
    "log_records",
    "log_summary",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "recv_object_list",
    "refine",
    "refine_step",
    "register_pass",
    "rejoin",
    "reset_log",
    "scatter_object_list",
    "send_object_list",
    "set_passes",
    "set_topology",
    "shrink",
    "split_group",
    "synchronize",
    "topology",
    "use",
]
__all__ += _C.__all__
_PACKAGES = ("passes", "schedule", "trace")  # part of the API, with names of their own


if not TYPE_CHECKING:  # type checkers know the names above alone, and report others

    def __getattr__(name: str) -> object:
        """Fall back to torch.distributed: its other functions work on mcr_dl's groups, which are torch's too."""
        if name.startswith("__") or not hasattr(_torch_dist, name):
            message = f"module 'mcr_dl' has no attribute {name!r}, and torch.distributed has none either"
            raise AttributeError(message)
        return getattr(_torch_dist, name)


def __dir__() -> list[str]:
    """The public names and those of Python's own form, without torch's private ones, which ``__all__`` has too."""
    public = {name for name in (*__all__, *_PACKAGES) if not name.startswith("_")}
    return sorted({*public, *(name for name in globals() if name.startswith("__"))})
