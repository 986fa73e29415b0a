# SPDX-License-Identifier: Apache-2.0
"""Starting, ending and starting again; and sizes that disagree between ranks."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as torch_dist

import mcr_dl
from mcr_dl import (
    _C,
    BackendError,
    BackendUnavailableError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    InvalidTypeError,
    McrError,
    NotInitializedError,
)
from mcr_dl.base import launcher
from mcr_dl.libraries import registry
from mcr_dl.measure.start import own_core
from mcr_dl.runtime import core_groups, devices, rounds, state
from mcr_dl.runtime.attempts import Attempt
from mcr_dl.runtime.stage import make_stage
from mcr_dl.testing.expect import expect
from ranks import errors, session

_OUTSIDE: dict[str, Callable[[], Any]] = {
    "operation": lambda: mcr_dl.all_reduce(torch.ones(1)),
    "asynchronous operation": lambda: mcr_dl.all_reduce(torch.ones(1), async_op=True),
    "Listing 1's spelling": lambda: mcr_dl.broadcast("mpi", torch.ones(1), 0),
    "send": lambda: mcr_dl.send(torch.ones(1), 1),
    "barrier": mcr_dl.barrier,
    "new_group": lambda: mcr_dl.new_group([0]),
    "get_rank": mcr_dl.get_rank,
    "get_world_size": mcr_dl.get_world_size,
    "get_backends": mcr_dl.get_backends,
    "objects": lambda: mcr_dl.broadcast_object_list([1], 0),
    "synchronize": mcr_dl.synchronize,
    "finalize": mcr_dl.finalize,
    "monitored_barrier": mcr_dl.monitored_barrier,
}


def outside() -> int:
    """Before init and after finalize every call names what is missing; then a new init works."""
    session.stop()
    for repetition in range(2):
        assert not mcr_dl.is_initialized()
        for call in _OUTSIDE.values():
            expect(NotInitializedError, call, "initialized", "init_process_group")
        session.start()
        assert mcr_dl.is_initialized()
        assert mcr_dl.get_backends() == list(session.BACKENDS)
        for backend in session.BACKENDS:
            errors.good_call(backend)
        if repetition == 0:
            session.stop()
    return len(_OUTSIDE)


def second_init() -> None:
    """A second init is rejected and changes nothing."""
    session.start()
    expect(InvalidArgumentError, lambda: mcr_dl.init_process_group("gloo"), "init", "already")
    expect(InvalidArgumentError, lambda: mcr_dl.init(["mpi"]), "init", "already")
    for backend in session.BACKENDS:
        errors.good_call(backend)


def wrong_init() -> None:
    """Unknown names and impossible ranks are rejected on every rank, and the next init works."""
    session.stop()
    expect(InvalidArgumentError, lambda: mcr_dl.init("nope"), "backend", "expected", "nope")
    expect(InvalidArgumentError, lambda: mcr_dl.init("tpu:mpi"), "backend", "expected", "tpu")
    expect(InvalidArgumentError, lambda: mcr_dl.init([3]), "backend", "expected")  # type: ignore[list-item]
    expect(InvalidArgumentError, lambda: mcr_dl.init("mpi", rank=2, world_size=2), "rank", "expected", "got 2")
    expect(InvalidArgumentError, lambda: mcr_dl.init("mpi", rank=2), "rank", "expected")
    both: dict[str, Any] = {"init_method": "env://", "store": torch_dist.HashStore()}
    expect(InvalidArgumentError, lambda: mcr_dl.init("mpi", **both), "init_method and store: expected one of the two")
    assert not mcr_dl.is_initialized()
    mine = "mpi" if mcr_dl.base.launcher.detect().rank == 0 else "gloo"
    expect(InvalidArgumentError, lambda: mcr_dl.init(mine), "backend", "same on all ranks", "mpi", "gloo")
    options = mcr_dl.Options(backends=["gloo"])
    expect(InvalidArgumentError, lambda: mcr_dl.init("mpi", pg_options=options), "expected gloo", "got 'mpi'")
    no_options = ["gloo"] if mine == "mpi" else None  # on rank 0 alone
    error = InvalidArgumentError if no_options is None else InvalidTypeError
    expect(error, lambda: mcr_dl.init(pg_options=no_options), "pg_options: expected mcr_dl.Options(", "got list")
    assert not mcr_dl.is_initialized()
    for name in (None, "mcr", [" MCR "], "gloo"):
        with mock.patch.dict("os.environ", MCR_DL_BACKENDS="mpi"):
            mcr_dl.init_process_group(name, pg_options=options)
        assert mcr_dl.get_backends() == ["gloo"]
        mcr_dl.destroy_process_group()
    session.start()
    for backend in session.BACKENDS:
        errors.good_call(backend)


def started_before() -> None:
    """A rank whose process has run a job of its own before, as in a pool of workers."""
    session.stop()
    if launcher.detect().rank == 0:
        mcr_dl.init("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
        mcr_dl.finalize()
    session.start()
    for backend in session.BACKENDS:
        errors.good_call(backend)
    own = _cores()
    with mock.patch.dict("os.environ"):
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):  # as torch.multiprocessing.spawn
            os.environ.pop(name, None)
        assert _cores() == own
        assert mcr_dl.get_node_local_rank() == mcr_dl.get_rank()


class _Raising:
    """A pass of a program that fails before the ranks have agreed on anything."""

    name = "raising"

    def terms(self) -> dict[str, Any]:
        raise LookupError("no terms")

    def make(self, *_: Any) -> Any:
        raise AssertionError


def wrong_variables() -> None:
    """A wrong value, backend, table or pass on one rank is an error on all ranks, and at once."""
    session.stop()
    for name in ("HOST_TIMEOUT", "DEBUG", "LOG", "SHM_DIRECT", "BACKENDS", "PASSES"):
        with mock.patch.dict("os.environ", {f"MCR_DL_{name}": "x"} if launcher.detect().rank == 1 else {}):
            expect(InvalidArgumentError, mcr_dl.init_process_group, f"MCR_DL_{name}", "rank 1", "'x'")
    names = "golo" if launcher.detect().rank == 1 else "gloo"
    expect(InvalidArgumentError, lambda: mcr_dl.init_process_group(names), "rank 1: backend", "'golo'")
    table = "tuning_table: expected a path, 'none' or None, got 5"
    wrong: tuple[tuple[type[Exception], str, dict[str, Any]], ...] = (
        (InvalidTypeError, table, {"tuning_table": 5}),
        (LookupError, "no terms", {"passes": [_Raising()]}),
    )
    for kind, text, options in wrong:
        if launcher.detect().rank == 1:  # the error's own class, and its text alone
            expect(kind, functools.partial(mcr_dl.init_process_group, "gloo", **options), text)
        else:
            expect(InvalidArgumentError, lambda: mcr_dl.init_process_group("gloo"), "rank 1: ", text)
    session.start()


def _cores() -> list[int | None]:
    """The core of each rank in a first start's measurements; none share one."""
    found: list[int | None] = [None] * mcr_dl.get_world_size()
    mcr_dl.all_gather_object(found, own_core())
    assert None in found or len(set(found)) == len(found)
    return found


