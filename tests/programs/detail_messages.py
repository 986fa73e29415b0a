# SPDX-License-Identifier: Apache-2.0
"""MCR_DL_DEBUG=detail and messages, one function for each job: detail_messages.py NAME BACKENDS [DIFFERENCE]."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist

import mcr_dl as dist
from mcr_dl.passes import PassedCall

LIMIT = timedelta(seconds=60)


def say(*words: object) -> None:
    """Print at once."""
    print(*words, flush=True)


# ---- correct programs


def _ring(backend: str, size: int, me: int) -> None:
    """Blocking and asynchronous messages around, alone and in batches, of changing sizes and types."""
    after, before = (me + 1) % size, (me - 1) % size
    for turn in range(300):
        kind = (torch.float32, torch.int64, torch.bool)[turn % 3]
        x, y = torch.ones(turn % 7, dtype=kind), torch.zeros(turn % 7, dtype=kind)
        work = dist.isend(x, after, backend=backend)
        if turn % 2:
            dist.recv(y, before, backend=backend)
        else:
            dist.irecv(y, before, backend=backend).wait()
        work.wait()
        ends = [dist.P2POp(dist.irecv, y, before, backend=backend), dist.P2POp(dist.isend, x, after, backend=backend)]
        for each in dist.batch_isend_irecv(ends if me % 2 else ends[::-1]):
            each.wait()
        assert y.eq(1).all()


def _tags(backend: str, size: int, me: int) -> None:
    """Many tags, in another order on each rank, received from one rank or from any."""
    common, mine = random.Random(5), random.Random(me)
    plan = [(*common.sample(range(size), 2), common.randrange(1, 500), tag) for tag in range(400)]
    sends = [each for each in plan if each[0] == me]
    receives = [each for each in plan if each[1] == me]
    mine.shuffle(sends)
    mine.shuffle(receives)
    works = [dist.isend(torch.ones(count), to, tag=tag, backend=backend) for _, to, count, tag in sends]
    for source, _, count, tag in receives:
        anyone = mine.random() < 0.5
        works.append(dist.irecv(torch.empty(count), None if anyone else source, tag=tag, backend=backend))
    for work in works:
        work.wait()


def _from_any(backend: str, size: int, me: int) -> None:
    """Rank 0 receives from one rank, then from any, then from one rank again, all with one tag."""
    if me:
        for _ in range(100):
            dist.send(torch.ones(3), 0, tag=7, backend=backend)
        return
    for source in range(1, size):
        for _ in range(20):
            dist.recv(torch.empty(3), source, tag=7, backend=backend)
    left = dict.fromkeys(range(1, size), 80)
    for _ in range(50):
        left[dist.recv(torch.empty(3), tag=7, backend=backend)] -= 1
    for source, count in left.items():
        for _ in range(count):
            dist.recv(torch.empty(3), source, tag=7, backend=backend)


def _many(backend: str, size: int, me: int) -> None:
    """One side is far ahead of the other: thousands of messages of two sizes."""
    del size
    works = []
    for turn in range(4000):
        x = torch.zeros(1 + turn % 2)
        if me == 0:
            works.append(dist.isend(x, 1, tag=9, backend=backend))
        elif me == 1:
            if turn == 0:
                time.sleep(0.5)
            dist.recv(x, 0, tag=9, backend=backend)
    for work in works:
        work.wait()


def _subgroup(backend: str, size: int, me: int) -> None:
    """A group with its own numbers of ranks, which is destroyed at once, and one through torch."""
    members = [size - 1, 0]
    for group, library in ((dist.new_group(members), dist), (torch_dist.new_group(members, backend="mcr"), torch_dist)):
        if me == 0:
            library.send(torch.ones(5), size - 1, group=group)
        elif me == size - 1:
            library.recv(torch.ones(5), 0, group=group)
        if me in members and library is dist:
            dist.destroy_process_group(group)
    objects = [{"a": 1}, "b" * me] if me == 0 else [None, None]
    if me == 0:
        dist.send_object_list(objects, 1)
    elif me == 1:
        dist.recv_object_list(objects)
    del backend


def _threads(backend: str, size: int, me: int) -> None:
    """Messages of several threads, each with a tag of its own."""

    def talk(tag: int) -> None:
        for turn in range(100):
            if me == 0:
                dist.send(torch.ones(tag + turn % 3), 1, tag=tag, backend=backend)
            elif me == 1:
                dist.recv(torch.ones(tag + turn % 3), 0, tag=tag, backend=backend)

    del size
    threads = [threading.Thread(target=talk, args=(tag,)) for tag in (20, 21, 22)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _refused(backend: str, size: int, me: int) -> None:
    """Calls that one rank alone makes wrongly, and then again."""
    del size
    if me > 1:
        return
    for turn in range(20):
        x = torch.ones(turn + 1)
        beyond = [{"tag": 2**31 - 1}] if backend in ("mpi", "gloo") else []  # their own limits
        for wrong in ({"tag": -1}, {"codec": "int8"}, *beyond):
            if me == 0:
                with contextlib.suppress(dist.InvalidArgumentError):
                    dist.isend(torch.ones(2), 1, backend=backend, **wrong)
                    raise AssertionError(wrong)
        if me == 0:
            dist.send(x, 1, tag=11, backend=backend)
        else:
            dist.recv(x, 0, tag=11, backend=backend)


def equal(backends: str) -> None:
    """Correct programs: nothing is raised."""
    dist.init_process_group(backends, timeout=LIMIT)
    size, me = dist.get_world_size(), dist.get_rank()
    for backend in backends.split(","):
        for part in (_ring, _tags, _from_any, _many, _subgroup, _threads, _refused):
            part(backend, size, me)
    if "," in backends and me < 2:  # the order of messages on different backends is free
        first, second = backends.split(",")[:2]
        works = [dist.isend(torch.ones(n), 1, backend=name) for name, n in ((first, 3), (second, 4))] if me == 0 else []
        works += [dist.irecv(torch.ones(n), 0, backend=name) for name, n in ((second, 4), (first, 3))] if me else []
        for work in works:
            work.wait()
    dist.barrier()
    time.sleep(0.5)
    dist.barrier()
    dist.destroy_process_group()
    say("SAME")


class Particular:
    """A pass that refuses messages with one tag."""

    name = "particular"

    def handle(self, call: PassedCall) -> object:
        """As passes do."""
        if call.tag == 13:
            raise ValueError("no 13")
        return call.proceed()


def _refused_by_passes(after: int) -> None:
    """Sends that this rank does not make after all: nothing was sent."""
    x = torch.ones(2)
    refused: list[tuple[type[Exception], torch.Tensor, dict[str, Any]]] = [
        (dist.InvalidTypeError, x.int(), {"codec": "bf16"}),
        (ValueError, x, {"tag": 13}),
    ]
    for error, tensor, options in refused:
        for name in ("send", "isend"):
            try:
                getattr(dist, name)(tensor, after, **options)
            except error:
                continue
            raise AssertionError(options)


def compressed(backend: str) -> None:
    """Messages that passes replace by others: only the program's are compared."""
    dist.register_pass(Particular(), "particular")
    dist.init_process_group(backend, timeout=LIMIT, passes=["log", "particular", "compress"])
    size, me = dist.get_world_size(), dist.get_rank()
    if me == 0:
        _refused_by_passes(1)
    for turn in range(50):
        x, y = torch.ones(turn + 1), torch.zeros(turn + 1)
        if me == 0 and backend == "mpi":  # the other backend has no limit for tags
            with contextlib.suppress(dist.InvalidArgumentError):
                dist.isend(x, 1, tag=2**31 - 1, codec="int8")
                raise AssertionError(turn)
        works = [dist.isend(x, (me + 1) % size, codec="int8"), dist.irecv(y, (me - 1) % size, codec="int8")]
        for work in works:
            work.wait()
    dist.barrier()
    dist.destroy_process_group()
    say("SAME")


