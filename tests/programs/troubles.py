# SPDX-License-Identifier: Apache-2.0
"""Jobs that meet with trouble, one function each: troubles.py NAME [ARGUMENTS...]. Tests check their output."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as torch_dist
from activity import once_in_a_call
from torch.utils.data import DataLoader, Dataset

import mcr_dl as dist
from mcr_dl import _C

LIMIT = timedelta(seconds=1)
LONG = timedelta(seconds=60)


def say(*words: object) -> None:
    """Print at once."""
    print(*words, flush=True)


def expect(text: str, call: object) -> None:
    """Make a call that must raise, and print the error."""
    try:
        call()  # type: ignore[operator]
    except (dist.McrError, RuntimeError) as error:
        say("RAISED", type(error).__name__, error)
    else:
        raise AssertionError(text)


def desync(backend: str, difference: str) -> None:
    """MCR_DL_DEBUG=detail: one rank makes another call; every rank raises, in that call or in a later one."""
    dist.init_process_group(backend, timeout=LONG)
    one = dist.get_rank() == 1
    x, y = torch.ones(1000), torch.ones(1000)
    for _ in range(5):
        dist.all_reduce(x)

    def calls() -> None:
        if difference == "op" and one:
            dist.broadcast(y, src=0)
        elif difference == "size" and one:
            dist.all_reduce(y[:500], async_op=True)
        elif difference == "async" and one:
            dist.all_reduce(y, async_op=True).wait()
        elif difference == "reduction" and one:
            dist.all_reduce(y, op=dist.ReduceOp.MAX)
        elif difference == "backend":
            dist.barrier(backend="gloo" if one else "mpi")
        elif difference == "priority" and one:
            dist.all_reduce(y, priority=3)
        elif difference == "strides":
            dist.all_reduce(y.view(2, 500).t().contiguous().t() if one else y.view(2, 500))
        elif difference == "dtype" and one:
            dist.all_reduce(y.int())
        else:
            dist.all_reduce(y)
        for _ in range(100):  # a rank that has not noticed yet continues
            time.sleep(0.1)
            dist.get_rank()
            dist.barrier(async_op=True)

    expect("different calls went unnoticed", calls)
    expect("a call after a desync", lambda: dist.all_reduce(x))


def ends(backend: str, how: str) -> None:
    """MCR_DL_DEBUG=detail: the program ends right after calls of different sizes, in several ways."""
    dist.init_process_group(backend, timeout=LONG)
    rank = dist.get_rank()
    pair = dist.new_group([0, 1]) if "pair" in how else None
    ending = False
    if rank < 2 or pair is None:
        dist.all_reduce(torch.arange(1000.0 if rank == 0 else 900.0), group=pair)
    try:
        if "calls" in how:
            for _ in range(200):
                dist.all_reduce(torch.ones(1))
        if "forget" in how and pair is not None and rank < 2:
            dist.destroy_process_group(pair)
        ending = "destroy" in how
        if ending:
            dist.destroy_process_group()
        if "torch" in how:
            torch_dist.destroy_process_group()
    except dist.DesyncError as error:
        assert not ending or not (dist.is_initialized() or torch_dist.is_initialized())
        say("RAISED", type(error).__name__, error)
        sys.exit(3)
    say("END")


def torch_desync(backend: str) -> None:
    """MCR_DL_DEBUG=detail: torch's destroy_process_group() raises, and torch can start again."""
    for turn in range(2):
        torch_dist.init_process_group("mcr", timeout=LONG)
        op = torch_dist.ReduceOp.MAX if (turn, torch_dist.get_rank()) == (0, 1) else torch_dist.ReduceOp.SUM
        torch_dist.all_reduce(torch.ones(10), op=op)
        try:
            torch_dist.destroy_process_group()
        except dist.DesyncError:
            say("RAISED")
        assert not torch_dist.is_initialized()
        assert not dist.is_initialized()
    say("DONE", backend)


def one_more(backend: str) -> None:
    """MCR_DL_DEBUG=detail: one rank ends with a pending call that the others do not make."""
    dist.init_process_group(backend, timeout=LONG)
    x = torch.ones(10)
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True) if dist.get_rank() == 1 else None
    say("END", work is not None)


def one_raises(backend: str) -> None:
    """MCR_DL_DEBUG=detail: one rank does not reach its end."""
    dist.init_process_group(backend, timeout=LONG)
    dist.all_reduce(torch.ones(10))
    if dist.get_rank() == 1:
        raise ValueError("bad batch")


