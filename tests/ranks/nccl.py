# SPDX-License-Identifier: Apache-2.0
"""The backend nccl on the stand-in library, on one rank."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import mcr_dl
from mcr_dl import _C, BackendError, UnsupportedError
from mcr_dl.testing import checks, reference
from mcr_dl.testing.calls import Case
from mcr_dl.testing.expect import expect
from mcr_dl.testing.position import note
from ranks import session

_LATE = 20.0  # seconds within which the watchdog must notice a failure


def library() -> ctypes.CDLL:
    """The stand-in, with its functions for tests."""
    return ctypes.CDLL(os.environ["MCR_DL_NCCL_LIB"])


def inject(text: str) -> None:
    """Make a call fail: see mcr_stand_in_fail() in tests/standin/api.cc."""
    library().mcr_stand_in_fail(text.encode())


def world() -> _C.Group:
    made = _C.world()
    assert made is not None
    return made


def run_all(cases: Sequence[Case]) -> tuple[int, int]:
    """Run what nccl supports, and check that the rest is rejected with nothing sent; returns the numbers of both."""
    session.start("nccl")
    session.groups()
    done = refused = 0
    for case in cases:
        checks.run(case)
        if checks.supported(case):
            done += 1
        elif case.count > 0:
            refused += 1
    return done, refused


def support() -> dict[str, str]:
    """All of `dtype reduction` with the support for an all_reduce of them."""
    session.start("nccl")
    return {
        f"{dtype} {red}": world()._support("nccl", "all_reduce", dtype, red, False)
        for dtype in _C.dtypes()
        for red in _C.reductions()
        if _C.reduction_defined(dtype, red)
    }


# ---- messages


def _sizes(dtype: torch.dtype, count: int, sender: int, turn: int) -> torch.Tensor:
    return reference.values(dtype, count, 1000 * turn + sender)


def messages(dtypes: Sequence[str], counts: Sequence[int]) -> int:
    """Around a ring, in NCCL's way: the rank determines which side sends first, as one side must be receiving."""
    session.start("nccl")
    size, rank = mcr_dl.get_world_size(), mcr_dl.get_rank()
    after, before = (rank + 1) % size, (rank - 1) % size
    turn = 0
    for name in dtypes:
        for count in counts:
            for asynchronous in (False, True):
                turn += 1
                note(f"message {name} {count} {asynchronous}")
                dtype = reference.dtype_of(name)
                mine, got = _sizes(dtype, count, rank, turn), _sizes(dtype, count, size, turn)
                works: list[Any] = []

                def send(tensor: torch.Tensor = mine, works: list[Any] = works, started: bool = asynchronous) -> None:
                    # NCCL has no tags: these two match.
                    works.append((mcr_dl.isend if started else mcr_dl.send)(tensor, after, tag=3))

                def recv(tensor: torch.Tensor = got, works: list[Any] = works, started: bool = asynchronous) -> None:
                    works.append((mcr_dl.irecv if started else mcr_dl.recv)(tensor, before, tag=4))

                for step in (send, recv) if rank % 2 == 0 else (recv, send):
                    step()
                for work in works:
                    if asynchronous:
                        assert work.wait() is True
                if not asynchronous:
                    assert sorted(str(work) for work in works) == sorted(["None", str(before)]), works
                reference.assert_same(got, _sizes(dtype, count, before, turn), f"message {name} {count}")
    return turn


def batches(count: int) -> None:
    """All ranks to all ranks at once, several messages each, larger than the buffer between two ranks."""
    session.start("nccl")
    size, rank = mcr_dl.get_world_size(), mcr_dl.get_rank()
    operations_: list[mcr_dl.P2POp] = []
    wanted = []
    for turn, length in enumerate((count, 0, 5)):
        for peer in range(size):
            if peer == rank:
                continue
            got = torch.empty(length, dtype=torch.float64)
            wanted.append((got, _sizes(torch.float64, length, peer * size + rank, turn)))
            operations_.append(mcr_dl.P2POp(mcr_dl.irecv, got, peer))
            mine = _sizes(torch.float64, length, rank * size + peer, turn)
            operations_.append(mcr_dl.P2POp(mcr_dl.isend, mine, peer))
    for work in mcr_dl.batch_isend_irecv(operations_):
        work.wait()
    for got, want in wanted:
        reference.assert_same(got, want, "a message of a batch")


