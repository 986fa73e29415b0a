# SPDX-License-Identifier: Apache-2.0
"""Trace files: the log of each rank as JSON, with what is needed to lay them side by side."""

from __future__ import annotations

import json
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
from mcr_dl._errors import InvalidArgumentError
from mcr_dl.passes.log import Record, RecordedGroup
from mcr_dl.trace._clock import WALL, Clock
from mcr_dl.trace._regions import Region

FORMAT, VERSION = "mcr-dl trace", 1
_NAME = re.compile(r"(?:^|\.)rank(\d+)\.json$")


@dataclass(frozen=True)
class Trace:
    """What one rank has recorded. Times are ns of its steady clock; ``clock.offset`` makes them rank 0's."""

    rank: int  # in the job
    ranks: int
    clock: Clock
    records: list[Record]
    regions: list[Region]
    lost: int  # records that the ring had overwritten
    saved: int  # when, on the same clock
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def groups(self) -> list[RecordedGroup]:
        """The groups of its records, in the order of their first calls."""
        return list(dict.fromkeys(record.group for record in self.records))

    def wall(self, time: int) -> int:
        """A time of this rank as ns since 1970."""
        return time - self.clock.steady + self.clock.wall


def offsets(traces: Sequence[Trace]) -> list[int]:
    """What to add to the times of each trace to have all on one clock, rank 0's if possible.

    If a clock was not compared with rank 0's, all are aligned by what their hosts take for the time of day.
    """
    if all(trace.clock.method != WALL for trace in traces):
        return [trace.clock.offset for trace in traces]
    ahead = [trace.clock.wall - trace.clock.steady for trace in traces]
    return [each - ahead[0] for each in ahead]


def file_of(path: str | os.PathLike[str], rank: int) -> Path:
    """Where a rank's trace goes: `out.rank3.json` for `out.json`, `folder/rank3.json` for a folder."""
    place = Path(path)
    if place.suffix == ".json":
        return place.with_name(f"{place.stem}.rank{rank}.json")
    return place / f"rank{rank}.json"


def provenance() -> dict[str, Any]:
    """What was measured where, with which versions."""
    from mcr_dl.tuning.host import host, software

    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "program": Path(sys.argv[0]).name if sys.argv else "",
        "machine": asdict(host()),
        "software": asdict(software(_C.backend_status())),
    }


def write(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Write one rank's trace, making folders as needed; returns the file."""
    place = file_of(path, trace.rank)
    place.parent.mkdir(parents=True, exist_ok=True)
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
    partial = place.with_suffix(f".{os.getpid()}.part")
    partial.write_text(json.dumps(document, separators=(",", ":")))
    partial.replace(place)
    return place


def _record(fields: dict[str, Any], groups: list[RecordedGroup]) -> Record:
    fields["group"] = groups[fields["group"]]
    for name in ("in_splits", "out_splits"):
        fields[name] = tuple(fields[name])
    return Record(**fields)


def read(path: str | os.PathLike[str]) -> Trace:
    """One rank's trace. Raises InvalidArgumentError naming the file if it is none of this version; OSError."""
    try:
        document = json.loads(Path(path).read_text())
        if document["format"] != FORMAT or document["version"] != VERSION:
            message = f"{path}: expected a trace of version {VERSION}, got {document['format']} {document['version']}"
            raise InvalidArgumentError(message)
        groups = [RecordedGroup(**{**group, "ranks": tuple(group["ranks"])}) for group in document["groups"]]
        fields = document["fields"]
        records = [_record(dict(zip(fields, row, strict=True)), groups) for row in document["records"]]
        return Trace(
            rank=document["rank"],
            ranks=document["ranks"],
            clock=Clock(**document["clock"]),
            records=records,
            regions=[Region(*region) for region in document["regions"]],
            lost=document["lost"],
            saved=document["saved"],
            provenance=document["provenance"],
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        message = f"{path}: expected a trace that mcr_dl.trace.save has written: {type(error).__name__}: {error}"
        raise InvalidArgumentError(message) from error


def read_all(path: str | os.PathLike[str]) -> list[Trace]:
    """The traces of all ranks in rank order: of a folder, or those that ``save(path)`` wrote for a ``.json`` path.

    Raises InvalidArgumentError if there is none, or if ranks are missing or are of another job.
    """
    place = Path(path)
    folder, stem = (place.parent, f"{place.stem}.") if place.suffix == ".json" else (place, None)
    found = []
    for each in sorted(folder.glob("*rank*.json")):
        match = _NAME.search(each.name)
        if match and (stem is None or each.name[: match.start()] + "." == stem):
            found.append(each)
    if not found:
        message = f"{path}: expected files rank0.json, rank1.json, ..., got none"
        raise InvalidArgumentError(message)
    traces = sorted((read(each) for each in found), key=lambda trace: trace.rank)
    have, ranks = [trace.rank for trace in traces], traces[0].ranks
    if have != list(range(ranks)) or any(trace.ranks != ranks for trace in traces):
        message = f"{path}: expected one file for each of {ranks} ranks, got those of ranks {have}"
        raise InvalidArgumentError(message)
    return traces