def same_to_the_end(backend: str) -> None:
    """MCR_DL_DEBUG=detail: a correct program ends quietly, with passes, destroyed groups, and unfinished works."""
    dist.init_process_group(backend, timeout=LONG, passes=["fuse", "log"])
    groups = [dist.new_group([0, 1], timeout=LONG) for _ in range(3)]
    works = []
    for turn in range(20):
        for group in [None, *(groups if dist.get_rank() < 2 else [])]:
            works.append(dist.all_reduce(torch.ones(turn + 1), group=group, async_op=True))
    for work in works[: len(works) // 2]:
        work.wait()
    if dist.get_rank() < 2:
        for work in works:
            work.wait()
        dist.destroy_process_group(groups[0])
    say("SAME")


def same(backend: str) -> None:
    """MCR_DL_DEBUG=detail with a correct program: nothing is raised, results are right."""
    dist.init_process_group(backend, timeout=LONG)
    pair = dist.new_group([0, 1])
    for turn in range(300):
        x = torch.full((turn + 1,), float(dist.get_rank()))
        dist.all_reduce(x)
        assert x.eq(sum(range(dist.get_world_size()))).all()
        if dist.get_rank() < 2:
            dist.all_reduce(x, group=pair)
    time.sleep(0.5)
    dist.barrier()
    dist.destroy_process_group()
    say("SAME")


def interrupted(backend: str) -> None:
    """Rank 0 waits for a rank that does not come, until Ctrl-C."""
    dist.init_process_group(backend, timeout=LONG)
    x = torch.ones(10)
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        once_in_a_call(say, "WAITING")
        dist.all_reduce(x)
    time.sleep(20)


def aborted(backend: str) -> None:
    """Another thread gives the group up while this one waits for an operation."""
    dist.init_process_group(backend, timeout=LONG)
    x = torch.ones(10)
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        group = dist.new_group([0, 1], timeout=LONG)
        threading.Timer(0.3, group.abort).start()
        expect("an abort", lambda: dist.all_reduce(x, group=group, async_op=True).wait())
        expect("a call after the abort", lambda: dist.all_reduce(x, group=group))
    else:
        dist.new_group([0, 1], timeout=LONG)
        time.sleep(1.5)
    dist.all_reduce(x)  # the other groups continue
    for name, options in (("compress", {"codec": "int8"}), ("fuse", {})):  # which hold an operation of rank 0
        group = dist.new_group([0, 1], timeout=LONG)
        dist.set_passes([name], group)
        work = dist.all_reduce(x, group=group, async_op=True, **options) if dist.get_rank() == 0 else None
        time.sleep(0.2)  # the library has a part of the operation by then, which the other rank never joins
        group.abort()
        dist.all_reduce(x)
        if work is not None:
            expect("an abort of a held operation", work.wait)
    say("DONE")


def aborted_in_calls(backend: str) -> None:
    """Another thread gives groups up, at last the default one, while this one makes many calls on them."""
    dist.init_process_group(backend, timeout=LONG)

    def make_calls(group: torch_dist.ProcessGroup | None, turn: int, begun: threading.Event, ended: list[str]) -> None:
        x = torch.ones(2)
        try:
            while True:
                # A blocking collective of MPI stays there.
                work = dist.all_reduce(x, group=group, async_op=turn % 2 == 0 or backend == "mpi")
                if work is not None:
                    work.wait()
                begun.set()
        except (dist.McrError, RuntimeError) as error:
            ended.append(type(error).__name__)

    turns = 20
    for turn in range(turns):
        group = dist.new_group(timeout=LONG) if turn != turns - 1 else None
        begun = threading.Event()
        ended: list[str] = []
        caller = threading.Thread(target=make_calls, args=(group, turn, begun, ended))
        caller.start()
        assert begun.wait(60)
        (group or torch_dist.group.WORLD).abort()
        caller.join()
        assert ended, turn
        if group is not None:
            dist.barrier()
    say("DONE")


def no_thread_waits(backend: str) -> None:
    """An operation without a waiting thread fails at its timeout: its future gets the error."""
    dist.init_process_group(backend, timeout=LONG)
    x = torch.ones(10)
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True, timeout=LIMIT)
        future = work.get_future()
        expect("a future without an end", future.wait)
        expect("a work without an end", work.wait)
    else:
        time.sleep(4)
    say("DONE")
    os._exit(0)


class _Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


