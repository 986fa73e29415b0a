# SPDX-License-Identifier: Apache-2.0
"""Gives DeepSpeed an mcr_dl object for ``deepspeed.comm``, if that is requested (mcr_dl.deepspeed).

Imports nothing of mcr_dl before DeepSpeed asks for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

MODULE, CLASS = "deepspeed.comm.torch", "TorchBackend"
VARIABLE = "MCR_DL_DEEPSPEED"
_VENDORS = ("deepspeed.comm.ccl",)  # DeepSpeed makes their objects before it looks at dist_backend

installed = False  # mcr_dl.deepspeed.install() has been called
names: list[str] | None = None  # the backends that it was given; None: those of MCR_DL_BACKENDS


def watch() -> None:
    """Hook DeepSpeed now if it is imported, else when it will be."""
    module = sys.modules.get(MODULE)
    if module is not None:
        hook(module, needed=False)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def hook(module: ModuleType, needed: bool) -> None:
    """Put the choice into DeepSpeed's class; hooking twice changes nothing.

    Raises mcr_dl.BackendUnavailableError if the class is missing and ``needed``: without ``install`` or the variable, a
    DeepSpeed that otherwise works must not fail.
    """
    original = getattr(module, CLASS, None)
    if isinstance(original, type):
        original.__new__ = staticmethod(_make)  # type: ignore[assignment]
    elif needed:
        from mcr_dl import BackendUnavailableError

        message = f"deepspeed: expected {MODULE}.{CLASS}, which DeepSpeed {deepspeed_version()} does not have"
        raise BackendUnavailableError(message)


def _make(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
    """``TorchBackend.__new__``: one of mcr_dl's if requested, in every namespace that has the class."""
    if cls.__module__ not in (MODULE, *_VENDORS) or not _wanted(kwargs.get("backend", args[0] if args else None)):
        return object.__new__(cls)
    from mcr_dl.deepspeed.backend import McrBackend

    if cls.__module__ == MODULE:
        return object.__new__(McrBackend)
    return McrBackend("mcr", *args, **kwargs)  # not an object of that class, so Python does not initialize it again


def _wanted(backend: object) -> bool:
    if installed or switched_on() or _is_ours(backend):
        return True
    import torch.distributed as dist

    return dist.is_initialized() and _is_ours(dist.get_backend())


def _is_ours(backend: object) -> bool:
    return isinstance(backend, str) and "mcr" in (part.rpartition(":")[2] for part in backend.split(","))


def switched_on() -> bool:
    """Whether the environment asks for it; raises mcr_dl.InvalidArgumentError for an invalid value."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        from mcr_dl import InvalidArgumentError

        message = f"{VARIABLE}: expected 0 or 1, got {value!r}"
        raise InvalidArgumentError(message)
    return value == "1"


def _warn_of_unknown() -> None:
    """Warn on rank 0 of a misspelt variable, as with MCR_DL_DEEPSPED=1 DeepSpeed would silently use its own backend."""
    if any(name.startswith("MCR_DL_") for name in os.environ):
        from mcr_dl.base import launcher, variables

        if launcher.read().rank == 0:
            variables.warn_of_unknown()


def backends() -> str | list[str] | None:
    """The argument of init_process_group for DeepSpeed."""
    return "auto" if names == ["auto"] else names


def deepspeed_version() -> str:
    """DeepSpeed's version, for texts."""
    try:
        return version("deepspeed")
    except PackageNotFoundError:
        return "of an unknown version"


class _Finder(MetaPathFinder):
    """Finds DeepSpeed's module as Python would, and adds a step after its execution."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != MODULE:
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
        _warn_of_unknown()
        hook(module, needed=switched_on())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # get_source, get_filename and others, for inspect and linecache