def finalize_some() -> None:
    """finalize(["gloo"]) ends gloo alone; the rest ends with the last one."""
    session.stop()
    session.start()
    group = mcr_dl.new_group()
    expect(NotInitializedError, lambda: mcr_dl.finalize(["null"]), "null", "expected")
    mcr_dl.finalize(["gloo"])
    left = [name for name in session.BACKENDS if name != "gloo"]
    assert mcr_dl.get_backends() == left
    expect(NotInitializedError, lambda: mcr_dl.all_reduce(torch.ones(1), backend="gloo"), "gloo", "mpi")
    expect(NotInitializedError, lambda: mcr_dl.all_reduce(torch.ones(1), group=group, backend="gloo"), "gloo")
    errors.good_call("mpi")
    errors.good_call("mpi", group)
    errors.good_call("mpi", group.split_group(list(range(mcr_dl.get_world_size()))))
    mcr_dl.finalize(left)
    assert not mcr_dl.is_initialized()
    session.start()


def other_orders() -> None:
    """The backends in another order, alone, and as text: the group's choice is the first."""
    for wanted, names in (
        ("gloo", ["gloo"]),
        (["gloo", "mpi"], ["gloo", "mpi"]),
        ("cpu:mpi", ["mpi"]),
        ("mpi,gloo", ["mpi", "gloo"]),
    ):
        session.stop()
        mcr_dl.init_process_group(wanted, timeout=timedelta(seconds=30))
        assert mcr_dl.get_backends() == names
        assert mcr_dl.get_backend() == names[0]
        assert mcr_dl.group.WORLD is torch.distributed.group.WORLD is not None
        assert _C.group_of(mcr_dl.group.WORLD).timeout == timedelta(seconds=30)
        for name in names:
            errors.good_call(name)
    session.stop()
    session.start()


