# SPDX-License-Identifier: Apache-2.0
"""Trace files: the log of each rank as JSON, with the data to align them with each other."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mcr_dl import _C
from mcr_dl.base import declared_types, documents
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.base.warning import warn
from mcr_dl.records.log import Record, RecordedGroup
from mcr_dl.tables.host import host, software
from mcr_dl.trace._clock import WALL, Clock
from mcr_dl.trace._regions import Region

FORMAT, VERSION = "mcr-dl trace", 1
LARGEST = 256 * documents.MIB
"""Bytes of a rank's file, at most: of a million records."""
# Fields of records that are words, with their possible values.
_WORDS = {
    "op": {str(row["name"]) for row in _C.ops()},
    "dtype": set(_C.dtypes()),
    "red": set(_C.reductions()),
    "state": {"issued", "started", "completed", "failed"},
}
_NAME = re.compile(r"(?:^|\.)rank(\d+)\.json$")


@dataclass(frozen=True)
class Trace:
    """The records of one rank. Times are ns of its steady clock; add ``clock.offset`` for rank 0's."""

    rank: int  # in the job
    ranks: int
    clock: Clock
    records: list[Record]
    regions: list[Region]
    lost: int  # number of records that the ring had overwritten
    saved: int  # time of saving, on the same clock
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def groups(self) -> list[RecordedGroup]:
        """The groups of its records, in the order of their first calls."""
        return list(dict.fromkeys(record.group for record in self.records))

    def wall(self, time: int) -> int:
        """Convert a time of this rank to ns since 1970."""
        return time - self.clock.steady + self.clock.wall


def offsets(traces: Sequence[Trace]) -> list[int]:
    """Offsets that put the times of all traces on one clock, rank 0's if possible.

    If a clock was not compared with rank 0's, all are aligned by their hosts' wall clocks.
    """
    if all(trace.clock.method != WALL for trace in traces):
        return [trace.clock.offset for trace in traces]
    ahead = [trace.clock.wall - trace.clock.steady for trace in traces]
    return [each - ahead[0] for each in ahead]


def first_common(traces: Sequence[Trace]) -> dict[tuple[str, int], int]:
    """By group: the first number from which no rank's ring has lost a call."""
    first: dict[tuple[str, int], int] = {}
    members = {group.key: group.ranks for trace in traces for group in trace.groups}
    for trace in traces:
        if trace.lost == 0:
            continue
        seen: dict[tuple[str, int], int] = {}
        for record in trace.records:
            if not record.peer and record.seq:
                seen.setdefault(record.group.key, record.seq)
        for key, ranks in members.items():
            if trace.rank in ranks:
                first[key] = max(first.get(key, 0), seen.get(key, sys.maxsize))  # it may have lost all of them
    return first


def lost_somewhere(record: Record, first: dict[tuple[str, int], int]) -> bool:
    """Whether a rank's ring may have lost this call; ``first``: of ``first_common``, empty if no ring has lost any."""
    return bool(first) and (record.peer or record.seq < first.get(record.group.key, 0))


def file_of(path: str | os.PathLike[str], rank: int) -> Path:
    """The file of a rank's trace: `out.rank3.json` for `out.json`, `folder/rank3.json` for a folder."""
    place = Path(path)
    if place.suffix == ".json":
        return place.with_name(f"{place.stem}.rank{rank}.json")
    return place / f"rank{rank}.json"


def provenance(job: str) -> dict[str, Any]:
    """The job, the machine and the versions that a measurement belongs to."""
    return {
        "job": job,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "program": Path(sys.argv[0]).name if sys.argv else "",
        "machine": asdict(host()),
        "software": asdict(software(_C.backend_status())),
    }


def write(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Write one rank's trace, making folders as needed; returns the file. Warns if it is too large to be read."""
    place = file_of(path, trace.rank)
    groups = {group: index for index, group in enumerate(trace.groups)}
    fields = list(Record._fields)
    at = fields.index("group")
    rows = []
    for record in trace.records:
        row: list[Any] = list(record)
        row[at] = groups[record.group]
        rows.append(row)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "rank": trace.rank,
        "ranks": trace.ranks,
        "clock": asdict(trace.clock),
        "saved": trace.saved,
        "lost": trace.lost,
        "provenance": trace.provenance,
        "groups": [group._asdict() for group in groups],
        "regions": [list(region) for region in trace.regions],
        "fields": fields,
        "records": rows,
    }
    documents.replace_file(place, documents.dumps(document))
    if (size := place.stat().st_size) > LARGEST:
        advice = "give passes.Log a smaller capacity, or only some operations"
        warn(f"{place}: expected a trace of at most {LARGEST} bytes, which mcr-trace can read, got {size}; {advice}")
    return place


def _groups(rows: Any) -> list[RecordedGroup]:
    if not isinstance(rows, list):
        raise ValueError(f"groups: expected a list, got a {type(rows).__name__}")
    found = [declared_types.check(RecordedGroup, row, f"groups[{index}]") for index, row in enumerate(rows)]
    for index, row in enumerate(found):
        if not 0 <= row["rank"] < len(row["ranks"]):
            raise ValueError(f"groups[{index}]: expected a rank below {len(row['ranks'])}, got {row['rank']}")
    return [RecordedGroup(**{**row, "ranks": tuple(row["ranks"])}) for row in found]


