# SPDX-License-Identifier: Apache-2.0
"""``configure``: sets up the log by DeepSpeed's keys."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from mcr_dl import _C
from mcr_dl.base import documents
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.passes.log import Log
from mcr_dl.records import printer
from mcr_dl.runtime import state

_SECTION = "comms_logger"
_LARGEST = 4 * documents.MIB  # bytes of a DeepSpeed configuration


@dataclass(frozen=True)
class Settings:
    """DeepSpeed's keys with its defaults."""

    enabled: bool = False
    prof_all: bool = True
    prof_ops: tuple[str, ...] = ()
    verbose: bool = False
    debug: bool = False


_KEYS = tuple(field.name for field in fields(Settings))
_settings = Settings()


def _checked(name: str, value: Any) -> Any:
    if name == "prof_ops":
        if isinstance(value, str) or not isinstance(value, Iterable):
            message = f"configure: prof_ops: expected a list of operations, got {value!r}"
            raise InvalidArgumentError(message)
        return tuple(value)
    if not isinstance(value, bool):
        message = f"configure: {name}: expected True or False, got {value!r}"
        raise InvalidArgumentError(message)
    return value


def _from_mapping(config: Mapping[str, Any]) -> dict[str, Any]:
    section = config.get(_SECTION, config)
    if not isinstance(section, Mapping):
        message = f"configure: {_SECTION}: expected a dict, got {section!r}"
        raise InvalidArgumentError(message)
    if section is config and not set(config) & set(_KEYS):
        message = f"configure: expected {_SECTION} or some of {', '.join(_KEYS)}, got {', '.join(map(str, config))}"
        raise InvalidArgumentError(message)
    unknown = sorted(set(section) - set(_KEYS))
    if unknown:
        where = "configure" if section is config else f"configure: {_SECTION}"
        message = f"{where}: expected some of {', '.join(_KEYS)}, got {', '.join(unknown)}"
        raise InvalidArgumentError(message)
    return {name: section[name] for name in _KEYS if name in section}


def _from_object(config: Any) -> dict[str, Any]:
    """DeepSpeed's own config object, or its part about communication."""
    part = getattr(config, "comms_config", config)
    if not hasattr(part, "comms_logger_enabled"):
        message = f"configure: expected a dict, a JSON file or a DeepSpeed config, got {type(config).__name__}"
        raise InvalidArgumentError(message)
    found: dict[str, Any] = {"enabled": part.comms_logger_enabled}
    logger = getattr(part, _SECTION, None)
    found.update({name: getattr(logger, name) for name in _KEYS[1:] if hasattr(logger, name)})
    return found


def _read(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, (str, os.PathLike)):
        config = documents.read(config, f"configure: {os.fspath(config)}", limit=_LARGEST)
    return _from_mapping(config) if isinstance(config, Mapping) else _from_object(config)


def _specification(settings: Settings) -> Log | None:
    if not settings.enabled:
        return None
    if not settings.prof_all and not settings.prof_ops:
        message = "configure: prof_ops: expected some operations where prof_all is off, got none"
        raise InvalidArgumentError(message)
    return Log(ops=None if settings.prof_all else settings.prof_ops, verbose=settings.verbose)


def _no_shadow(suffix: str, *, rest: bool = False) -> _C.Group:
    raise AssertionError(f"the log asked for a group {suffix!r} (rest={rest})")


def put(specification: Log | None) -> None:
    """Make it the first pass of every group, replacing an existing log; None: no log."""
    current = state.current()
    for name, group in current.groups.items():
        if state.is_shadow(name):
            continue
        kept = [station for station in _C.passes(group) if station.name != Log.name]
        _C.set_passes(group, kept if specification is None else [specification.make(group, _no_shadow), *kept])
    others = [each for each in current.passes if each.name != Log.name]
    current.passes = others if specification is None else [specification, *others]


def reset() -> None:
    """Go back to the settings with which a life of the runtime begins."""
    global _settings
    _settings = Settings()
    printer.stop()
    _C.log_callers(False)


def configure(
    config: Any | None = None,
    *,
    enabled: bool | None = None,
    prof_all: bool | None = None,
    prof_ops: Iterable[str] | None = None,
    verbose: bool | None = None,
    debug: bool | None = None,
) -> None:
    """Turn the log on or off, by DeepSpeed's keys. Settings that are not given stay; arguments override ``config``.

    The log becomes the first pass of all groups and of those made later; their other passes stay. Every rank of the
    job calls this at the same point in its calls, because sequence numbers count from there on, and while no other
    thread makes calls. Nothing is sent.

    Args:
        config: a dict ``{"comms_logger": {...}}`` or ``{"enabled": ..., ...}``, a JSON file with one of them (a
            DeepSpeed configuration), or DeepSpeed's config object.
        enabled: whether calls are recorded.
        prof_all: record all operations (the default); False: those in ``prof_ops``, by any of their public names.
        verbose: print a line for each call within a second of its end, on rank 0, to standard error.
        debug: record and show the name of the Python function that made the call.

    Raises InvalidArgumentError for a wrong key or value, NotInitializedError before init and after finalize; the
    log then stays unchanged. Source: deepspeed.comm.configure.
    """
    global _settings
    given = {"enabled": enabled, "prof_all": prof_all, "prof_ops": prof_ops, "verbose": verbose, "debug": debug}
    values = {**_read(config), **{name: value for name, value in given.items() if value is not None}}
    settings = replace(_settings, **{name: _checked(name, value) for name, value in values.items()})
    specification = _specification(settings)
    put(specification)
    if specification is None or not settings.verbose:
        printer.stop()
    _C.log_callers(specification is not None and settings.debug)
    _settings = settings
