# SPDX-License-Identifier: Apache-2.0
"""Issues the partitions of one backward pass in the plan's order, with a limit of bytes in flight."""

from __future__ import annotations

import heapq
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

import torch

from mcr_dl import _C
from mcr_dl.base.errors import McrError
from mcr_dl.schedule.bytescheduler.leader import TURN, Leader

_SUM, _MAX = torch.distributed.ReduceOp.SUM, torch.distributed.ReduceOp.MAX


@dataclass(eq=False)
class Partition:
    """A part of a gradient. ``tensor``: its memory, once the gradient is ready.

    ``gather``: the second half of a partition that is reduced in two operations, ready when the first is complete.
    ``shard``: what this rank brings to that second half. ``index``: in a leader's order. ``ready``, ``issued`` and
    ``ended``, when the end was noticed, are on ``time.perf_counter_ns()``.
    """

    name: str
    nbytes: int
    elements: int = 0
    tensor: torch.Tensor | None = None
    work: _C.Work | None = None
    complete: bool = False
    gather: Partition | None = None
    shard: torch.Tensor | None = None
    index: int = 0
    ready: int = 0
    issued: int = 0
    ended: int = 0
    mark: bytes = field(init=False, repr=False)  # of the partition in the digest of all that was issued

    def __post_init__(self) -> None:
        """Make the mark."""
        self.mark = f"{self.name} {self.nbytes}".encode()

    @property
    def last(self) -> Partition:
        """The operation that ends last: the partition is complete when it is."""
        return self.gather or self