def from_any() -> None:
    """NCCL receives only from a named rank."""
    session.start("nccl")
    for call in (mcr_dl.recv, mcr_dl.irecv):
        expect(UnsupportedError, lambda call=call: call(torch.ones(1)), f"nccl.{call.__name__}")
    good()


# ---- failures


def good(group: Any = None) -> None:
    """A correct call that all ranks make."""
    size, rank = mcr_dl.get_world_size(group), mcr_dl.get_rank(group)
    tensor = torch.full((5,), float(rank + 1))
    mcr_dl.all_reduce(tensor, group=group)
    assert tensor.tolist() == [size * (size + 1) / 2] * 5


def _wrong_size(group: Any, rank: int) -> Any:
    return mcr_dl.all_reduce(torch.ones(4 + rank), group=group)


def _wrong_size_started(group: Any, rank: int) -> Any:
    return mcr_dl.all_reduce(torch.ones(4 + rank), group=group, async_op=True).wait()


def _wrong_root(group: Any, rank: int) -> Any:
    return mcr_dl.broadcast(torch.ones(3), rank, group=group)


def _wrong_reduction(group: Any, rank: int) -> Any:
    return mcr_dl.reduce(torch.ones(3), 0, mcr_dl.ReduceOp.MAX if rank == 0 else mcr_dl.ReduceOp.MIN, group=group)


def _wrong_operation(group: Any, rank: int) -> Any:
    if rank == 0:
        return mcr_dl.all_gather_single(torch.empty(2 * mcr_dl.get_world_size(group)), torch.ones(2), group=group)
    return mcr_dl.reduce_scatter_tensor(torch.empty(2), torch.ones(2 * mcr_dl.get_world_size(group)), group=group)


def _wrong_message(group: Any, rank: int) -> Any:
    if rank == 0:
        return mcr_dl.recv(torch.ones(4), 1, group=group)
    return mcr_dl.send(torch.ones(3), 0, group=group)


MISMATCHES: dict[str, tuple[Callable[[Any, int], Any], tuple[str, str]]] = {
    "size": (_wrong_size, ("ncclAllReduce(count 4", "ncclAllReduce(count 5")),
    "size, asynchronous": (_wrong_size_started, ("ncclAllReduce(count 4", "ncclAllReduce(count 5")),
    "root": (_wrong_root, ("root 0", "root 1")),
    "reduction": (_wrong_reduction, ("ncclMax", "ncclMin")),
    "operation": (_wrong_operation, ("ncclAllGather", "ncclReduceScatter")),
    "message": (_wrong_message, ("count 12", "count 16")),
}


def mismatch(name: str) -> str:
    """Two ranks make mismatched calls in a separate group: NCCL's error, and other groups stay usable."""
    session.start("nccl")
    group = mcr_dl.new_group([0, 1])
    rank = mcr_dl.get_rank()
    call, words = MISMATCHES[name]
    text = ""
    if rank == 1 and name == "message":
        call(group, rank)  # a sender does not notice until it makes another call
    elif rank < 2:
        text = str(expect(BackendError, lambda: call(group, rank), "invalid usage", "calls do not match", *words))
    if rank < 2:
        eventually_refused(group)
    good()
    if rank < 2:
        mcr_dl.destroy_process_group(group)
    good()
    return text


