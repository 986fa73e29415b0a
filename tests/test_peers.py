# SPDX-License-Identifier: Apache-2.0
"""The watch over the processes of one host: real processes, in one test process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import Any

import pytest
import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.watch import _report
from mcr_dl.watch._alarm import Exchange, leave_member
from mcr_dl.watch._losses import Losses
from mcr_dl.watch._peers import Peers
from waiting import await_true


def test_a_process_that_has_ended_before_it_is_watched() -> None:
    """It is lost, as one that ends later."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    store = torch_dist.HashStore()
    leave_member(store, 1, {**_report.identity(1), "pid": child.pid})
    exchange = Exchange(store, 0, 2, lambda _: {}, lambda *_: None)
    exchange.start()
    losses = Losses(exchange)
    try:
        losses.begin([0, 0])
        assert f"process {child.pid} on" in losses.texts[1]
    finally:
        losses.stop(well=True)
        exchange.stop()
        _C.regain(1)


def test_a_failed_report(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so, and the ends of other processes are reported."""
    seen = []

    def ended(rank: int, *_: Any) -> None:
        seen.append(rank)
        raise ValueError("words")

    peers = Peers(ended)
    try:
        for rank in (1, 2):
            with subprocess.Popen([sys.executable, "-c", ""]) as child:
                peers.add({rank: {"pid": child.pid}})
                await_true(lambda: not peers.running())
    finally:
        peers.stop()
    assert seen == [1, 2]
    assert caplog.text.count("ValueError: words") == 2


def test_a_process_without_a_descriptor(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Its end is noticed later, which the log says, unless the kernel has no descriptors of processes."""
    errors = [errno.EMFILE, errno.ENOSYS]

    def refuse(_: int) -> int:
        raise OSError(errors.pop(0), "refused")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    peers = Peers(lambda *_: None)
    peers.add({1: {"pid": 11}, 2: {"pid": 12}})
    peers.stop()
    assert "the end of process 11 will be noticed only by time limits: [Errno 24] refused" in caplog.text
    assert "process 12" not in caplog.text