@dataclass
class Transfers:
    """Starts the operations of partitions. ``halves``: as reduce_scatter and all_gather, else as all_reduce.

    ``backend``: the candidate that the program names. ``fastest``: that of gradients' all_reduces otherwise; None: the
    group chooses. ``use``: the partition that tells which parameters are in use.
    """

    group: _C.Group
    backend: str | None
    halves: bool
    fastest: str | None = None
    use: Partition | None = None

    @property
    def candidate(self) -> str | None:
        """The candidate of gradients' all_reduces."""
        return self.backend or self.fastest

    @property
    def multiple(self) -> int:
        """The elements of each partition are a multiple of this."""
        return self.group.size() if self.halves else 1

    @property
    def named(self) -> str:
        """The candidate that other operations name, so that none follows ``use()``.

        Its block belongs to the thread that issues the operation, which differs between the ranks.
        """
        return self.backend or "auto"

    def halve(self, partitions: Sequence[Partition], by_use: Sequence[Partition]) -> list[Partition]:
        """Give partitions their second halves, if they have any, which are returned in the order ``by_use``."""
        if not self.halves:
            return []
        for each in partitions:
            each.gather = Partition(f"{each.name}, gathered", each.nbytes)
        return [each.gather for each in by_use if each.gather is not None]

    def start(self, partition: Partition) -> _C.Work:
        """Start the operation of a partition that is ready."""
        memory = partition.tensor
        assert memory is not None
        if partition is self.use:
            return _C.all_reduce(memory, _MAX, self.group, True, backend=self.named)
        if partition.gather is not None:
            shard = partition.gather.shard = memory.new_empty(memory.numel() // self.group.size())
            return _C.reduce_scatter_tensor(shard, memory.view(-1), _SUM, self.group, True, backend=self.named)
        if partition.shard is not None:
            return _C.all_gather_into_tensor(memory.view(-1), partition.shard, self.group, True, backend=self.named)
        return self.reduce(memory)

    def reduce(self, memory: torch.Tensor, candidate: str | None = None) -> _C.Work:
        """Start the sum of a gradient's memory over the ranks, on a candidate or on that of all gradients."""
        return _C.all_reduce(memory, _SUM, self.group, True, backend=candidate or self.candidate or "auto")


@dataclass(eq=False)
class Issuer:
    """Issues partitions in one order that is equal on all ranks.

    A partition is issued when it is ready, all partitions before it are issued, and its bytes fit into the credit or no
    other is in flight. Readiness and completions decide only when that happens, and not the order; so ranks may differ
    in them. With a ``leader``, its rank takes the first ready partition of the order instead, and the others follow.
    Issuing is a role: one thread at a time has it, either the thread that made a partition ready, or one that
    waits, or the one that runs the callbacks of completed operations.
    """

    issue: Callable[[Partition], _C.Work]
    leader: Leader | None = None
    credit: int | None = None
    digest: int = 0  # of all partitions issued so far, in their order
    _queue: deque[Partition] = field(default_factory=deque)
    _flying: deque[Partition] = field(default_factory=deque)
    _used: int = 0
    _wanted: bool = False
    _role: threading.Lock = field(default_factory=threading.Lock)
    _counts: threading.Lock = field(default_factory=threading.Lock)
    _failure: BaseException | None = None
    _recorder: Callable[[Sequence[Partition]], None] | None = None
    _waits: list[tuple[int, int]] = field(default_factory=list)
    _pass: Sequence[Partition] = ()
    _order: Sequence[Partition] = ()  # of the leader's pass
    _undecided: int = 0  # partitions in it that are not in the queue yet
    _ready: list[int] = field(default_factory=list)  # a heap of indices in it: ready, not decided

    def record(self, recorder: Callable[[Sequence[Partition]], None] | None) -> list[tuple[int, int]]:
        """Give the recorder the partitions of each pass when it is complete, from the next one on; None ends that.

        Returns the waits since the last call, on ``time.perf_counter_ns()``. All partitions must be complete.
        """
        if self._recorder is not None:
            self._recorder(self._pass)
        waits, self._waits = self._waits, []
        self._recorder, self._pass = recorder, ()
        return waits

    @property
    def recording(self) -> bool:
        """Whether there is a recorder."""
        return self._recorder is not None

    def begin(self, order: Sequence[Partition], credit: int | None) -> None:
        """Take the partitions of the next backward pass; all earlier ones must be complete."""
        self.check()
        if self._recorder is not None:
            self._recorder(self._pass)
            self._pass = [*order]
        with self._counts:  # the callbacks of the pass before may still run
            for partition in order:
                partition.tensor, partition.work, partition.complete = None, None, False
        self.credit = credit
        if self.leader is None:
            self._queue.extend(order)
            return
        self._order, self._undecided = [*order], len(order)
        for index, partition in enumerate(order):
            partition.index = index
        if not self.leader.leads:
            self.credit = None
        self.leader.begin(len(order), self._decided, self._fail)

    def check(self) -> None:
        """Raise the error that an earlier operation ended with."""
        if self._failure is not None:
            text = f"ByteScheduler: an earlier operation failed: {self._failure}"
            raise McrError(text) from self._failure

    @property
    def failed(self) -> bool:
        """Whether an operation has failed."""
        return self._failure is not None

    @property
    def idle(self) -> bool:
        """Whether every partition is complete."""
        return not self._queue and not self._flying and not self._undecided

    def ready(self, partition: Partition, tensor: torch.Tensor) -> None:
        """The partition's gradient is in this memory."""
        partition.ready = time.perf_counter_ns()
        partition.tensor = tensor
        if self.leader is not None and self.leader.leads:
            with self._counts:
                heapq.heappush(self._ready, partition.index)

    def advance(self) -> None:
        """Issue all that can be issued now; another thread may do it instead of this one."""
        self._wanted = True
        while self._wanted and self._role.acquire(blocking=False):
            try:
                self._wanted = False
                self._issue_ready()
            finally:
                self._role.release()

    def wait(self, partition: Partition, meanwhile: Callable[[], bool] | None = None) -> None:
        """Wait until the partition is complete, and issue others meanwhile. Raises the operation's error.

        Before this thread sleeps, it calls ``meanwhile`` until there is nothing left to do for it.
        """
        if not partition.complete:
            begin = time.perf_counter_ns()
            self._wait(partition, meanwhile)
            if self._recorder is not None:
                self._waits.append((begin, time.perf_counter_ns()))

    def _wait(self, partition: Partition, meanwhile: Callable[[], bool] | None) -> None:
        while not partition.complete:
            self.check()
            self.advance()
            oldest = self._oldest(partition)
            if oldest is not None:
                assert oldest.work is not None
                if meanwhile is None or oldest.work.is_completed() or not meanwhile():
                    self._wait_for(oldest, oldest.work)
            else:
                self._pause()

    def _pause(self) -> None:
        """Wait while nothing is in flight: another thread issues, or the leader's next decision has not arrived."""
        if self.leader is not None and not self.leader.leads and not self._queue:
            self.leader.pause()
        else:
            time.sleep(TURN)

    def collect(self) -> None:
        """End all operations that are complete, without waiting. Raises the error of one that failed."""
        with self._counts:
            flying = list(self._flying)
        for partition in flying:
            work = partition.work
            if work is not None and work.is_completed():
                self._wait_for(partition, work)

    def _oldest(self, partition: Partition) -> Partition | None:
        """The oldest operation in flight; raises an error if there is none, and none can be issued."""
        leader = self.leader
        with self._counts:  # the state of one moment: other threads issue meanwhile
            if self._flying:
                return self._flying[0]
            if leader is not None and ((self._undecided and not leader.leads) or self._ready):
                return None
            if partition.complete or (self._queue and self._queue[0].tensor is not None):
                return None
            missing = self._queue[0].name if self._queue else "it"
        message = (
            f"ByteScheduler: {partition.name} is not complete, and {missing} has no gradient yet: expected no use of "
            "gradients before the end of the backward pass"
        )
        raise McrError(message)

    def _wait_for(self, partition: Partition, work: _C.Work) -> None:
        try:
            work.wait()
        except BaseException as error:
            if isinstance(error, Exception):
                error.args = (f"{error}; ByteScheduler waits for {partition.name}",)
                self._failure = error
            raise
        self._end(partition, work)

    def _decided(self, indices: list[int]) -> None:
        """The leader's next partitions, on the thread that runs callbacks."""
        with self._counts:
            self._queue.extend(self._order[index] for index in indices)
            self._undecided -= len(indices)
        with suppress(Exception):  # which the next wait raises
            self.advance()

    def break_off(self, order: Sequence[Partition], error: McrError) -> NoReturn:
        """Raise the error, as all later calls do; before that, end the pass's operations, for the other ranks."""
        for partition in order:
            self.wait(partition)
        self._fail(error)
        raise error

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def _decide(self, leader: Leader) -> None:
        """On the leader: take the first ready partitions of the order that fit into the credit."""
        chosen: list[int] = []
        with self._counts:
            used = self._used + sum(partition.nbytes for partition in self._queue)
            while self._ready:
                partition = self._order[self._ready[0]]
                busy = self._flying or self._queue
                if busy and self.credit is not None and used + partition.nbytes > self.credit:
                    break
                chosen.append(heapq.heappop(self._ready))
                self._queue.append(partition)
                used += partition.nbytes
            self._undecided -= len(chosen)
        if chosen:
            leader.send(chosen)

    def _issue_ready(self) -> None:
        try:
            self._issue_in_order()
        except Exception as error:
            self._failure = self._failure or error
            raise

    def _issue_in_order(self) -> None:
        if self.leader is not None and self.leader.leads and self._failure is None:
            self._decide(self.leader)
        while self._failure is None and self._queue and self._queue[0].tensor is not None:
            partition = self._queue[0]
            with self._counts:
                if self._flying and self.credit is not None and self._used + partition.nbytes > self.credit:
                    return
                self._used += partition.nbytes
            partition.issued = time.perf_counter_ns()
            work = partition.work = self.issue(partition)
            self.digest = zlib.crc32(partition.mark, self.digest)
            with self._counts:
                self._flying.append(partition)
                self._queue.popleft()
            if self.credit is not None or partition.gather is not None or self._recorder is not None:
                work._on_done(partial(self._completed, partition, work))

    def _completed(self, partition: Partition, work: _C.Work) -> None:
        """Called on the thread that runs callbacks, or at once."""
        error = work.exception()
        if error is not None:
            self._failure = self._failure or error
            return
        self._end(partition, work)
        with suppress(Exception):  # which the next wait raises
            self.advance()

    def _end(self, partition: Partition, work: _C.Work) -> None:
        with self._counts:
            if partition.complete or partition.work is not work:  # it ended before, and may be in the next pass by now
                return
            if partition.gather is not None:  # before its first half is seen to be complete
                partition.gather.ready, partition.gather.tensor = time.perf_counter_ns(), partition.tensor
            partition.complete, partition.ended = True, time.perf_counter_ns()
            self._used -= partition.nbytes
            self._flying.remove(partition)
