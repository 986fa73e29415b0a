# SPDX-License-Identifier: Apache-2.0
"""How partitions of gradients are issued: within the credit, and once for each pass."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mcr_dl.base.errors import McrError
from mcr_dl.schedule.bytescheduler import leader
from mcr_dl.schedule.bytescheduler.issue import Issuer, Partition
from mcr_dl.schedule.bytescheduler.leader import Leader


class _Operation:
    """Ends when the test calls ``done``; a wait for it returns at once."""

    def __init__(self, _: Partition) -> None:
        self.done: Callable[[], None] = lambda: None

    def _on_done(self, callback: Callable[[], None]) -> None:
        self.done = callback

    def is_completed(self) -> bool:
        """It is."""
        return True

    def wait(self) -> None:
        """It ends at once."""

    def exception(self) -> None:
        """There is none."""


def test_credit_in_flight() -> None:
    """Operations in flight never exceed the credit, except for one that is larger; a completion issues the next."""
    flying: dict[str, int] = {}
    most: list[int] = []

    def start(partition: Partition) -> _Operation:
        flying[partition.name] = partition.nbytes
        most.append(sum(flying.values()))
        return _Operation(partition)

    issuer = Issuer(start)  # type: ignore[arg-type]
    sizes = (1, 3, 2, 9, 2, 2, 1, 5)
    order = [Partition(str(index), size) for index, size in enumerate(sizes)]
    issuer.begin(order, 4)
    for partition in reversed(order):
        issuer.ready(partition, torch.zeros(1))
        issuer.advance()
    issued = [partition for partition in order if partition.work is not None]
    assert [each.nbytes for each in issued] == [1, 3]
    while issued:
        ended: Any = issued.pop(0)
        del flying[ended.name]
        ended.work.done()
        issued = [partition for partition in order if partition.work is not None and not partition.complete]
    assert all(partition.complete for partition in order)
    assert len(most) == len(order)
    assert sorted(most)[-2:] == [5, 9]
    assert max(size for size in most if size not in (5, 9)) == 4


class _Interrupted:
    """A lock that runs a function once, before it is taken: what another thread does at that moment."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile: Callable[[], None] | None = meanwhile
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if (meanwhile := self._meanwhile) is not None:
            self._meanwhile = None
            meanwhile()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_late_callback() -> None:
    """A callback that runs when its partition is in the next pass already does not end that pass's operation."""
    issuer = Issuer(_Operation)  # type: ignore[arg-type]
    partition = Partition("it", 1)

    def issue() -> Any:
        issuer.ready(partition, torch.zeros(1))
        issuer.advance()
        return partition.work

    def end_and_begin() -> None:
        issuer.wait(partition)
        issuer.begin([partition], 4)

    issuer.begin([partition], 4)
    first = issue()
    issuer._counts = _Interrupted(end_and_begin)  # type: ignore[assignment]
    first.done()
    complete = [partition.complete]
    second = issue()
    assert second is not first
    second.done()
    complete.append(partition.complete)
    assert complete == [False, True]
    assert issuer.idle


def test_leader_without_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that cannot receive the leader's next message gets the error, and so does a leader that cannot send."""
    group: Any = SimpleNamespace(rank=lambda: 1, ranks=[0, 1])
    follower = Leader(group, "auto")
    errors: list[BaseException] = []
    follower._left, follower._failed = 2, errors.append

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no group")

    monkeypatch.setattr(leader._C, "broadcast", fail)
    message = torch.zeros(leader.CAPACITY + 1, dtype=torch.int32)
    message[0] = 1
    operation: Any = _Operation(Partition("a message", 1))
    follower._received(message, operation)
    assert [str(error) for error in errors] == ["no group"]

    group.rank = lambda: 0
    issuer = Issuer(_Operation, Leader(group, "auto"))  # type: ignore[arg-type]
    partition = Partition("it", 1)
    issuer.begin([partition], None)
    issuer.ready(partition, torch.zeros(1))
    with pytest.raises(RuntimeError, match="no group"):
        issuer.advance()
    with pytest.raises(McrError, match="an earlier operation failed: no group"):
        issuer.wait(partition)
