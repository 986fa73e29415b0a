# SPDX-License-Identifier: Apache-2.0
"""The backends that torch.distributed has or that are registered with it, for the c10d adapter."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from mcr_dl.base import addresses
from mcr_dl.base.errors import BackendUnavailableError, McrError
from mcr_dl.libraries.descriptor import Library, module_path

if TYPE_CHECKING:
    from datetime import timedelta

    from mcr_dl import _C

OURS = "mcr"  # MCR-DL's own name in torch, registered by mcr_dl_autoload
_FAKE_MODULE = "torch.testing._internal.distributed.fake_pg"
_ADAPTER = "c10d"  # the module that serves all of them
_LATE = "TORCH_GLOO_LAZY_INIT"  # torch reads it whenever it makes a group of gloo
_MESH = 64  # ranks: in a larger group, gloo does not connect each with each when the group is made


class TorchLibrary(Library):
    """A backend that is registered with torch.distributed, for tensors in host memory."""

    def owns(self, stem: str) -> bool:
        """All of them share the adapter."""
        return stem == _ADAPTER

    def unavailable(self) -> str | None:
        """Why torch's backend cannot be used here, or None if it can."""
        if self.name not in plugged_in():
            known = f"torch.distributed knows no backend {self.name!r}"
            return f"{known}: the package that registers it must be imported first"
        devices = dist.Backend.backend_capability.get(self.name, ["cpu"])
        return None if "cpu" in devices else f"torch's {self.name!r} is for {', '.join(devices)}, not for cpu"

    def exists(self) -> bool:
        """Return whether the backend is listed: only if it can be used here."""
        return self.unavailable() is None

    def locate(self) -> tuple[str, str]:
        """The adapter, and torch's name of the backend."""
        reason = self.unavailable()
        if reason is not None:
            raise BackendUnavailableError(reason, absent=self.automatic)
        return module_path(_ADAPTER), self.name

    def argument(self, store: c10d.Store, group: _C.Group) -> object:
        """Torch's object, which the adapter calls."""
        try:
            return self.create(store, group.rank(), group.size(), group.timeout)
        except (McrError, dist.DistStoreError):  # the latter: other members have not come in time
            raise
        except Exception as error:  # other packages' code may raise anything
            raise BackendUnavailableError(f"backend '{self.name}' cannot start: {error}") from error

    def create(self, store: c10d.Store, rank: int, size: int, timeout: timedelta) -> c10d.Backend:
        """Make the torch backend for a group, together with the group's other members.

        The members share the store, and their other backends use no keys below the name. Keep the result alive as long
        as the group: a backend written in Python is more than the C++ object behind it.
        """
        reason = self.unavailable()
        if reason is not None:
            raise RuntimeError(f"backend {self.name!r} is unavailable: {reason}")
        return self._create(c10d.PrefixStore(f"{self.name}/", store), rank, size, timeout)

    def _create(self, store: c10d.Store, rank: int, size: int, timeout: timedelta) -> c10d.Backend:
        return _create_plugged_in(self.name, store, rank, size, timeout)


class _Gloo(TorchLibrary):
    automatic = True
    networks = True
    equal_variables = (_LATE,)

    def unavailable(self) -> str | None:
        return None if dist.is_gloo_available() else "this torch is built without gloo"

    def reads_later(self, size: int) -> bool:
        """Whether two ranks connect when they first need it: in a large group, unless the user decides.

        Equal on the group's ranks, as the variable is, and nothing else that a process has done before decides.
        """
        decided = os.environ.get(_LATE, "").lower()
        return decided in ("1", "t", "true", "y", "yes") if decided else size > _MESH

    def _create(self, store: c10d.Store, rank: int, size: int, timeout: timedelta) -> c10d.Backend:
        if os.environ.get(_LATE) or not self.reads_later(size):
            return self._connected(store, rank, size, timeout)
        os.environ[_LATE] = "1"
        try:
            return self._connected(store, rank, size, timeout)
        finally:
            del os.environ[_LATE]

    @staticmethod
    def _connected(store: c10d.Store, rank: int, size: int, timeout: timedelta) -> c10d.Backend:
        """Make gloo's object. By default gloo takes the address of the host's name, at which others may not reach it.

        Each rank decides this for itself: the others get its address from the store.
        """
        address = "" if os.environ.get("GLOO_SOCKET_IFNAME") else addresses.in_place_of_name(store)
        if not address:
            return c10d.ProcessGroupGloo(store, rank, size, timeout)
        options = c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout, options._threads = timeout, 2  # as many as gloo has for one device
        options._devices = [c10d.ProcessGroupGloo.create_device(hostname=address)]
        return c10d.ProcessGroupGloo(store, rank, size, options)


class _Fake(TorchLibrary):
    measured = False

    def unavailable(self) -> str | None:
        return None if importlib.util.find_spec(_FAKE_MODULE) else f"this torch has no {_FAKE_MODULE}"

    def _create(self, store: c10d.Store, rank: int, size: int, timeout: timedelta) -> c10d.Backend:
        importlib.import_module(_FAKE_MODULE)  # registers the backend
        return super()._create(store, rank, size, timeout)


GLOO = _Gloo("gloo")
FAKE = _Fake("fake")


def plugged_in() -> list[str]:
    """Names of the backends that packages have registered with torch, without ours; "fake" may be among them."""
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