def forked(backend: str) -> None:
    """DataLoader's workers are forked after init, and end; a forked process that communicates gets an error."""
    dist.init_process_group(backend, timeout=LONG)
    total = torch.zeros(1)
    for batch in DataLoader(_Numbers(), batch_size=4, num_workers=2):
        part = batch.sum()
        dist.all_reduce(part)
        total += part
    assert total.item() == 120.0 * dist.get_world_size(), total
    others = torch.zeros(1)
    left = (dist.get_rank() - 1) % dist.get_world_size()
    receive = dist.irecv(others, src=left)
    child = os.fork()
    if child == 0:
        assert not receive.is_completed()
        expect("a wait in a forked process", receive.wait)
        expect("a call in a forked process", lambda: dist.all_reduce(torch.ones(1)))
        expect("a group in a forked process", lambda: dist.new_group([0, 1]))
        sys.exit(7)
    _, status = os.waitpid(child, 0)
    say("CHILD", os.waitstatus_to_exitcode(status))
    dist.send(torch.ones(1), dst=(dist.get_rank() + 1) % dist.get_world_size())
    receive.wait()
    assert others.item() == 1.0, others
    dist.all_reduce(total)
    dist.destroy_process_group()
    say("DONE")


def without_finalize(backend: str) -> None:
    """The program ends with pending operations and without finalize."""
    dist.init_process_group(backend, timeout=LONG)
    x = torch.ones(100000)
    works = [dist.all_reduce(x.clone(), async_op=True) for _ in range(5)]
    say("DONE", len(works))


def finalize_outstanding(backend: str) -> None:
    """Finalize completes pending operations."""
    dist.init_process_group(backend, timeout=LONG)
    x = torch.ones(1000)
    work = dist.all_reduce(x, async_op=True)
    dist.destroy_process_group()
    work.wait()
    assert x.eq(dist_size()).all()
    say("DONE")


def dist_size() -> int:
    """The number of ranks, from the environment."""
    return int(os.environ["WORLD_SIZE"])


def full_disk(backend: str) -> None:
    """Traces and dumps go to a full disk: training continues, and the error text does not change."""
    dist.init_process_group(backend, timeout=LONG)
    x = torch.ones(10)
    for _ in range(3):
        dist.all_reduce(x)
    if dist.get_rank() == 0:
        expect("a time limit", lambda: dist.all_reduce(x, async_op=True, timeout=LIMIT).wait())
    else:
        time.sleep(2.5)
        with contextlib.suppress(dist.BackendError):  # gloo gives the group up after a timeout
            dist.all_reduce(x, async_op=True).wait()
    dist.destroy_process_group()
    say("DONE")


def late(backend: str) -> None:
    """Rank 1 is late for a call with its own timeout."""
    dist.init_process_group(backend, timeout=LONG)
    x = torch.ones(10)
    dist.all_reduce(x)
    say("READY")
    if dist.get_rank() == 1:
        time.sleep(20)
    expect("a time limit", lambda: dist.all_reduce(x, async_op=True, timeout=LIMIT).wait())
    time.sleep(1)  # Open MPI's launcher ends the others at once
    os._exit(3)


def late_again(backend: str) -> None:
    """As late, but the program keeps a group of the same name from before the runtime started again."""
    dist.init_process_group(backend, timeout=LONG)
    kept = dist.new_group(use_local_synchronization=True)
    for _ in range(5):
        dist.all_reduce(torch.ones(10), group=kept)
    dist.destroy_process_group()
    dist.init_process_group(backend, timeout=LONG)
    group = dist.new_group(use_local_synchronization=True)
    dist.all_reduce(torch.ones(10), group=group)
    if dist.get_rank() == 1:
        time.sleep(20)
    expect("a time limit", lambda: dist.all_reduce(torch.ones(10), group=group, async_op=True, timeout=LIMIT).wait())
    os._exit(3)


def impatient(backend: str) -> None:
    """Rank 1 is late; rank 2 gives up and ends before rank 0's limit."""
    dist.init_process_group(backend, timeout=LONG)
    x = torch.ones(10)
    dist.all_reduce(x)
    rank = dist.get_rank()
    if rank == 1:
        time.sleep(20)
    expect("a time limit", lambda: dist.all_reduce(x, async_op=True, timeout=1.0 + 2.0 * (rank == 0)).wait())
    if rank == 0:
        os._exit(3)


def late_through_torch(backend: str) -> None:
    """A late rank in a program of torch.distributed: its blocking call, and one that is waited for by its future."""
    os.environ["MCR_DL_BACKENDS"] = backend
    torch_dist.init_process_group("mcr", timeout=LONG)
    torch_dist.all_reduce(torch.ones(10))
    group = torch_dist.new_group(timeout=LIMIT)
    torch_dist.all_reduce(torch.ones(10), group=group)
    if torch_dist.get_rank() == 1:
        time.sleep(20)
    work = torch_dist.all_reduce(torch.ones(10), group=group, async_op=True)
    expect("a future without an end", work.get_future().wait)
    expect("a time limit", lambda: torch_dist.all_reduce(torch.ones(10), group=group))
    os._exit(3)


