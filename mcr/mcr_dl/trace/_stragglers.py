# SPDX-License-Identifier: Apache-2.0
"""How long the ranks waited for the slowest one: records of one collective, matched over the ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from mcr_dl.base import agreement
from mcr_dl.records import statistics
from mcr_dl.records.log import Record
from mcr_dl.runtime import meetings, state

Mine = list[list[Any]]  # group, instance, seq, latency in ns, ranks of the group
MOST = 1 << 19  # collectives of a rank, and of the answer: in JSON a part of what a rank may leave at the store
Match = dict[tuple[str, int, int], tuple[int, int]]  # group, instance, seq -> lowest latency, the rank that had it


def _key(record: Record) -> tuple[str, int, int]:
    return (*record.group.key, record.seq)


def mine(records: Iterable[Record]) -> Mine:
    """This rank's newest completed collectives. Messages are left out, as their numbers differ between ranks."""
    found = [
        [*_key(record), record.latency, len(record.group.ranks)]
        for record in statistics.ended(records)
        if not record.peer and record.seq
    ]
    return found[-MOST:]


def match(everyone: Sequence[Mine]) -> list[list[Any]]:
    """The collectives that all ranks of their group have recorded, each with its lowest latency and the rank that had
    it. If they are more than ``MOST``, the newest ones of each group, of which all groups get an equal number.

    The rank that came last waited for no other rank: its latency is the lowest, and is the time of the transfer.
    """
    found: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    sizes: dict[tuple[str, int, int], int] = {}
    for rank, rows in enumerate(everyone):
        for group, instance, seq, latency, size in rows:
            found.setdefault((group, instance, seq), []).append((latency, rank))
            sizes[group, instance, seq] = size
    rows = [[*key, *min(latencies)] for key, latencies in found.items() if len(latencies) == sizes[key]]
    return rows if len(rows) <= MOST else _newest(rows)


def _newest(rows: Iterable[list[Any]]) -> list[list[Any]]:
    groups: dict[tuple[str, int], list[list[Any]]] = {}
    for row in rows:
        groups.setdefault((row[0], row[1]), []).append(row)
    each = max(MOST // len(groups), 1)
    return [row for some in groups.values() for row in sorted(some, key=lambda row: int(row[2]))[-each:]]


def exchange(records: Iterable[Record]) -> Match:
    """Match this rank's records with those of all other ranks: every rank of the job calls this."""
    current = state.current()
    store = meetings.meet_all("log_summary", current.default_timeout)
    rank, size = current.launch.rank, current.launch.size
    rows = agreement.agree(store, rank, size, "records", mine(records), match, function="log_summary")
    return {(group, instance, seq): (least, first) for group, instance, seq, least, first in rows}


def analysis(records: Iterable[Record], matched: Match) -> dict[str, dict[int, dict[str, Any]]]:
    """By operation and size: this rank's time in the transfer, and waiting for the rank that came last. In ms."""
    result: dict[str, dict[int, dict[str, Any]]] = {}
    for (name, nbytes), part in statistics.by_size(records).items():
        both = [
            (record.latency or 0, *matched[_key(record)])
            for record in part
            if not record.peer and _key(record) in matched
        ]
        if not both:
            continue
        transfer = [least / 1e6 for _, least, _ in both]
        waiting = [(latency - least) / 1e6 for latency, least, _ in both]
        result.setdefault(name, {})[nbytes] = {
            "count": len(both),
            "total_comm_lat_ms": sum(transfer),
            "total_straggler_ms": sum(waiting),
            "avg_comm_lat_ms": statistics.trimmed_mean(transfer),
            "avg_straggler_ms": statistics.trimmed_mean(waiting),
            "msg_size_bytes": nbytes,
            "msg_size_str": statistics.size_text(nbytes),
            "last_ranks": dict(sorted(Counter(rank for _, _, rank in both).items())),
        }
    return result