# ---- programs with a difference


def _made(rank: int, difference: str) -> tuple[torch.Tensor, int]:
    """The tensor and the tag of the message from rank 0 to rank 1."""
    x, tag = torch.ones(1000), 0
    if rank == 1 and difference == "shorter":
        x = torch.ones(900)
    elif rank == 1 and difference == "longer":
        x = torch.ones(1100)
    elif rank == 1 and "type" in difference:
        x = torch.ones(1000, dtype=torch.int32)
    elif rank == 1 and difference == "strides":
        x = torch.ones(500, 2).t()
    elif rank == 1 and difference == "tag":
        tag = 5
    return x, tag


def differ(backends: str, difference: str) -> None:
    """Messages that match, but differ: all ranks raise, in a call or in a later one."""
    dist.init_process_group(backends, timeout=LIMIT)
    rank = dist.get_rank()
    for _ in range(2):
        _exchange(rank, "nothing")
    try:
        try:
            _exchange(rank, difference)
        except dist.DesyncError:
            raise
        except dist.McrError as error:  # the backend's own
            say("backend:", type(error).__name__, error)
        for _ in range(100):
            time.sleep(0.1)
            dist.barrier(async_op=True)
    except dist.DesyncError as error:
        say("RAISED", type(error).__name__, error)
    try:
        dist.barrier()
    except dist.DesyncError:
        say("RAISED again")


def _exchange(rank: int, difference: str) -> None:
    x, tag = _made(rank, difference)
    if rank == 0:
        dist.send(x, 1, tag=tag)
    elif rank == 1:
        dist.recv(x, 0, tag=tag)


def ends(backends: str, difference: str) -> None:
    """Messages without a match: all ranks raise at the end."""
    dist.init_process_group(backends, timeout=LIMIT)
    rank = dist.get_rank()
    names = backends.split(",") * 2
    x, tag = _made(rank, difference)
    works = []
    if rank == 0:
        works = [dist.isend(x, 1, tag=tag, backend=names[0]) for _ in range(2 if difference == "sends" else 1)]
    elif rank == 1:
        count = 3 if difference == "receives" else 1
        source = None if "any" in difference else 0
        works = [dist.irecv(x, source, tag=tag, backend=names[1]) for _ in range(count)]
    try:
        dist.destroy_process_group()
    except dist.DesyncError as error:
        say("RAISED", type(error).__name__, error)
        sys.exit(3)
    del works


def timed_out(backend: str) -> None:
    """A receive with another tag than its send: its timeout names both."""
    dist.init_process_group(backend, timeout=timedelta(seconds=2))
    x = torch.ones(10)
    if dist.get_rank() == 0:
        dist.isend(x, 1)
        time.sleep(4)
    elif dist.get_rank() == 1:
        try:
            dist.recv(x, 0, tag=5)
        except dist.CollectiveTimeoutError as error:
            say("RAISED", error)
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
