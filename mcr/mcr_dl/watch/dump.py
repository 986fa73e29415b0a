# SPDX-License-Identifier: Apache-2.0
"""Dumps: every rank's report on an alarm as a file in ``MCR_DL_DUMP_DIR``."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mcr_dl.base import declared_types, documents, variables
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.base.warning import say
from mcr_dl.watch._diagnosis import diagnose, ranks_text
from mcr_dl.watch._report import FORMAT, VERSION, Report

VARIABLE = "MCR_DL_DUMP_DIR"
_NAME = re.compile(r"^alarm(\d+)\.rank(\d+)\.json$")
_job = ""  # an identity of this process's job, equal on all its ranks
_MOST = 8  # alarms of which a process leaves dumps: the first ones are the informative ones
_LARGEST = 256 * documents.MIB  # bytes of a file that is read
_MOST_RANKS, _LATEST = 1 << 20, 1e11  # the latest time is in seconds since 1970
_WORD = str | None
# The fields of rows that the text needs, and those that a dump may lack.
_CALL = {"seq": int, "op": str, "dtype": _WORD, "red": _WORD, "root": int | None, "bytes": int | None}
_CALL |= {"backend": _WORD, "async": bool, "caller": _WORD, "history": str}
_DUMP: dict[str, Any] = {"alarm": dict, "rank": int, "size": int, "pid": int, "host": str, "time": float | int}
_DUMP |= {"groups": list, "threads": list, "pending": list}
_ROWS: dict[str, dict[str, Any]] = {
    "": _DUMP,
    "alarm": {"by": int, "kind": str, "group": str, "text": str, "seq": int, "message": bool},
    "groups": {"group": str, "label": str, "ranks": tuple[int, ...], "collectives": int, "calls": list},
    "threads": {"op": str, "backend": _WORD, "label": _WORD, "seq": int, "age": float | int, "waits": bool},
    "pending": {"op": str, "backend": _WORD, "label": _WORD, "seq": int, "age": float | int},
    "groups.calls": _CALL,
}
_OPTIONAL: dict[str, dict[str, Any]] = {
    "groups": {"derived": bool},
    "groups.calls": {"layout": _WORD, "priority": int},
    "": {"place": _WORD, "ended": _WORD, "unmatched": tuple[str, ...], "job": str},
}


def prepare_folder() -> None:
    """Make the folder, and warn now if it cannot hold dumps: after a failure it would be too late."""
    place = variables.path(VARIABLE)
    if place is not None:
        variables.prepare_folder(VARIABLE, place, "dumps")


def set_job(identity: str) -> None:
    """The identity of this process's job in later dumps, whose folder is known from now on."""
    global _job
    _job = identity
    variables.path(VARIABLE)


def write(number: int, report: Report, alarm: Mapping[str, Any]) -> None:
    """Write this process's dump, if dumps are on. An error of the disk is reported on stderr and not raised: the
    problem behind the alarm is worse.
    """
    place = variables.path(VARIABLE)
    if place is None or number >= _MOST:
        return
    file = place / f"alarm{number}.rank{report['rank']}.json"
    try:
        documents.replace_file(file, documents.dumps({**report, "alarm": dict(alarm), "job": _job}))
    except OSError as error:
        say(f"mcr_dl: {file} could not be written: {error}")


def _check_rows(file: Path, where: str, rows: Sequence[Any]) -> None:
    needed, optional = _ROWS[where], _OPTIONAL.get(where, {})
    if not declared_types.are(rows, dict):
        raise InvalidArgumentError(f"{file}: {where}: expected objects, got others")
    for name, hint in {**needed, **optional}.items():
        values = [row[name] for row in rows if name in row]
        if (name in needed and len(values) < len(rows)) or not declared_types.are(values, hint):
            what = f"{where}.{name}" if where else name
            message = (
                f"{file}: {what}: expected values of the type {declared_types.type_text(hint)}, got others, or none"
            )
            raise InvalidArgumentError(message)


