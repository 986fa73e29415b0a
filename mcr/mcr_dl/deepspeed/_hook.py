# SPDX-License-Identifier: Apache-2.0
"""Where DeepSpeed makes the object behind ``deepspeed.comm``, it gets ours: now, or once DeepSpeed is imported."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import torch.distributed as torch_dist

from mcr_dl import _runtime
from mcr_dl._errors import BackendUnavailableError, InvalidArgumentError

_MODULE, _CLASS = "deepspeed.comm.torch", "TorchBackend"
_VENDORS = ("deepspeed.comm.ccl",)  # whose objects DeepSpeed makes before it looks at dist_backend
_VARIABLE = "MCR_DL_DEEPSPEED"

_installed = False
_backends: list[str] = []  # that install() named; none: as init_process_group chooses


def install(backends: str | Iterable[str] | None = None) -> None:
    """Let every later ``deepspeed.init_distributed`` use mcr_dl, whatever backend it names.

    Imports DeepSpeed. The variable ``MCR_DL_DEEPSPEED=1`` does the same when DeepSpeed is imported.

    Args:
        backends: what is underneath, as for ``init_process_group``, if that has not run yet; by default what
            ``MCR_DL_BACKENDS`` names, else all that can be used here.

    Raises:
        BackendUnavailableError: DeepSpeed is missing, or its version lacks what this hooks.
        InvalidArgumentError: a backend is unknown, or ``deepspeed.comm`` runs on another one already.
    """
    global _installed, _backends
    names = _runtime.parse_backends(backends)
    if importlib.util.find_spec("deepspeed") is None:
        message = "deepspeed: expected an installed DeepSpeed, found none; `pip install deepspeed`"
        raise BackendUnavailableError(message)
    try:
        hook(importlib.import_module(_MODULE), needed=True)
        comm = importlib.import_module("deepspeed.comm.comm")
    except ImportError as error:
        message = f"deepspeed: expected DeepSpeed {_version()} to have {_MODULE}, but importing it failed: {error}"
        raise BackendUnavailableError(message) from error
    from mcr_dl.deepspeed._backend import McrBackend

    if comm.cdb is not None and comm.cdb.is_initialized() and not isinstance(comm.cdb, McrBackend):
        message = f"install: expected deepspeed.comm not to run yet, but it runs on {comm.cdb.name!r}; install first"
        raise InvalidArgumentError(message)
    _installed, _backends = True, names


def backends() -> str | list[str] | None:
    """What init_process_group gets for DeepSpeed."""
    return _backends or os.environ.get("MCR_DL_BACKENDS") or None


def watch() -> None:
    """Hook DeepSpeed if it is imported, else when it will be. Costs a program without DeepSpeed nothing."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        hook(module, needed=False)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def hook(module: ModuleType, needed: bool) -> None:
    """Put the choice into DeepSpeed's class; hooking twice changes nothing.

    Raises BackendUnavailableError if the class is not there and ``needed``: without ``install`` or the variable, a
    DeepSpeed that works otherwise shall go on.
    """
    original = getattr(module, _CLASS, None)
    if isinstance(original, type):
        original.__new__ = staticmethod(_make)  # type: ignore[assignment]
    elif needed:
        message = f"deepspeed: expected {_MODULE}.{_CLASS}, which DeepSpeed {_version()} does not have"
        raise BackendUnavailableError(message)


def _make(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
    """``TorchBackend.__new__``: one of ours where that is wanted, in every namespace that has the class."""
    if cls.__module__ not in (_MODULE, *_VENDORS) or not _wanted(kwargs.get("backend", args[0] if args else None)):
        return object.__new__(cls)
    from mcr_dl.deepspeed._backend import McrBackend

    if cls.__module__ == _MODULE:
        return object.__new__(McrBackend)
    return McrBackend("mcr", *args, **kwargs)  # not an object of that class, so Python does not initialise it again


def _wanted(backend: object) -> bool:
    if _installed or _switched_on() or _is_ours(backend):
        return True
    return torch_dist.is_initialized() and _is_ours(torch_dist.get_backend())


def _is_ours(backend: object) -> bool:
    return isinstance(backend, str) and "mcr" in (part.rpartition(":")[2] for part in backend.split(","))


def _switched_on() -> bool:
    value = os.environ.get(_VARIABLE, "")
    if value not in ("", "0", "1"):
        message = f"{_VARIABLE}: expected 0 or 1, got {value!r}"
        raise InvalidArgumentError(message)
    return value == "1"


def _version() -> str:
    try:
        return version("deepspeed")
    except PackageNotFoundError:
        return "of an unknown version"


class _Finder(MetaPathFinder):
    """Finds DeepSpeed's module as Python would, with a step after its execution."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                spec.loader = None if spec.loader is None else _Loader(spec.loader)
                return spec
        return None


class _Loader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        hook(module, needed=_switched_on())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # get_source, get_filename, ...: what inspect and linecache ask for