def eventually_refused(group: Any, word: str = "") -> str:
    """Calls of a broken group raise, at the latest once the watchdog has noticed; waits for a text with the word."""
    deadline = time.monotonic() + _LATE
    while time.monotonic() < deadline:
        try:
            mcr_dl.barrier(group=group)
        except BackendError as error:
            if word in str(error):
                return str(error)
        time.sleep(0.02)
    raise AssertionError(f"no BackendError with {word!r} within {_LATE} s")


def failing_call(function: str) -> str:
    """A call that NCCL rejects on all ranks before anything is sent: its text; the group stays usable."""
    session.start("nccl")
    good()
    inject(f"{function}:1")
    size = mcr_dl.get_world_size()
    calls: dict[str, Callable[[], Any]] = {
        "ncclAllReduce": good,
        "ncclGroupStart": lambda: _vectored(size),
        "ncclSend": lambda: _vectored(size),
        "ncclGroupEnd": lambda: _vectored(size),
    }
    words = (function, "internal error", f"a failure of {function} that a test has asked for")
    error = expect(BackendError, calls[function], *words)
    good()
    _vectored(size)
    return str(error)


def _vectored(size: int) -> None:
    got = torch.zeros(2 * size)
    mcr_dl.all_gatherv(got, torch.full((2,), float(mcr_dl.get_rank())), [2] * size)
    assert got.tolist() == [float(rank) for rank in range(size) for _ in range(2)]


def failing_device(culprit: int) -> tuple[str, str]:
    """An asynchronous error on one rank: the watchdog ends the group's operations on all ranks; others stay usable."""
    session.start("nccl")
    group = mcr_dl.new_group()
    good(group)
    if mcr_dl.get_rank() == culprit:
        inject("async:1")
    good(group)  # the call itself succeeds
    first = eventually_refused(group)
    second = eventually_refused(group, "ncclCommGetAsyncError")  # then the watchdog finds it
    good()
    mcr_dl.destroy_process_group(group)
    good()
    return first, second


def failing_connect() -> str:
    """The first rank cannot make an id: all ranks get its error, and no rank waits."""
    session.start("nccl")
    if mcr_dl.get_rank() == 0:
        inject("ncclGetUniqueId:1")
    error = expect(BackendError, mcr_dl.new_group, "ncclGetUniqueId", "internal error")
    good()
    return str(error)


# ---- lanes, lifetime, choice


def lanes() -> int:
    """Many pending calls on several groups; returns how many communicators of the library each group has."""
    session.start("nccl")
    groups = [group for group in session.groups().values() if group is not None]
    before = library().mcr_stand_in_comms()
    works = []
    for turn in range(40):
        for group in groups:
            tensor = torch.full((3,), float(turn))
            works.append((mcr_dl.all_reduce(tensor, group=group, async_op=True), tensor, turn, group))
    for work, tensor, turn, group in works:
        work.wait()
        assert tensor.tolist() == [float(turn * mcr_dl.get_world_size(group))] * 3
    assert library().mcr_stand_in_comms() == before
    return int(before) // len(groups)


def lifetime() -> list[int]:
    """The number of the library's communicators before, with, and after another group; then after finalize."""
    session.start("nccl")
    counts = [library().mcr_stand_in_comms()]
    group = mcr_dl.new_group()
    good(group)
    counts.append(library().mcr_stand_in_comms())
    mcr_dl.destroy_process_group(group)
    counts.append(library().mcr_stand_in_comms())
    session.stop()
    counts.append(library().mcr_stand_in_comms())
    session.start("nccl")
    good()
    return counts


def automatic() -> list[str]:
    """The backends that `auto` starts here, though the stand-in is named."""
    session.stop()
    mcr_dl.init_process_group("auto")
    names = mcr_dl.get_backends()
    tensor = torch.ones(3)
    mcr_dl.all_reduce(tensor)
    assert tensor.tolist() == [float(mcr_dl.get_world_size())] * 3
    session.stop()
    session.start("nccl")
    return names


def status() -> str:
    return str(mcr_dl.available_backends()["nccl"])