def _checked(file: Path) -> Report:
    content = documents.read(file, str(file), limit=_LARGEST)
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
        raise InvalidArgumentError(f"{file}: expected a dump of version {VERSION}, got something else")
    _check_rows(file, "", [content])
    _check_rows(file, "alarm", [content["alarm"]])
    rank, size, moment = content["rank"], content["size"], content["time"]
    if not 0 <= rank < size <= _MOST_RANKS:
        message = f"expected a rank below the size, and at most {_MOST_RANKS} ranks, got {rank!r:.40} and {size!r:.40}"
        raise InvalidArgumentError(f"{file}: {message}")
    if not 0 <= moment <= _LATEST:
        raise InvalidArgumentError(f"{file}: time: expected seconds since 1970, got {moment!r:.40}")
    for name in ("groups", "threads", "pending"):
        _check_rows(file, name, content[name])
    _check_rows(file, "groups.calls", [call for group in content["groups"] for call in group["calls"]])
    return content


def read(place: Path) -> dict[int, dict[int, Report]]:
    """Read the dumps of the newest job in a folder: by alarm and rank; older and broken ones are named on stderr.

    Raises InvalidArgumentError if there are none, or only broken ones.
    """
    reports: dict[tuple[int, int], Report] = {}
    broken: list[InvalidArgumentError] = []
    for file in sorted(place.iterdir()) if place.is_dir() else []:
        match = _NAME.match(file.name)
        if match:
            try:
                reports[int(match[1]), int(match[2])] = _checked(file)
            except InvalidArgumentError as error:
                broken.append(error)
    if broken and not reports:
        raise broken[0]
    for each in broken:
        print(f"{each}; the other dumps are used", file=sys.stderr)
    if not reports:
        raise InvalidArgumentError(f"{place}: expected a folder with dumps (alarm0.rank0.json, ...), found none")
    newest = max(reports.values(), key=lambda report: float(report["time"])).get("job", "")
    found: dict[int, dict[int, Report]] = {}
    for (alarm, rank), report in reports.items():
        if report.get("job", "") == newest:
            found.setdefault(alarm, {})[rank] = report
    older = len(reports) - sum(map(len, found.values()))
    if older:
        print(f"{place}: {older} dumps of earlier jobs are not used", file=sys.stderr)
    return found


def told(dumps: Mapping[int, Mapping[int, Report]]) -> str:
    """One paragraph on the first alarm, and a line for each later one."""
    first, *later = sorted(dumps)
    lines = [_told(first, dumps[first])]
    for number in later:
        alarm = next(iter(dumps[number].values()))["alarm"]
        lines.append(f"Later, alarm {number}: {alarm['kind']} on rank {alarm['by']}: {alarm['text']}")
    return "\n".join(lines)


def document(dumps: Mapping[int, Mapping[int, Report]]) -> dict[str, Any]:
    """The content of ``told`` as JSON: the alarms in order, and the text."""
    alarms = [
        {"number": number, **next(iter(reports.values()))["alarm"], "ranks_with_dumps": sorted(reports)}
        for number, reports in sorted(dumps.items())
    ]
    return {"alarms": alarms, "text": told(dumps)}


def _told(number: int, reports: Mapping[int, Report]) -> str:
    report = next(iter(reports.values()))
    alarm, size = report["alarm"], report["size"]
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(report["time"]))
    silent = {rank: "it has left no dump" for rank in range(size) if rank not in reports}
    text = f"Alarm {number}, {when}: {alarm['kind']} on rank {alarm['by']}: {alarm['text']}."
    if silent:
        text += f" There are dumps of {len(reports)} of {size} ranks; {ranks_text(list(silent))} left none."
    group = next((one for each in reports.values() for one in each["groups"] if one["group"] == alarm["group"]), None)
    if alarm["kind"] == "desync" or group is None:
        return text
    found = diagnose(reports, silent, alarm["group"], group["ranks"], alarm["seq"], message=alarm["message"])
    return f"{text} {found}"