def groups_after_an_error() -> None:
    """A call for a group that raises on one rank alone counts there, so that later groups have equal names."""
    session.start()
    alone = mcr_dl.get_rank() == 0
    for make in (
        lambda ranks: mcr_dl.new_group(ranks, timeout=30),
        lambda ranks: mcr_dl.split_group(None, [ranks], timeout=30),
    ):
        if alone:
            mcr_dl.destroy_process_group(make([0]))
        else:
            expect(InvalidArgumentError, lambda make=make: make([7]), "expected 0 to 1")
        group = make([0, 1])
        tensor = torch.ones(3)
        mcr_dl.all_reduce(tensor, group=group)
        assert tensor.tolist() == [2.0] * 3
        mcr_dl.destroy_process_group(group)


def local_groups_after_an_error() -> None:
    """A rank that has made one group less than the others, which have given it up, meets them in the next one."""
    session.start()
    make = functools.partial(mcr_dl.new_group, use_local_synchronization=True)
    if mcr_dl.get_rank() == 0:
        expect(CollectiveTimeoutError, lambda: make([0, 1], timeout=0.5), "rank 1 did not come")
    else:
        expect(InvalidArgumentError, lambda: make([7]), "expected 0 to 1")
    mcr_dl.barrier()
    group = make([0, 1])
    tensor = torch.ones(3)
    mcr_dl.all_reduce(tensor, group=group)
    assert tensor.tolist() == [2.0] * 3
    mcr_dl.destroy_process_group(group)


def group_that_fails_on_one_rank(backend: str, step: str) -> None:
    """All ranks raise at once, and the next group works."""
    session.start()
    last = mcr_dl.get_world_size() - 1
    text = "OSError: [Errno 24] no more of them"
    after = ["mpi"] if backend == "gloo" else ["null"]  # where the others would wait for that rank
    for names in ([backend], ["null", backend], [backend, *after]):
        if mcr_dl.get_rank() == last:
            library = registry.describe(backend)
            with mock.patch.object(library, step, side_effect=OSError(24, "no more of them")):
                expect(OSError, lambda names=names: mcr_dl.new_group(backend=names), "no more of them")
        else:
            make = functools.partial(mcr_dl.new_group, backend=names)
            expect(BackendUnavailableError, make, f"cannot be made: rank {last}: {text}")
        group = mcr_dl.new_group(backend=names)
        tensor = torch.ones(3)
        mcr_dl.all_reduce(tensor, group=group, backend=backend)
        assert tensor.tolist() == [last + 1.0] * 3
        mcr_dl.destroy_process_group(group)


def group_after_an_interrupt() -> None:
    """The other ranks raise, and a group of that name can be made afterwards."""
    session.start()
    world = _C.world()
    assert world is not None
    last = world.size() - 1
    make = functools.partial(core_groups.make, "again", list(world.ranks), ["gloo"], world.timeout)
    if world.rank() == last:
        interrupted = mock.patch.object(rounds.Round, "conclude", side_effect=KeyboardInterrupt)
        with interrupted, contextlib.suppress(KeyboardInterrupt):
            raise AssertionError(f"made {make()}")
    else:
        expect(BackendUnavailableError, make, f"cannot be made: rank {last}: KeyboardInterrupt")
    group = make()
    _C.barrier(group=group, backend="gloo")
    core_groups.forget_group(group)


def group_that_connects_too_late() -> None:
    """A timeout of torch's store is one of the group, and the next group works."""
    session.start()
    late = torch.distributed.DistStoreError("no address")
    with mock.patch.object(registry.describe("gloo"), "create", side_effect=late):
        text = "connecting gloo timed out: no address"
        expect(CollectiveTimeoutError, lambda: mcr_dl.new_group(backend="gloo"), text)
    mcr_dl.destroy_process_group(mcr_dl.new_group(backend="gloo"))


def stage_that_fails_on_one_rank() -> None:
    """All ranks raise, and have no stage; the next try gives them one."""
    session.start()
    group = mcr_dl.new_group(backend="gloo")
    last = mcr_dl.get_world_size() - 1
    make = functools.partial(mcr_dl.set_passes, ["compress"], group)
    if mcr_dl.get_rank() == last:
        with mock.patch.object(registry.describe("gloo"), "started", side_effect=OSError(24, "no more of them")):
            expect(OSError, make, "no more of them")
    else:
        expect(BackendUnavailableError, make, f"/stage' cannot be made: rank {last}: OSError")
    make()
    tensor = torch.ones(3)
    mcr_dl.all_reduce(tensor, group=group)
    assert tensor.tolist() == [last + 1.0] * 3
    mcr_dl.destroy_process_group(group)


