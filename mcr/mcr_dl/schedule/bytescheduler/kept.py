# SPDX-License-Identifier: Apache-2.0
"""Settings that training steps preferred, in the cache folder: a later job of the same model begins with them.

The file is ``schedules/<fingerprint>.json`` next to the tuning tables, one for each kind of machine. Jobs without a
tuning table (``MCR_DL_TUNING_TABLE=none``) neither read nor write it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mcr_dl import _C
from mcr_dl.base import documents
from mcr_dl.base.errors import McrError
from mcr_dl.runtime import state
from mcr_dl.schedule.bytescheduler.planning import Settings
from mcr_dl.tables import table
from mcr_dl.tables.host import host

FORMAT, VERSION = "mcr-dl schedules", 1
MOST = 200  # models; the oldest ones leave
_PARTITION = {"anyOf": [{"const": None}, {"type": "integer", "minimum": 1024, "multipleOf": 16}]}  # whole elements
_CREDIT = {"anyOf": [{"const": None}, {"type": "integer", "minimum": 1024}]}
_ENTRY = {
    "type": "object",
    "properties": {
        "join": {"type": "integer", "minimum": 0},
        "partition": _PARTITION,
        "credit": _CREDIT,
        "priorities": {"type": "boolean"},
        "tuning": {"type": "string"},
    },
    "required": ["join", "partition", "credit", "priorities", "tuning"],
    "additionalProperties": False,
}
_SCHEMA = {
    "type": "object",
    "properties": {
        "format": {"const": FORMAT},
        "version": {"const": VERSION},
        "schedules": {"type": "object"},
    },
    "required": ["format", "version", "schedules"],
}
_log = logging.getLogger("mcr_dl")


def path() -> Path:
    """The file of this kind of machine."""
    return table.default_path(host()).parent.parent / "schedules" / f"{host().fingerprint}.json"


def key(group: _C.Group, sizes: Sequence[int], kinds: Sequence[str], candidate: str | None) -> str | None:
    """The key of kept settings: the sizes and types of the model's gradients, their candidate, the ranks, versions.

    None, equally on all ranks, if the job keeps none.
    """
    knowledge = state.current().knowledge
    if not (knowledge.source or knowledge.seconds):
        return None
    shape = knowledge.shape(list(group.ranks))
    versions = [_C.__version__, str(torch.__version__)]
    facts = [list(sizes), list(kinds), str(shape), candidate, list(group.backends), versions]
    return documents.hash_of(facts)[:32]


def load(name: str, tuning: str) -> Settings | None:
    """The settings kept under a key; None if there are none, or only those of a quicker tuning."""
    try:
        entry = _entries().get(name)
    except (McrError, ModuleNotFoundError) as error:
        _log.warning("ByteScheduler: the settings of earlier jobs cannot be used: %s", error)
        return None
    if entry is None or (entry.pop("tuning") != tuning and tuning != "shortlist"):
        return None
    # 1024.0 is an integer, too, for the schema
    numbers = {each: int(entry[each]) for each in ("join", "partition", "credit") if entry[each] is not None}
    return Settings(**{**entry, **numbers})


def store(name: str, settings: Settings, tuning: str) -> None:
    """Keep settings, and the ``tuning`` that found them.

    A file that cannot be written is reported, and changes nothing else.
    """
    with documents.locked(path()):
        try:
            entries = {other: each for other, each in _entries().items() if other != name}
        except McrError:  # which load() has reported
            entries = {}
        except ModuleNotFoundError:
            return
        entries[name] = {**settings._asdict(), "tuning": tuning}
        document = {"format": FORMAT, "version": VERSION, "schedules": dict([*entries.items()][-MOST:])}
        try:
            documents.replace_file(path(), documents.rows(document) + "\n")
        except OSError as error:
            _log.info("ByteScheduler: the settings are not kept for later jobs: %s", error)


def _entries() -> dict[str, Any]:
    """Without those that are wrong, which the log names.

    Raises McrError for a file of another kind, and ModuleNotFoundError without jsonschema.
    """
    if not os.path.exists(path()):  # Path.exists raises if a folder may not be searched
        return {}
    file = f"schedules {path()}"
    document = documents.read(path(), file, limit=documents.MIB, again="remove the file")
    entries = {}
    for name, entry in documents.check(document, _SCHEMA, file)["schedules"].items():
        try:
            entries[name] = documents.check(entry, _ENTRY, f"{file}: schedules.{name}")
        except McrError as error:
            _log.warning("ByteScheduler: settings of an earlier job cannot be used: %s", error)
    return entries
