# SPDX-License-Identifier: Apache-2.0
"""The backends of other packages, which their entry points name."""

from __future__ import annotations

import importlib.metadata
import os
import re
from contextvars import ContextVar

from mcr_dl.base.errors import BackendUnavailableError
from mcr_dl.libraries import c10d
from mcr_dl.libraries.descriptor import Library

ENTRY_POINTS = "mcr_dl.backends"
MISNAMED = (
    "expected an entry point whose name is a lower-case letter, then such letters, digits, '_', '.' or '-', and "
    f"neither auto nor {c10d.OURS}: its package must change the name"
)
_NAME = re.compile(r"[a-z][a-z0-9_.-]*")  # other characters divide the names of candidates

# The backends whose entry points this thread runs.
_running: ContextVar[frozenset[str]] = ContextVar("mcr_dl_entry_points", default=frozenset())


class ThirdParty(Library):
    """A module that another package brings."""

    def locate(self) -> tuple[str, str]:
        """The path that the entry point gives."""
        if self.name in _running.get():
            raise BackendUnavailableError("its entry point asks for its own backend: expected a path of a module")
        point, *others = entry_points()[self.name]
        if others:
            packages = ", ".join(sorted(_package(each) for each in (point, *others)))
            message = f"expected one package with an entry point of this name, got {packages}: uninstall all but one"
            raise BackendUnavailableError(message)
        before = _running.set(_running.get() | {self.name})
        try:
            path = str(point.load()())
        except (Exception, SystemExit) as error:  # another package's code
            text = f"its entry point raises {type(error).__name__}: {error}"
            raise BackendUnavailableError(text) from error
        finally:
            _running.reset(before)
        if not os.path.isabs(path):  # dlopen would look in the current directory or on the loader's path
            raise BackendUnavailableError(f"its entry point gives {path!r}: expected an absolute path")
        return path, ""


def _package(point: importlib.metadata.EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def entry_points() -> dict[str, list[importlib.metadata.EntryPoint]]:
    """The entry points by their names, also those that packages have in common, and those that no backend can have."""
    found: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        found.setdefault(point.name, []).append(point)
    return found


def is_misnamed(name: str) -> bool:
    """Whether no program can name a backend so."""
    return _NAME.fullmatch(name) is None or name in ("auto", c10d.OURS)


def names() -> list[str]:
    """The backends' names."""
    return [name for name in entry_points() if not is_misnamed(name)]


def misnamed() -> list[str]:
    """Names of entry points that backends cannot have."""
    return [name for name in entry_points() if is_misnamed(name)]
