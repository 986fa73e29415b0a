# SPDX-License-Identifier: Apache-2.0
"""Traces as dumps of torch's flight recorder, for ``torchfrtrace``: which rank has not made which call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mcr_dl.libraries import registry
from mcr_dl.records.log import Record, RecordedGroup
from mcr_dl.trace._files import Trace, first_common, lost_somewhere

Entry = dict[str, Any]
VERSION = "2.10"

_NAMES = {
    "all_gather": "_all_gather_base",
    "all_gatherv": "all_gather_v",
    "reduce_scatter": "_reduce_scatter_base",
    "reduce_scatterv": "reduce_scatter_v",
}
_STATES = {"issued": "scheduled", "started": "started", "completed": "completed", "failed": "started"}


@dataclass(frozen=True)
class _Place:
    """A process group as torch's analyzer sees it, and the number of a call in it."""

    name: str
    ranks: tuple[int, ...]
    seq: int
    peer: bool


def _name_of(group: RecordedGroup) -> str:
    return group.name if group.instance == 0 else f"{group.name}#{group.instance}"


class _Places:
    """Numbers the calls. The analyzer matches calls of one number on all ranks of a group; the messages from one rank
    to another with one tag form a group of these two ranks, within which MPI and gloo keep them in order.
    """

    def __init__(self) -> None:
        self._messages: Counter[str] = Counter()

    def of(self, record: Record) -> _Place | None:
        """The group and number of a call; None for a refused call, and an unmatched receive from any rank."""
        ranks = record.group.ranks
        if not record.seq:
            return None
        if not record.peer:
            return _Place(_name_of(record.group), ranks, record.seq, False)
        if record.ends is None:
            return None
        source, target = record.ends
        name = f"{_name_of(record.group)}/{source}->{target}/{record.tag}"
        self._messages[name] += 1
        return _Place(name, (ranks[source], ranks[target]), self._messages[name], True)


def _profiling_name(record: Record, place: _Place) -> str:
    library = registry.describe((record.backend or "").partition(":")[0]).recorder
    if not record.peer:
        return f"{library}:{_NAMES.get(record.name, record.op)}"
    members = sorted(place.ranks)
    source, target = (members.index(rank) for rank in place.ranks)
    ends = f"send {source}->{target}" if record.op == "send" else f"recv {target}<-{source}"
    return f"{library}:{ends}"


def _sizes(record: Record) -> tuple[int, int]:
    """Elements in and out. Sizes that may differ between ranks are 0, as the analyzer compares them over the ranks."""
    inside, outside = record.in_count, record.out_count
    if record.op == "all_to_all":
        return inside, outside
    if record.vectored:
        total = {"all_gather": (0, outside), "reduce_scatter": (inside, 0)}
        return total.get(record.op, (0, 0))
    if record.op == "gather":
        return inside, 0
    if record.op == "scatter":
        return 0, outside
    return (outside, outside) if inside == 0 else (inside, outside)


def _entry(record: Record, place: _Place, number: int, trace: Trace) -> Entry:
    inside, outside = _sizes(record)
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": (place.name, place.name),
        "collective_seq_id": place.seq,
        "p2p_seq_id": place.seq if place.peer else 0,
        "op_id": record.number,
        "profiling_name": _profiling_name(record, place),
        "time_created_ns": trace.wall(record.issue),
        "time_discovered_started_ns": None if record.start is None else trace.wall(record.start),
        "time_discovered_completed_ns": None if record.end is None else trace.wall(record.end),
        "duration_ms": None if record.latency is None else record.latency / 1e6,
        "input_sizes": [[inside]],
        "output_sizes": [[outside]],
        "input_dtypes": [record.dtype],
        "output_dtypes": [record.dtype],
        "state": _STATES[record.state],
        "retired": record.end is not None,
        "timeout_ms": 0,
        "is_p2p": place.peer,
        "frames": [{"name": record.caller, "filename": "?", "line": 0}] if record.caller else [],
        "mcr_backend": record.backend,
    }


def flight_recorder(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """The object to pickle for each rank. Calls that the ring of one rank has lost are left out on all ranks.

    Messages are left out if a ring has lost some; so are receives from any rank that did not end, as it is then unknown
    which send belongs to which receive.
    """
    first = first_common(traces)
    dumps = []
    for trace in traces:
        places = _Places()
        groups: dict[str, tuple[int, ...]] = {_name_of(group): group.ranks for group in trace.groups}
        entries: list[Entry] = []
        for record in trace.records:
            if lost_somewhere(record, first):
                continue
            place = places.of(record)
            if place is not None:
                groups[place.name] = place.ranks
                entries.append(_entry(record, place, len(entries), trace))
        config = {name: {"name": name, "desc": name, "ranks": str(list(ranks))} for name, ranks in groups.items()}
        dumps.append({"version": VERSION, "pg_config": config, "pg_status": {}, "entries": entries})
    return dumps
