# SPDX-License-Identifier: Apache-2.0
"""Traces in the basic format of PARAM's commsTraceReplay (facebookresearch/param), to replay their calls elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcr_dl import _C
from mcr_dl.records.log import Record, RecordedGroup
from mcr_dl.trace import _files
from mcr_dl.trace._files import Trace, first_common, lost_somewhere

Entry = dict[str, Any]
# The group, its ranks and the number: where ranks give one new_group() different members, its groups share a name.
_Collective = tuple[tuple[str, int], tuple[int, ...], int]
_Ends = tuple[tuple[str, int], tuple[int, int] | None, int | None]

# MCR-DL's names -> PARAM's. Forms on one buffer are its "base" ones; every exchange is one with splits.
_NAMES = {
    "all_gather": "all_gather_base",
    "all_gatherv": "all_gather_v",
    "reduce_scatter": "reduce_scatter_base",
    "reduce_scatterv": "reduce_scatter_v",
    "all_to_all": "all_to_allv",
    "all_to_allv": "all_to_allv",
    **{name: name for name in ("all_reduce", "broadcast", "reduce", "gather", "scatter", "barrier", "send", "recv")},
}
_DTYPES = {"float32", "float64", "float16", "bfloat16", "int32", "int8", "uint8", "bool", "int16", "int64"}
_DTYPE_NAMES = {"int16": "short", "int64": "long"}


@dataclass
class Export:
    """One list of entries per rank, and the calls that PARAM cannot express: reason -> number of calls."""

    ranks: list[list[Entry]] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def leave_out(self, reason: str) -> None:
        """Count a call that is left out."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1


def _problem(record: Record) -> str | None:
    if record.state == "failed":
        return "calls that failed"
    if record.name not in _NAMES:
        return f"{record.name}: no such operation in PARAM"
    if record.dtype not in _DTYPES and record.op != "barrier":
        return f"dtype {record.dtype}: no such type in PARAM"
    if record.truncated:
        return "vectored calls whose splits were not kept"
    if record.peer and record.ends is None:
        return "receives from any rank that did not end"
    return None


class _Kept:
    """The calls that the export has. A collective that one rank leaves out or has not made, and a message without its
    other half, are left out on all ranks: in a replay the other ranks would wait for them.
    """

    def __init__(self, traces: Sequence[Trace]) -> None:
        self._first = first_common(traces)
        self._left_out: dict[_Collective, str] = {}
        self._made: Counter[_Collective] = Counter()
        self._messages: Counter[tuple[_Ends, str]] = Counter()
        for record in (record for trace in traces for record in trace.records):
            problem = _problem(record)
            if record.peer:
                self._messages[_ends(record), record.op] += problem is None
            elif record.seq:
                self._made[_collective(record)] += 1
                if problem is not None:
                    self._left_out[_collective(record)] = problem

    def problems(self, trace: Trace) -> Iterator[tuple[Record, str | None]]:
        """The calls of a rank, each with the reason why it is left out."""
        turns: Counter[tuple[_Ends, str]] = Counter()
        for record in trace.records:
            problem = _problem(record)
            if lost_somewhere(record, self._first):
                problem = "the log of a rank has lost calls before it"
            elif problem is None and not record.peer:
                problem = self._problem_elsewhere(record)
            elif problem is None:
                ends = _ends(record)
                turns[ends, record.op] += 1
                other = "recv" if record.op == "send" else "send"
                if turns[ends, record.op] > self._messages[ends, other]:
                    problem = "messages that the other rank did not complete"
            yield record, problem

    def _problem_elsewhere(self, record: Record) -> str | None:
        collective = _collective(record)
        if collective in self._left_out:
            return self._left_out[collective]
        missing = self._made[collective] < len(record.group.ranks)
        return "collectives that another rank did not make" if missing else None


def _collective(record: Record) -> _Collective:
    return record.group.key, record.group.ranks, record.seq


def _ends(record: Record) -> _Ends:
    """The group of a message, its sender and receiver, and its tag: messages of the same ends match in order."""
    return record.group.key, record.ends, record.tag


def _sizes(record: Record) -> Entry:
    """Elements in and out; an operation on one tensor reads and writes it."""
    inside = record.out_count if record.in_count == 0 and record.op in _ONE_TENSOR else record.in_count
    dtype = _DTYPE_NAMES.get(record.dtype, record.dtype)
    return {"in_msg_size": inside, "out_msg_size": record.out_count, "dtype": dtype}


_ONE_TENSOR = {row["name"] for row in _C.ops() if row["in_place"]}


def _splits(record: Record) -> Entry:
    if record.vectored:
        return {"in_split": list(record.in_splits), "out_split": list(record.out_splits)}
    each = record.in_count // len(record.group.ranks)
    return {"in_split": [each] * len(record.group.ranks), "out_split": [each] * len(record.group.ranks)}


def _call(record: Record, group: int, time: int) -> Entry:
    entry: Entry = {
        "comms": _NAMES[record.name],
        "req": record.number,
        "pg_id": group,
        "world_size": len(record.group.ranks),
        "startTime_ns": time,
        "markers": [record.caller or record.name],
    }
    if record.op == "barrier":
        return entry
    entry.update(_sizes(record))
    if record.vectored or record.op == "all_to_all":
        entry.update(_splits(record))
    ranks = record.group.ranks
    if record.ends is not None:
        source, target = (ranks[each] for each in record.ends)
        entry.update(src_rank=source, dst_rank=target, use_batch=False)
    elif record.root is not None:
        entry["root"] = ranks[record.root]
    return entry


def _wait(record: Record, group: int, time: int) -> Entry:
    return {"comms": "wait", "req": record.number, "pg_id": group, "startTime_ns": time, "markers": ["wait"]}


def _timed(
    trace: Trace, offset: int, ids: dict[RecordedGroup, int], kept: _Kept, export: Export
) -> Iterator[tuple[int, Entry]]:
    for record, problem in kept.problems(trace):
        if problem is not None:
            export.leave_out(problem)
            continue
        group = ids[record.group]
        yield record.issue, _call(record, group, record.issue + offset)
        # A replay may start every call without waiting: a blocking call becomes one that is waited for at once, and one
        # that was complete before the program waited for it, or that it never waited for, has its wait at its end.
        waited = record.wait_begin if record.asynchronous and record.wait_begin is not None else record.end
        if waited is not None:
            yield waited, _wait(record, group, waited + offset)


def param(traces: Sequence[Trace]) -> Export:
    """The traces of all ranks in the form that PARAM's replay reads.

    Each rank has its process groups, then its calls and waits. Calls that the log of one rank has lost, or that one
    rank leaves out or has not made, are left out on all ranks; messages are if a log has lost calls, or if the other
    rank has no such message. Sizes are in elements, ranks are the job's, groups have equal numbers on all ranks, times
    are on one clock.
    """
    keys = list(dict.fromkeys((group.key, group.ranks) for trace in traces for group in trace.groups))
    export, kept = Export(), _Kept(traces)
    for trace, offset in zip(traces, _files.offsets(traces), strict=True):
        ids = {group: keys.index((group.key, group.ranks)) for group in trace.groups}
        entries: list[Entry] = [
            {"comms": "init", "pg_id": index, "req": -1, "world_size": len(ranks), "global_ranks": list(ranks)}
            for index, (_, ranks) in enumerate(keys)
        ]
        timed = sorted(_timed(trace, offset, ids, kept, export), key=lambda each: each[0])
        export.ranks.append(entries + [entry for _, entry in timed])
    return export