def late_fused(backend: str) -> None:
    """Rank 1 is late for calls that ``fuse`` holds: one fails at its timeout, the others and the group go on."""
    dist.init_process_group(backend, timeout=LONG)
    group = dist.new_group(timeout=LIMIT)
    dist.set_passes(["fuse"], group)
    x, y, z = (torch.full((size,), dist.get_rank() + 1.0) for size in (4, 5, 6))
    late = dist.get_rank() == 1
    if late:
        dist.barrier(async_op=True).wait()
    patient = dist.all_reduce(x, group=group, async_op=True, timeout=LONG)
    impatient = dist.all_reduce(y, group=group, async_op=True, timeout=LONG if late else None)
    if late:
        impatient.wait()
        assert y.eq(3).all(), y
    else:
        expect("a time limit", impatient.wait)
        dist.barrier(async_op=True).wait()
    patient.wait()
    dist.all_reduce(z, group=group, async_op=True, timeout=LONG).wait()
    assert x.eq(3).all(), x
    assert z.eq(3).all(), z
    say("DONE")


def differ(backend: str) -> None:
    """Without the detail mode: the timeout error shows the difference."""
    dist.init_process_group(backend, timeout=LONG)
    x = torch.ones(10)
    if dist.get_rank() == 1:
        expect("a time limit", lambda: dist.broadcast(x, src=0, async_op=True, timeout=LIMIT).wait())
        dist.get_rank()
    else:
        expect("a time limit", lambda: dist.all_reduce(x, async_op=True, timeout=LIMIT).wait())
    time.sleep(1)
    os._exit(3)


def sizes(backend: str) -> None:
    """Without the detail mode: a library that notices that sizes differ."""
    dist.init_process_group(backend, timeout=LONG)
    x = torch.arange(1000.0 if dist.get_rank() == 0 else 900.0)
    with contextlib.suppress(AssertionError):
        expect("a difference", lambda: dist.all_reduce(x, timeout=2))
    os._exit(3)


def roots(backend: str) -> None:
    """Each rank takes itself for the root, so that none reads what another one has sent, before the next call."""
    dist.init_process_group(backend, timeout=LONG)
    x = torch.ones(10)
    dist.broadcast(x, src=dist.get_rank())
    expect("a difference", lambda: dist.all_reduce(x))
    time.sleep(1)
    os._exit(3)


def many_pending(backend: str) -> None:
    """Many pending operations, of which the three newest have a shorter timeout."""
    dist.init_process_group(backend, timeout=LONG)
    older = 1200
    tags = range(older + 3)
    if dist.get_rank() == 0:
        works = [dist.irecv(torch.empty(1), 1, tag=tag, timeout=600 if tag < older else 60) for tag in tags]
        assert _C.overdue(-59.9) == []  # their clocks start here, unless the sampler was faster
        deadline = time.monotonic() + 20
        while len(found := _C.overdue(-59.9)) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [known["limit"] for _, known in found] == [60.0] * 3, found
        assert all(known["age"] > 0.1 and known["op"] == "recv" for _, known in found), found
        assert _C.overdue(0.0) == []
        assert len(_C.pending(older + 9)) == older + 3
        assert _C.pending(lost=True) == []
        dist.send(torch.ones(1), 1)
        for work in works:
            work.wait()
        assert _C.overdue(-600.0) == []
    else:
        dist.recv(torch.empty(1), 0)
        for tag in tags:
            dist.send(torch.ones(1), 0, tag=tag)
    dist.destroy_process_group()
    say("DONE")


def store_dies(backend: str, phase: str) -> None:
    """The test kills the store's process once all ranks are ready: communication continues without it."""
    dist.init_process_group(backend, timeout=LONG)
    x = torch.ones(1000)
    dist.all_reduce(x)
    say("READY")
    until = time.monotonic() + 2.0
    if phase == "idle":
        time.sleep(2.0)
    while phase != "idle":
        works = [dist.all_reduce(torch.ones(1000), async_op=phase == "storm") for _ in range(8)]
        for work in works:
            if work is not None:
                work.wait()
        go_on = torch.tensor([1.0 if time.monotonic() < until else 0.0])
        dist.all_reduce(go_on, op=dist.ReduceOp.MIN)
        if not go_on:
            break
    dist.all_reduce(x)
    assert x.eq(float(dist.get_world_size() ** 2)).all()
    expect("a barrier over the store", dist.monitored_barrier)
    say("DONE")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