def group_with_a_stage_that_fails_on_one_rank() -> None:
    """That rank fails before it comes to the stage, where the others would wait for it."""
    session.start()
    last = mcr_dl.get_world_size() - 1
    make = functools.partial(mcr_dl.new_group, backend="gloo")
    with contextlib.ExitStack() as patches:  # as with a device
        patches.enter_context(mock.patch.object(state.current(), "staging", 1))
        patches.enter_context(mock.patch.object(devices, "stage", lambda group, _, outer: make_stage(group, outer)))
        if mcr_dl.get_rank() == last:
            with mock.patch.object(registry.describe("gloo"), "started", side_effect=OSError(24, "no more of them")):
                expect(OSError, make, "no more of them")
        else:
            expect(BackendUnavailableError, make, f"cannot be made: rank {last}: OSError")
        mcr_dl.destroy_process_group(make())


def group_whose_staging_fails_on_one_rank() -> None:
    """That rank fails once it has its stage, when the others compare how they hand over device memory."""
    session.start()
    last = mcr_dl.get_world_size() - 1
    make = functools.partial(mcr_dl.new_group, backend="gloo")
    give_stage = make_stage

    def fail(group: _C.Group, outer: Attempt | None) -> None:
        give_stage(group, outer)
        raise OSError(24, "no more of them")

    with mock.patch.object(state.current(), "staging", 1):  # as with a device
        if mcr_dl.get_rank() == last:
            with mock.patch.object(devices, "make_stage", fail):
                expect(OSError, make, "no more of them")
        else:
            expect(BackendUnavailableError, make, f"cannot be made: rank {last}: OSError")
    mcr_dl.destroy_process_group(make())


def shrink_that_fails_on_one_rank() -> None:
    """All ranks raise at once, whatever the error is, and the next one works."""
    session.start()
    last = mcr_dl.get_world_size() - 1
    make = functools.partial(mcr_dl.shrink, backend="gloo")
    fails = mock.patch.object(registry.describe("gloo"), "started", side_effect=KeyError("no such key"))
    with fails if mcr_dl.get_rank() == last else contextlib.nullcontext():
        expect(BackendUnavailableError, make, f"cannot be made: rank {last}: KeyError: 'no such key'")
    group = make()
    tensor = torch.ones(3)
    mcr_dl.all_reduce(tensor, group=group)
    assert tensor.tolist() == [last + 1.0] * 3
    mcr_dl.destroy_process_group(group)


def groups_with_other_backends() -> None:
    """All ranks raise, and the next group works."""
    session.start()
    size = mcr_dl.get_world_size()
    last = mcr_dl.get_rank() == size - 1
    for names, others in ((["gloo"], ["null"]), (["mpi", "gloo"], ["gloo", "mpi"])):
        text = f"got {', '.join(names)} on rank 0 and {', '.join(others)} on rank {size - 1}"
        make = functools.partial(mcr_dl.new_group, backend=others if last else names)
        expect(InvalidArgumentError, make, "backend: expected the same on all ranks", text)
        mcr_dl.destroy_process_group(mcr_dl.new_group(backend=names))


class _Ended(torch_dist.Store):
    """A store whose process has ended."""

    def add(self, *_: Any) -> int:
        raise torch_dist.DistNetworkError("the connection has been closed")

    check = add


def groups_without_a_store() -> None:
    """The error is mcr_dl's, and the groups that exist go on."""
    session.start()
    for make in (mcr_dl.new_group, mcr_dl.new_subgroups):
        with mock.patch.object(state.State, "store", _Ended()):
            expect(BackendError, make, "the job's store cannot be reached: the connection has been closed")
    errors.good_call("gloo")


# ---- sizes that disagree between ranks


def received_size(backend: str, sent: int, expected: int, asynchronous: bool) -> str:
    """Rank 0 sends another number of elements than rank 1 expects: an error there, and a group that still works."""
    session.start()
    text = ""
    if mcr_dl.get_rank() == 0:
        mcr_dl.send(torch.arange(sent, dtype=torch.float32), 1, backend=backend)
    elif mcr_dl.get_rank() == 1:
        buffer = torch.full((expected,), -1.0)

        def receive() -> None:
            if asynchronous:
                mcr_dl.irecv(buffer, 0, backend=backend).wait()
            else:
                mcr_dl.recv(buffer, 0, backend=backend)

        text = str(expect(InvalidArgumentError, receive, f"{backend}.recv (group 'default', rank 1"))
    errors.good_call(backend)
    return text


def broadcast_size(backend: str, asynchronous: bool) -> str:
    """The root's tensor is larger than the others': an error on the receiving ranks."""
    session.start()
    tensor = torch.zeros(400 if mcr_dl.get_rank() == 0 else 100)
    text = ""
    try:
        if asynchronous:
            mcr_dl.broadcast(tensor, 0, backend=backend, async_op=True).wait()
        else:
            mcr_dl.broadcast(tensor, 0, backend=backend)
    except McrError as error:
        text = str(error)
    assert not text or f"{backend}.broadcast (group 'default'" in text, text
    return text
