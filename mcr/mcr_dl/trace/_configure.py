# SPDX-License-Identifier: Apache-2.0
"""``configure``: sets up the log by DeepSpeed's keys."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, fields, replace
from typing import Any

from mcr_dl import _C
from mcr_dl.base import documents
from mcr_dl.base.errors import InvalidArgumentError, UnsupportedError
from mcr_dl.passes.fuse import Fuse
from mcr_dl.passes.log import Log, op_of
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
        names = tuple(value)
        for each in names:  # also where prof_all is on: a later call may turn it off
            op_of(each, "configure: prof_ops")
        return names
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
    unknown = sorted(map(str, set(section) - set(_KEYS)))
    if unknown:
        where = "configure" if section is config else f"configure: {_SECTION}"
        message = f"{where}: expected some of {', '.join(_KEYS)}, got {', '.join(unknown)}"
        raise InvalidArgumentError(message)
    return {name: section[name] for name in _KEYS if name in section}


def _from_object(config: Any) -> dict[str, Any]:
    """DeepSpeed's own config object, or its part about communication.

    Its comms_logger_enabled says only whether the configuration has the section, whose own ``enabled`` counts. Without
    the section nothing is given.
    """
    part = getattr(config, "comms_config", config)
    if not hasattr(part, "comms_logger_enabled"):
        message = f"configure: expected a dict, a JSON file or a DeepSpeed config, got {type(config).__name__}"
        raise InvalidArgumentError(message)
    section = getattr(part, _SECTION, None)
    return {name: getattr(section, name) for name in _KEYS if hasattr(section, name)}


def _read(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, (str, os.PathLike)):
        config = documents.read(config, f"configure: {os.fspath(config)}", limit=_LARGEST)
    return _from_mapping(config) if isinstance(config, Mapping) else _from_object(config)


def _specification(settings: Settings, *, verbose: bool) -> Log:
    if not settings.prof_all and not settings.prof_ops:
        message = "configure: prof_ops: expected some operations where prof_all is off, got none"
        raise InvalidArgumentError(message)
    return Log(ops=None if settings.prof_all else settings.prof_ops, verbose=verbose)


def _with_log() -> list[_C.Group]:
    """The groups that have a log."""
    groups = state.current().program_groups()
    return [group for group in groups if any(station.name == Log.name for station in _C.passes(group))]


def _require_in_front() -> None:
    """Raise UnsupportedError if a group has a log behind ``fuse``, which keeps the passes behind it."""
    for group in state.current().program_groups():
        names = [station.name for station in _C.passes(group)]
        if Log.name in names and Fuse.name in names[: names.index(Log.name)]:
            message = (
                f"configure: expected no log behind {Fuse.name}, which keeps the passes behind it, got the passes "
                f"{', '.join(names)} of group '{group.name()}': change them with set_passes"
            )
            raise UnsupportedError(message)


def put(specification: Log | None) -> None:
    """Make it the first pass of every group, replacing an existing log; None: no log."""
    current = state.current()
    for group in current.program_groups():
        kept = [station for station in _C.passes(group) if station.name != Log.name]
        _C.set_passes(group, kept if specification is None else [specification.make(group), *kept])
    others = [each for each in current.passes if each.name != Log.name]
    current.passes = others if specification is None else [specification, *others]
    if specification is None or not specification.verbose:
        printer.stop()


def _change(settings: Settings, given: Set[str]) -> bool:
    """Change the given settings of the logs that there are, also those of later groups; whether there are some."""
    current, groups = state.current(), _with_log()
    later = [each for each in current.passes if isinstance(each, Log)]
    if not later and not groups:
        return False
    ops, verbose = not given.isdisjoint(("prof_all", "prof_ops")), "verbose" in given
    fresh = _specification(settings, verbose=settings.verbose) if ops else Log(verbose=settings.verbose)
    changes = {name: getattr(fresh, name) for name, wanted in (("ops", ops), ("verbose", verbose)) if wanted}
    for group in groups:
        printed = settings.verbose if verbose else printer.prints(group.name())
        if ops:
            made = replace(fresh, verbose=printed).make(group)
            _C.set_passes(group, [made if station.name == Log.name else station for station in _C.passes(group)])
        elif printed:
            printer.start(group.name())
        else:
            printer.leave_out(group.name())
    current.passes = [replace(each, **changes) if isinstance(each, Log) else each for each in current.passes]
    return True


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

    With ``enabled=True`` the log becomes the first pass of all groups and of those made later; their other passes stay.
    Without ``enabled``, groups keep their logs, whether this function, ``set_passes`` or a variable of the environment
    has set them, and these logs get the settings that are given. Every rank of the job calls this at the same point in
    its calls, because sequence numbers count from there on, and while no other thread makes calls. Nothing is sent.

    Args:
        config: a dict ``{"comms_logger": {...}}`` or ``{"enabled": ..., ...}``, a JSON file with one of them (a
            DeepSpeed configuration), or DeepSpeed's config object.
        enabled: whether calls are recorded.
        prof_all: record all operations (the default); False: those in ``prof_ops``.
        prof_ops: the operations to record where ``prof_all`` is False, by any of their public names.
        verbose: print a line for each call within a second of its end, on rank 0, to standard error.
        debug: record and show the name of the Python function that made the call.

    Raises InvalidArgumentError for a wrong key or value, UnsupportedError for a log behind ``fuse``,
    NotInitializedError before init and after finalize; the log then stays unchanged. Source: deepspeed.comm.configure.
    """
    global _settings
    given = {"enabled": enabled, "prof_all": prof_all, "prof_ops": prof_ops, "verbose": verbose, "debug": debug}
    values = {**_read(config), **{name: value for name, value in given.items() if value is not None}}
    settings = replace(_settings, **{name: _checked(name, value) for name, value in values.items()})
    on = settings.enabled
    if values.keys() - {"debug"}:
        _require_in_front()
    if "enabled" in values:
        put(_specification(settings, verbose=settings.verbose) if on else None)
    else:
        on = _change(settings, values.keys())
    _C.log_callers(on and settings.debug)
    _settings = settings
