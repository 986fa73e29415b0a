# SPDX-License-Identifier: Apache-2.0
"""Makes the backends that torch.distributed has or that are registered with it, for the c10d adapter."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if dist.is_available():
    from torch._C import _distributed_c10d as c10d

if TYPE_CHECKING:
    from datetime import timedelta

OURS = "mcr"  # MCR-DL's own name in torch, registered by mcr_dl_autoload
_FAKE_MODULE = "torch.testing._internal.distributed.fake_pg"


def names() -> list[str]:
    """Return the names of the torch backends that can be used here, for tensors in host memory."""
    if not dist.is_available():
        return []
    known = dict.fromkeys(["gloo", "fake", *_plugged_in()])
    return [name for name in known if unavailable(name) is None]


def unavailable(name: str) -> str | None:
    """Return why the torch backend of that name cannot be used here, or None if it can."""
    name = name.lower()
    if not dist.is_available():
        return "this torch is built without torch.distributed"
    if name == "gloo":
        return None if dist.is_gloo_available() else "this torch is built without gloo"
    if name == "fake":
        return None if importlib.util.find_spec(_FAKE_MODULE) else f"this torch has no {_FAKE_MODULE}"
    if name not in _plugged_in():
        return f"torch.distributed knows no backend {name!r}: the package that registers it must be imported first"
    devices = dist.Backend.backend_capability.get(name, ["cpu"])
    return None if "cpu" in devices else f"torch's {name!r} is for {', '.join(devices)}, not for cpu"


def create(name: str, store: c10d.Store, rank: int, size: int, timeout: timedelta) -> c10d.Backend:
    """Make the torch backend of that name for a group, together with the group's other members.

    The members share the store, and their other backends use no keys below `name`. Keep the result
    alive as long as the group: a backend written in Python is more than the C++ object behind it.
    """
    name = name.lower()
    reason = unavailable(name)
    if reason is not None:
        raise RuntimeError(f"backend {name!r} is unavailable: {reason}")
    own_store = c10d.PrefixStore(f"{name}/", store)
    if name == "gloo":
        return c10d.ProcessGroupGloo(own_store, rank, size, timeout)
    if name == "fake":
        importlib.import_module(_FAKE_MODULE)  # registers the backend
    return _create_plugged_in(name, own_store, rank, size, timeout)


def _plugged_in() -> list[str]:
    return [name.lower() for name in dist.Backend._plugins if name.lower() != OURS]


def _create_plugged_in(name: str, store: c10d.Store, rank: int, size: int, timeout: timedelta) -> c10d.Backend:
    plugin = dist.Backend._plugins[name.upper()]
    if plugin.extended_api:
        options = c10d._DistributedBackendOptions()
        options.store = store
        options.group_rank = rank
        options.group_size = size
        options.timeout = timeout
        options.group_id = name
        options.global_ranks_in_group = list(range(size))
        made: object = plugin.creator_fn(options, None)
    else:
        made = plugin.creator_fn(store, rank, size, timeout)
    if isinstance(made, c10d.ProcessGroup):
        made = _backend_of(name, made)
    if not isinstance(made, c10d.Backend):
        raise TypeError(f"backend {name!r}: expected a torch.distributed backend, got {type(made).__name__}")
    return made


def _backend_of(name: str, process_group: c10d.ProcessGroup) -> c10d.Backend:
    try:
        return process_group._get_backend(torch.device("cpu"))
    except RuntimeError as error:
        kind = type(process_group).__name__
        raise TypeError(f"backend {name!r}: expected a torch.distributed backend, got a {kind} without one") from error