def _rows(fields: Any, rows: Any, where: str) -> dict[str, list[Any]]:
    """The columns of a list of rows, each a list with one value per field."""
    if (
        not declared_types.are([fields], tuple[str, ...])
        or not isinstance(rows, list)
        or len(set(fields)) != len(fields)
    ):
        raise ValueError(f"{where}: expected a list, and different names of its fields, got something else")
    for place, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(fields):
            raise ValueError(f"{where}[{place}]: expected a list of {len(fields)} values")
    return {name: [row[index] for row in rows] for index, name in enumerate(fields)}


def _records(document: dict[str, Any], groups: list[RecordedGroup]) -> list[Record]:
    columns = _rows(document["fields"], document["records"], "records")
    for name, default in Record._field_defaults.items():  # fields that older traces do not have
        columns.setdefault(name, [default] * len(document["records"]))
    declared_types.check_columns(Record, columns, "records", skip=["group"])
    if any(type(index) is not int or not 0 <= index < len(groups) for index in columns["group"]):
        raise ValueError(f"records.group: expected places in the list of {len(groups)} groups")
    for index, root in zip(columns["group"], columns["root"], strict=True):
        size = len(groups[index].ranks)
        if root is not None and not -1 <= root < size:
            raise ValueError(f"records.root: expected a rank of a group of {size}, or -1, got {root}")
    for name, known in _WORDS.items():
        unknown = set(columns[name]) - known - {None}
        if unknown:
            raise ValueError(f"records.{name}: expected some of {', '.join(sorted(known))}, got {unknown.pop()[:40]!r}")
    columns["group"] = [groups[index] for index in columns["group"]]
    spellings = {name: name and _C.canonical(name) for name in set(columns["backend"])}
    columns["backend"] = [spellings[name] for name in columns["backend"]]
    for name in ("in_splits", "out_splits"):
        columns[name] = list(map(tuple, columns[name]))
    return [Record(*values) for values in zip(*(columns[name] for name in Record._fields), strict=True)]


def _trace(document: dict[str, Any]) -> Trace:
    groups = _groups(document["groups"])
    columns = _rows(list(Region._fields), document["regions"], "regions")
    declared_types.check_columns(Region, columns, "regions")
    numbers = {name: document[name] for name in ("rank", "ranks", "lost", "saved")}
    if not declared_types.are(list(numbers.values()), int) or not 0 <= numbers["rank"] < numbers["ranks"]:
        raise ValueError("expected whole numbers for rank, ranks, lost and saved, and the rank below ranks")
    if not isinstance(document["provenance"], dict):
        raise ValueError("provenance: expected an object")
    if not isinstance(document["provenance"].get("job", ""), str):
        raise ValueError("provenance.job: expected a text")
    return Trace(
        clock=Clock(**declared_types.check(Clock, document["clock"], "clock")),
        records=_records(document, groups),
        regions=[Region(*region) for region in document["regions"]],
        provenance=document["provenance"],
        **numbers,
    )


def read(path: str | os.PathLike[str]) -> Trace:
    """Read one rank's trace.

    Raises InvalidArgumentError, with the file's name, if it is not a trace, is damaged or too large, or has another
    version.
    """
    document = documents.read(path, f"{path}: expected a trace that mcr_dl.trace.save has written", limit=LARGEST)
    try:
        if document["format"] != FORMAT or document["version"] != VERSION:
            message = f"{path}: expected a trace of version {VERSION}, got {document['format']} {document['version']}"
            raise InvalidArgumentError(message)
        return _trace(document)
    except InvalidArgumentError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        message = f"{path}: expected a trace that mcr_dl.trace.save has written: {type(error).__name__}: {error}"
        raise InvalidArgumentError(message) from error


def read_all(path: str | os.PathLike[str]) -> list[Trace]:
    """The traces of all ranks in rank order: of a folder, or those that ``save(path)`` wrote for a ``.json`` path.

    Raises InvalidArgumentError if there are none, or if ranks are missing or belong to another job.
    """
    place = Path(path)
    folder, stem = (place.parent, f"{place.stem}.") if place.suffix == ".json" else (place, None)
    found = []
    for each in sorted(folder.glob("*rank*.json")):
        match = _NAME.search(each.name)
        if match and (stem is None or each.name[: match.start()] + "." == stem):
            found.append(each)
    if not found and place.is_file() and _NAME.search(place.name):
        message = f"{path}: expected the folder with the traces of all ranks, got one rank's: give {place.parent}"
        raise InvalidArgumentError(message)
    if not found:
        message = f"{path}: expected files rank0.json, rank1.json, ..., got none"
        raise InvalidArgumentError(message)
    traces = sorted((read(each) for each in found), key=lambda trace: trace.rank)
    have, ranks = [trace.rank for trace in traces], traces[0].ranks
    if len(have) != ranks or have != list(range(ranks)) or any(trace.ranks != ranks for trace in traces):
        message = f"{path}: expected one file for each of {ranks} ranks, got those of ranks {have}"
        raise InvalidArgumentError(message)
    _require_one_job(path, traces)
    return traces


def _require_one_job(path: str | os.PathLike[str], traces: Sequence[Trace]) -> None:
    """Raise InvalidArgumentError for files of an earlier job; older files do not name theirs."""
    known = {trace.rank: job for trace in traces if (job := trace.provenance.get("job"))}
    if len(set(known.values())) > 1:
        made = ", ".join(f"rank {rank} {traces[rank].provenance.get('created', '')}" for rank in known)
        message = f"{path}: expected traces of one job, got those of several: {made}; remove the older ones"
        raise InvalidArgumentError(message)
