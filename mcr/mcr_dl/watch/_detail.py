# SPDX-License-Identifier: Apache-2.0
"""``MCR_DL_DEBUG=detail`` in one process: when its calls are compared, and the consequences of a difference."""

from __future__ import annotations

import threading
import time

from mcr_dl import _C
from mcr_dl.base.stores import STORE_ERRORS
from mcr_dl.base.warning import say
from mcr_dl.watch._alarm import INQUIRY, Alarm, Exchange
from mcr_dl.watch._compare import Comparison
from mcr_dl.watch._diagnosis import ranks_text

FAREWELL = 10.0  # seconds for the other ranks to end too
_COMPARISON = 5.0  # for one step of the comparison of calls


class Detail:
    """The comparison of one life. From the threads of the watch and of the program."""

    def __init__(self, exchange: Exchange, broken: threading.Event) -> None:
        """``broken``: ranks are or were missing, or have made different calls."""
        self._exchange, self._broken = exchange, broken
        self.comparison = Comparison(exchange.store, exchange.rank, exchange.size)
        self._stopped = False  # the calls of this process, because of a difference
        self._untold: Alarm | None = None  # the news of it, until all ranks have got them
        self._telling = threading.Lock()
        self._last = False  # the last calls have been compared, or could not be

    def compare(self) -> None:
        """Leave this process's new calls for the comparison. After a difference: tell all ranks, until they know."""
        if self._stopped:
            self.tell()
            return
        try:
            found = self._exchange.ask(self.comparison.step, _COMPARISON)
        except STORE_ERRORS:
            self.comparison.miss()
            return
        if found is not None:
            self._stop(*found)

    def _stop(self, group: str, text: str, *, tell: bool = True) -> None:
        stopped, self._stopped = self._stopped, True
        if stopped:
            return
        self._broken.set()
        if tell:
            self._untold = Alarm(self._exchange.rank, "desync", group, text)
        _C.stop_desync(text)
        self.tell()

    def tell(self) -> None:
        """Tell all ranks of the difference, unless they know; a slow store, or many alarms, may prevent it."""
        with self._telling:
            if self._untold is not None and self._exchange.tell(self._untold, INQUIRY):
                self._untold = None

    def compare_last(self) -> None:
        """Wait, for some seconds, until all calls of all ranks have been compared. A second call does nothing."""
        if self._broken.is_set() or self._last:
            return
        self._last = True
        verdict, deadline = None, time.monotonic() + FAREWELL
        reason = "some ranks have not come to their end"
        while verdict is None and not self._broken.is_set() and time.monotonic() < deadline:
            try:
                verdict = self._exchange.ask(self.comparison.finish, _COMPARISON)
            except STORE_ERRORS as error:
                reason = f"the store cannot be reached ({str(error).partition(chr(10))[0]})"
                break
            if verdict is None:
                time.sleep(self._exchange.pause)
        if verdict is not None and verdict.text:
            self._stop(verdict.group, verdict.text, tell=self._exchange.rank == 0)  # the others have read it, too
        elif verdict is not None and verdict.missing:
            reason = f"{ranks_text(verdict.missing)} ended without it"
        if not self._broken.is_set() and (verdict is None or verdict.missing):
            say(f"mcr_dl: the last calls have not been compared: {reason}")
