# SPDX-License-Identifier: Apache-2.0
"""Rank 0 waits in a blocking call that polls, most often a receive that something ends: blocking_messages.py NAME
BACKEND [CALL]. Tests check the output."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
from activity import once_in_a_call

import mcr_dl as dist
from mcr_dl import _C
from mcr_dl.passes import PassedCall
from mcr_dl.runtime import state

LONG = timedelta(seconds=60)


def say(*words: object) -> None:
    """Print at once."""
    print(*words, flush=True)


def receive(tensor: torch.Tensor, error: type[BaseException], **options: object) -> None:
    """Receive from rank 1, which does not send before the receive has raised the error."""
    try:
        dist.recv(tensor, 1, **options)  # type: ignore[call-overload]
    except error as raised:
        say("RAISED", type(raised).__name__, raised)
    else:
        raise AssertionError("a message has come")


def go_on(tensor: torch.Tensor) -> None:
    """The group still works, and the receive is still under way."""
    rank = dist.get_rank()
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.eq(2).all(), x
    if rank == 1:
        dist.send(torch.full((3,), 7.0), 0)
    while rank == 0 and not tensor.eq(7).all():
        time.sleep(0.01)  # the test has a time limit
    dist.barrier()
    say("DONE")


def interrupted(backend: str) -> None:
    """Ctrl-C, which the test sends."""
    dist.init_process_group(backend, timeout=LONG)
    tensor = torch.zeros(3)
    dist.barrier()
    if dist.get_rank() == 0:
        once_in_a_call(say, "WAITING")
        receive(tensor, KeyboardInterrupt)
    go_on(tensor)


def handled(backend: str, call: str) -> None:
    """SIGINT, which the test sends, has a handler of the program: the call goes on."""
    dist.init_process_group(backend, timeout=LONG)
    tensor, rank = torch.ones(1), dist.get_rank()
    dist.barrier()
    if rank == 0:
        # Later than the watch would end a call that cannot be left.
        later = threading.Timer(3, lambda: dist.isend(tensor, 1, tag=1))
        signal.signal(signal.SIGINT, lambda *_: later.start())
        once_in_a_call(say, "WAITING")
    else:
        dist.recv(tensor, 0, tag=1)
    if call == "barrier":
        dist.barrier()
    elif rank == 0:
        dist.recv(tensor, 1)
    else:
        dist.send(tensor, 0)
    say("DONE")


def future(backend: str) -> None:
    """SIGINT, which rank 0 sends itself, comes in torch's wait for a future; rank 1 sends after that."""
    dist.init_process_group(backend, timeout=LONG)
    tensor, store, main = torch.zeros(3), state.current().store, threading.get_ident()
    if dist.get_rank() == 1:
        store.wait(["interrupted"], LONG)
        dist.send(torch.full((3,), 7.0), 0)

    def interrupt() -> None:
        while sys._current_frames()[main].f_code is not torch.futures.Future.wait.__code__:
            time.sleep(0.01)
        time.sleep(0.2)  # torch's C++ code leaves no other trace
        os.kill(os.getpid(), signal.SIGINT)
        store.set("interrupted", "")

    if dist.get_rank() == 0:
        done = dist.irecv(tensor, 1).get_future()
        threading.Thread(target=interrupt, daemon=True).start()
        try:
            done.wait()
        except KeyboardInterrupt:
            say("RAISED KeyboardInterrupt", tensor.tolist())
    dist.barrier()
    say("DONE")


class Slow:
    """A pass that works before the receives of rank 0 for most of their timeout."""

    name = "slow"

    def handle(self, call: PassedCall) -> object:
        """As passes do."""
        if call.op == "recv" and dist.get_rank() == 0:
            time.sleep(2.5)
        return call.proceed()


def late_after_a_pass(backend: str) -> None:
    """A timeout of the call, which counts from the wait."""
    dist.init_process_group(backend, timeout=LONG)
    dist.register_pass(Slow(), "slow")
    dist.set_passes(["slow"])
    tensor = torch.zeros(3)
    if dist.get_rank() == 0:
        receive(tensor, dist.CollectiveTimeoutError, timeout=3)
    go_on(tensor)


def late(backend: str) -> None:
    """A timeout of the call."""
    dist.init_process_group(backend, timeout=LONG)
    tensor = torch.zeros(3)
    if dist.get_rank() == 0:
        receive(tensor, dist.CollectiveTimeoutError, timeout=1)
    go_on(tensor)


def explained(backend: str) -> None:
    """Ctrl-C while the error of a call is completed."""
    dist.init_process_group(backend, timeout=LONG)
    tensor = torch.zeros(3)

    def interrupt(text: str, *_: object) -> str:
        signal.raise_signal(signal.SIGINT)
        return text

    if dist.get_rank() == 0:
        _C.set_explainer(interrupt)
        try:
            receive(tensor, dist.CollectiveTimeoutError, timeout=1)
        except KeyboardInterrupt:
            say("RAISED KeyboardInterrupt")
    go_on(tensor)


def aborted(backend: str) -> None:
    """abort() of the group, on another thread."""
    dist.init_process_group(backend, timeout=LONG)
    group = dist.new_group(timeout=LONG)
    if dist.get_rank() == 0:
        once_in_a_call(group.abort)
        receive(torch.zeros(3), dist.BackendError, group=group)
    dist.barrier()  # the other groups go on
    say("DONE")


def lost(backend: str) -> None:
    """The end of a rank that is neither the sender nor the receiver."""
    dist.init_process_group(backend, timeout=LONG)
    dist.barrier()
    rank = dist.get_rank()
    if rank == 2:
        time.sleep(0.3)  # by then the others are inside their calls
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        receive(torch.zeros(3), dist.PeerLostError)
    else:
        try:
            dist.recv(torch.zeros(3), 0)
        except dist.PeerLostError as raised:
            say("RAISED", type(raised).__name__, raised)
    os._exit(0)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
