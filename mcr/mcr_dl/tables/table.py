# SPDX-License-Identifier: Apache-2.0
"""Reads, writes, checks and merges tuning tables. The format is ``tuning/schema.json``."""

from __future__ import annotations

import json
import os
import pwd
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mcr_dl import _C
from mcr_dl.base import documents
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.tables import _schema, rules
from mcr_dl.tables.host import Host, Software
from mcr_dl.tables.model import FORMAT, VERSION, Scale, Table, content, from_document, respelt
from mcr_dl.tables.winners import winners_of

LARGEST = 64 * documents.MIB
"""Bytes of a table's file, at most. One of all operations, 30 sizes and 8 scales has 3 MiB."""
_AGAIN = "measure again with mcr-tune"


def _broken(path: Path, where: str, expected: str, got: str, advice: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"tuning table {path}: {where}expected {expected}, got {got}; {advice}")


def _load(path: Path) -> Any:
    return documents.read(path, f"tuning table {path}", limit=LARGEST, make="make it with mcr-tune", again=_AGAIN)


def _check_version(path: Path, document: Any) -> None:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        got = f"{document.get('format')!r}" if isinstance(document, dict) else f"a {type(document).__name__}"
        raise _broken(path, "format: ", repr(FORMAT), got, "this is not a tuning table, name another file")
    version = document.get("version")
    if version == VERSION and isinstance(version, int):
        return
    advice = _AGAIN
    if isinstance(version, int) and version > VERSION:
        advice = f"update mcr_dl, or {_AGAIN}"
    raise _broken(path, "version: ", str(VERSION), json.dumps(version), advice)


def _validate(path: Path, document: dict[str, Any]) -> None:
    fault = _schema.violation(document) or _schema.contradiction(document)
    if fault is not None:
        raise InvalidArgumentError(f"tuning table {path}: {fault}; correct it or {_AGAIN}")


def read(path: str | os.PathLike[str]) -> Table:
    """Read the table in a file.

    Raises InvalidArgumentError, in one line that names the file, the key, what was expected and what to do, if the file
    is missing, unreadable or truncated, is not a tuning table, is of another version, or violates the schema.
    """
    file = Path(path)
    document = _load(file)
    _check_version(file, document)
    _validate(file, document)
    return from_document(document, str(file))


def write(table: Table, path: str | os.PathLike[str]) -> None:
    """Write the table to a file, atomically, with its folders; replaces an existing one. Candidates are written in
    their canonical spelling.

    Raises InvalidArgumentError, and writes nothing, if the table violates the schema, and OSError if the file cannot be
    written.
    """
    file = Path(path)
    try:
        spelt = respelt(table)
        document = {**content(spelt), "checksum": spelt.digest}
    except ValueError as error:  # a NaN or an infinity
        raise InvalidArgumentError(f"tuning table {file}: expected finite numbers, got {error}") from error
    _validate(file, document)
    try:
        documents.replace_file(file, documents.rows(document) + "\n")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        cached = _cache() in file.parents
        advice = "XDG_CACHE_HOME sets another folder for it" if cached else "name another file"
        raise OSError(f"tuning table {file}: cannot be written: {reason}; {advice}") from error


def default_path(host: Host) -> Path:
    """The path of a machine's table in the user's cache directory: ``tuning/<fingerprint>.json``."""
    return _cache() / "tuning" / f"{host.fingerprint}.json"


def _cache() -> Path:
    try:
        try:
            from platformdirs import user_cache_path
        except ModuleNotFoundError:  # programs need only the path
            return _user_cache() / "mcr_dl"
        return user_cache_path("mcr_dl")
    except (KeyError, RuntimeError):  # a user without a home directory, as in some containers: nothing can be kept
        return Path(os.devnull, "mcr_dl")


def _user_cache() -> Path:
    """The folder of caches where platformdirs has it on Linux: relative variables count as not set."""
    named, home = (os.environ.get(name, "") for name in ("XDG_CACHE_HOME", "HOME"))
    if os.path.isabs(named):
        return Path(named)
    return Path(home if os.path.isabs(home) else pwd.getpwuid(os.getuid()).pw_dir, ".cache")


def now() -> str:
    """The time in UTC, as in tables."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def merge(old: Table, scale: Scale) -> Table:
    """The table with this scale added; replaces a scale with equal ranks, nodes, ranks per node and device."""
    kept = [each for each in old.scales if each.key != scale.key]
    return replace(old, scales=tuple(sorted([*kept, scale], key=lambda each: each.key)), checksum="")


def _version_changes(measured: Software, running: Software) -> list[str]:
    names = ("mcr_dl", "torch", "python")
    pairs = {name: (getattr(measured, name), getattr(running, name)) for name in names}
    common = [name for name in measured.backends if name in running.backends]
    pairs.update({f"backends.{name}": (measured.backends[name], running.backends[name]) for name in common})
    return [
        f"software.{name}: expected the running {here}, got {there}; {_AGAIN}"
        for name, (there, here) in pairs.items()
        if there != here
    ]


def outdated(table: Table, host: Host, software: Software) -> bool:
    """Whether the table was measured on another kind of machine or with other versions."""
    return table.host.fingerprint != host.fingerprint or bool(_version_changes(table.software, software))


def _unknown_names(table: Table) -> list[str]:
    known = _C.operations()
    named = [
        (f"scales[{index}].{kind}[{place}]", name)
        for index, scale in enumerate(table.scales)
        for kind, names in (
            ("curves", [curve.operation for curve in scale.curves]),
            ("winners", [winner.operation for winner in scale.winners]),
        )
        for place, name in enumerate(names)
    ]
    wanted = f"expected one of {', '.join(known)}"
    return [f"{where}.operation: {wanted}, got {name!r}; it is not used" for where, name in named if name not in known]


def _of_file(table: Table, problems: list[str]) -> list[str]:
    return [f"tuning table {table.source or '(not in a file)'}: {problem}" for problem in problems]


def edited(table: Table) -> list[str]:
    """A line that says that the table was edited after it was measured, if it was."""
    if table.checksum in ("", table.digest):
        return []
    problem = f"checksum: expected {table.digest}, got {table.checksum}: edited after it was measured"
    if any({*scale.winners} != {*winners_of(scale)} for scale in table.scales):
        problem += f"; winners are computed from the curves: to force a candidate use {rules.VARIABLE}"
    return _of_file(table, [problem])


def check(table: Table, host: Host, software: Software | None = None) -> list[str]:
    """Doubts about using the table here, one line each; none of them forbids its use.

    The table was edited after it was measured, was measured on another kind of machine or (if ``software``, the
    versions in use, is given) with other versions, or names unknown operations.
    """
    problems = []
    if table.host.fingerprint != host.fingerprint:
        here, there = (f"{each.fingerprint} ({each.cpu}, {each.cores} cores)" for each in (host, table.host))
        problems.append(f"host.fingerprint: expected {here}, got {there}: of another kind of machine, {_AGAIN} here")
    problems += [] if software is None else _version_changes(table.software, software)
    problems += _unknown_names(table)
    return edited(table) + _of_file(table, problems)
