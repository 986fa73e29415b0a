# SPDX-License-Identifier: Apache-2.0
"""Ranks with receives that never complete wait for their operations: draining.py NAME BACKEND."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as torch_dist
from activity import await_call

import mcr_dl as dist
from mcr_dl import _C
from mcr_dl.groups import factory
from mcr_dl.runtime import core_groups
from mcr_dl.testing.expect import expect

LONG = timedelta(seconds=60)


def say(*words: object) -> None:
    """Print at once."""
    print(*words, flush=True)


def after_an_error(backend: str) -> None:
    """An operation that has ended with an error is over for synchronize() and destroy_process_group()."""
    dist.init_process_group(backend, timeout=LONG)
    work = dist.irecv(torch.empty(4), 1 - dist.get_rank(), timeout=1)
    try:
        work.wait()
    except dist.CollectiveTimeoutError:
        while not work.is_completed():  # the library still has the receive
            time.sleep(0.01)
        warnings.simplefilter("error")
        dist.synchronize()
        dist.destroy_process_group()
        say("DONE")
    os._exit(0)


def not_received(backend: str) -> None:
    """The group of a large message that nothing has received ends as others do."""
    dist.init_process_group(backend, timeout=LONG)
    if dist.get_rank() == 0:
        expect(dist.CollectiveTimeoutError, lambda: dist.send(torch.ones(1 << 20), 1, timeout=0.5), "timed out")
    dist.barrier()
    dist.destroy_process_group()
    say("DONE")


def interrupted(backend: str) -> None:
    """Ctrl-C in synchronize(), which the test sends to rank 0."""
    dist.init_process_group(backend, timeout=LONG)
    work = dist.irecv(torch.empty(4), 1 - dist.get_rank())
    if dist.get_rank() == 0:
        threading.Timer(0.3, say, ["WAITING"]).start()  # the wait is no call that the watch shows
        try:
            dist.synchronize()
        except KeyboardInterrupt:
            say("RAISED", work.is_completed())
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    say("DONE")
    os._exit(0)


def abandoned(backend: str) -> None:
    """The operations of a group, and those of a life, that are still running at the end of it."""
    factory.DRAIN = timedelta(seconds=0.5)
    other, works = 1, []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            dist.init_process_group(backend, timeout=LONG)
            other = 1 - dist.get_rank()
            group = dist.new_group()
            works.append(dist.irecv(torch.empty(4), other, group=group))
            dist.destroy_process_group(group)
            dist.synchronize()
            works.append(dist.irecv(torch.empty(4), other))
            dist.destroy_process_group()
    assert sum("still running and are abandoned" in str(each.message) for each in caught) == len(works), caught
    for work in works:
        try:
            work.wait()
        except dist.NotInitializedError as error:
            say("RAISED", error)
    dist.init_process_group(backend, timeout=LONG)
    group = dist.new_group()
    dist.all_reduce(torch.ones(3), group=group)
    warnings.simplefilter("error")
    dist.destroy_process_group(group)
    dist.synchronize()
    dist.destroy_process_group()
    say("DONE")
    os._exit(0)


def with_a_hook(backend: str) -> None:
    """torch waits for the hooks of completion before it ends a group, and these for their operations."""
    factory.DRAIN = timedelta(seconds=0.5)
    dist.init_process_group(backend, timeout=LONG)
    group = dist.new_group()
    group._register_on_completion_hook(lambda _: None)
    torch_dist.irecv(torch.empty(4), 1 - dist.get_rank(), group=group)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.destroy_process_group(group)
    assert any("completion hooks" in str(each.message) for each in caught), caught
    dist.destroy_process_group()
    say("DONE")
    os._exit(0)


def with_a_long_hook(backend: str) -> None:
    """A hook that runs longer takes no time from the operations of later groups."""
    factory.DRAIN = timedelta(seconds=0.5)
    dist.init_process_group(backend, timeout=LONG)
    group, other = dist.new_group(), 1 - dist.get_rank()
    begun, end = threading.Event(), threading.Event()

    def hook(info: Any) -> None:
        if info.op_type.name == "RECV":
            begun.set()
            end.wait(60)

    group._register_on_completion_hook(hook)
    torch_dist.irecv(torch.empty(4), other, group=group)
    dist.barrier()  # a receive of what is there is complete at once
    torch_dist.isend(torch.ones(4), other, group=group)  # a wait might run the hook on this thread
    assert begun.wait(60)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.destroy_process_group(group)
    assert any("still running themselves" in str(each.message) for each in caught), caught
    assert factory.patience() == factory.DRAIN
    end.set()
    dist.destroy_process_group()
    say("DONE")
    os._exit(0)


def started_meanwhile(backend: str) -> None:
    """A group, and then all, end while another thread starts operations, as long as it can."""
    dist.init_process_group(backend, timeout=LONG)
    end_works = core_groups.end_works
    for group in (dist.new_group(), None):
        works: list[dist.Work] = []

        def end(groups: Iterable[_C.Group], group: object = group, works: list[dist.Work] = works) -> None:
            end_works(groups)
            with contextlib.suppress(dist.NotInitializedError):
                works.append(dist.irecv(torch.empty(4), 1 - dist.get_rank(), group=group))

        with mock.patch.object(core_groups, "end_works", end):
            dist.destroy_process_group(group)
        assert works
        for work in works:
            expect(dist.NotInitializedError, work.wait, "the group has been destroyed")
    say("DONE")
    os._exit(0)


def in_a_call(backend: str) -> None:
    """A group, and then all, end while another thread waits in a blocking receive."""
    dist.init_process_group(backend, timeout=LONG)

    def receive(group: dist.ProcessGroup | None) -> None:
        try:
            dist.recv(torch.empty(4), 1 - dist.get_rank(group), group=group)
        except dist.NotInitializedError as error:
            say("RAISED", error)

    for group in (dist.new_group(), None):
        thread = threading.Thread(target=receive, args=(group,))
        thread.start()
        await_call(thread.native_id or 0)
        dist.destroy_process_group(group)
        thread.join()
    dist.init_process_group(backend, timeout=LONG)
    dist.all_reduce(torch.ones(3))
    warnings.simplefilter("error")
    dist.synchronize()
    dist.destroy_process_group()
    say("DONE")
    os._exit(0)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
