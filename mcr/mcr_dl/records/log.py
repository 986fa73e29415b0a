# SPDX-License-Identifier: Apache-2.0
"""The log: every call leaves a record in a ring of limited size, which all views read (docs/logging.md)."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from mcr_dl import _C
from mcr_dl.codecs.codecs import error_bound
from mcr_dl.runtime import handles, state


class RecordedGroup(NamedTuple):
    """A group as records name it; it may have ended. `instance` counts the recorded groups of that name before it."""

    name: str
    instance: int
    rank: int
    ranks: tuple[int, ...]

    @property
    def key(self) -> tuple[str, int]:
        """The identity of the group, equal on all its ranks."""
        return self.name, self.instance


class Record(NamedTuple):
    """One call on this rank. Times are ns of the process's steady clock; None: not yet, or not applicable."""

    number: int  # among all records of the process, from 1 on
    # Of a collective: in the group, equal on all ranks. Of a message: among this rank's. 0 if this rank refused it.
    seq: int
    group: RecordedGroup
    op: str  # as in the op table
    vectored: bool
    peer: bool  # a send or receive
    dtype: str
    red: str | None
    root: int | None  # or peer, as a group rank; -1: any
    tag: int | None
    backend: str | None  # the candidate that did it; None: not chosen yet
    asynchronous: bool
    in_count: int  # elements; an operation on one tensor has it as its output
    out_count: int
    in_splits: tuple[int, ...]  # elements per rank of a vectored call
    out_splits: tuple[int, ...]
    truncated: bool  # the splits were not kept
    nbytes: int  # the data size as nccl-tests counts it; of a vectored call this rank's larger side
    # The bytes for the backend, if a pass has changed their number. An all_reduce with a codec of variable size has
    # those of its first exchange.
    sent_bytes: int | None
    fused: bool  # it shared a buffer with other calls
    codec: str | None  # the codec that compressed it
    issue: int  # the call was made
    start: int | None  # its backend, or the pass that holds it, received it
    end: int | None  # it was seen to be complete
    wait_begin: int | None  # of the first Work.wait; None: it was complete before the program waited for it
    wait_end: int | None  # of the last one
    waited: int  # ns in all waits together
    state: str  # issued, started, completed, failed
    thread: int  # the system's id of the thread that made it
    caller: str | None  # the Python function that made it, if configure(debug=True)
    priority: int = 0  # of calls that a pass holds, the least one goes first
    key: str | None = None  # what the caller names the data

    def wait(self, now: int) -> tuple[int, int] | None:
        """When the program waited for an asynchronous call; its first wait may last until ``now``. None: it did not."""
        if self.wait_begin is None:
            return None
        return self.wait_begin, now if self.wait_end is None else self.wait_begin + self.waited

    @property
    def ends(self) -> tuple[int, int] | None:
        """The sender and the receiver of a message, as group ranks; None of a collective, and if one is not known."""
        if not self.peer or self.root is None or self.root < 0:
            return None
        return (self.group.rank, self.root) if self.op == "send" else (self.root, self.group.rank)

    @property
    def name(self) -> str:
        """The operation, with a "v" for the vectored form, as in tables and benchmarks."""
        return self.op + ("v" if self.vectored else "")

    @property
    def error_bound(self) -> str | None:
        """How far its codec may move a value, in words; None without a codec."""
        return None if self.codec is None else error_bound(self.codec)

    @property
    def latency(self) -> int | None:
        """ns from the call to its end."""
        return None if self.end is None else self.end - self.issue


Span: TypeAlias = tuple[int, int]  # numbers of records: [first, behind the last)

PASS = "log"  # the name of the pass that makes the records
_since = 0  # number of the first record that reset() has kept


def records(group: handles.Group = None, *, since: int = 0) -> list[Record]:
    """This process's records that are still in the ring, oldest first; of one group, or of all if None.

    ``since``: from this number on. Costs concurrent calls nothing; a record that is being written is left out. Raises
    InvalidTypeError or NotInitializedError if ``group`` is not a group or has ended.
    """
    wanted = None if group is None else _C.log_group_index(handles.core_group(group))
    found, groups = _read([(max(since, _since), _C.log_made() + 1)])
    if group is None:
        return found
    return [] if wanted is None else [record for record in found if record.group is groups[wanted]]


def _read(spans: list[Span]) -> tuple[list[Record], list[RecordedGroup]]:
    rows = _C.log_records(spans)
    groups = [RecordedGroup(name, instance, rank, tuple(ranks)) for name, instance, rank, ranks in _C.log_groups()]
    return [Record(row[0], row[1], groups[row[2]], *row[3:]) for row in rows], groups


def every_record(spans: list[Span]) -> list[Record]:
    """The records with these numbers that are still in the ring, of all groups, with those before ``reset``."""
    return _read(spans)[0]


def lost() -> int:
    """How many records the ring has overwritten, since ``reset``."""
    return int(max(0, min(_C.log_lost(), _C.log_made() - _C.log_capacity() + 1 - _since)))


OFF = (
    'the log is off and has no records: turn it on with mcr_dl.set_passes(["log"]), '
    "mcr_dl.configure(enabled=True) or MCR_DL_PASSES=log"
)


def is_on() -> bool:
    """Whether some group has the log among its passes. If it is off, views without records say so (``OFF``)."""
    return any(station.name == PASS for group in state.current().program_groups() for station in _C.passes(group))


def reset() -> None:
    """Forget all records so far; sequence numbers continue. Source: deepspeed.comm.reset_log."""
    global _since
    _since = _C.log_made() + 1
