# SPDX-License-Identifier: Apache-2.0
"""The live order of rank 0: it decides which operation comes next, and tells the other ranks while the pass runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import torch

from mcr_dl import _C

CAPACITY = 63  # decisions in one message
TURN = 20e-6  # seconds in which another thread takes the interpreter's lock; a sleep of 0 s releases it for less


class Leader:
    """Carries decisions, which are indices of a pass's operations, from rank 0 to all others.

    The messages are broadcasts on a group of their own, so all ranks issue the same ones: rank 0 sends until all
    operations of a pass are decided, and the others receive until then.
    """

    def __init__(self, group: _C.Group, backend: str) -> None:
        self.group = group
        self.leads = group.rank() == 0
        self._backend = backend
        self._left = 0  # operations of this pass whose decision has not arrived
        self._works: list[_C.Work] = []
        self._lock = threading.Lock()
        self._decided: Callable[[list[int]], None] = lambda _: None
        self._failed: Callable[[BaseException], None] = lambda _: None

    def begin(self, count: int, decided: Callable[[list[int]], None], failed: Callable[[BaseException], None]) -> None:
        """A pass of ``count`` operations begins; on ranks that do not lead, ``decided`` gets the decisions.

        It is called on the thread that runs callbacks, and ``failed`` too, if messages cannot arrive.
        """
        self.wait()
        self._left, self._decided, self._failed = count, decided, failed
        if not self.leads and count:
            self._receive()

    def send(self, indices: list[int]) -> None:
        """Tell the other ranks the next operations."""
        for first in range(0, len(indices), CAPACITY):
            part = indices[first : first + CAPACITY]
            message = torch.zeros(CAPACITY + 1, dtype=torch.int32, device="cpu")
            message[: len(part) + 1] = torch.tensor([len(part), *part], dtype=torch.int32, device="cpu")
            self._start(message)

    def wait(self) -> None:
        """Wait for the messages that are on their way. Raises their errors."""
        with self._lock:
            works, self._works = self._works, []
        for work in works:
            work.wait()

    def pause(self) -> None:
        """Wait for the newest message, on a rank that has nothing else to do. Raises its error."""
        with self._lock:
            newest = self._works[-1:]
        for work in newest:
            work.wait()
        time.sleep(TURN)  # the thread that runs callbacks hands the message on

    def _start(self, message: torch.Tensor) -> _C.Work:
        work = _C.broadcast(message, self.group.ranks[0], self.group, True, backend=self._backend)
        with self._lock:
            self._works = [each for each in self._works if not each.is_completed()] + [work]
        return work

    def _receive(self) -> None:
        while True:
            message = torch.zeros(CAPACITY + 1, dtype=torch.int32, device="cpu")
            work = self._start(message)
            if not work.is_completed():
                work._on_done(partial(self._received, message, work))
                return
            if not self._take(message, work):
                return

    def _received(self, message: torch.Tensor, work: _C.Work) -> None:
        try:
            if self._take(message, work):
                self._receive()
        except Exception as error:  # without the next message, this rank would never end its wait
            self._failed(error)

    def _take(self, message: torch.Tensor, work: _C.Work) -> bool:
        """Hand on the decisions of a message; False if it did not arrive, or if it was the last of the pass."""
        error = work.exception()
        if error is not None:
            self._failed(error)
            return False
        count, *indices = message.tolist()
        self._left -= count
        more = self._left > 0  # after the last decision, another thread may begin the next pass
        self._decided(indices[:count])
        return more
