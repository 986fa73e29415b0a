# SPDX-License-Identifier: Apache-2.0
"""Process groups of torch whose backend is "mcr": making, splitting, ending."""

from __future__ import annotations

import copy
import os
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

import mcr_dl
from mcr_dl import _C, CollectiveTimeoutError, InvalidArgumentError, InvalidTypeError, NotInitializedError
from mcr_dl.base import launcher
from mcr_dl.groups import torch_groups
from mcr_dl.measure.timing import TorchControl
from mcr_dl.passes import Log
from mcr_dl.runtime import state
from mcr_dl.testing.expect import expect
from ranks import session

CPU = torch.device("cpu")


def _works(group: dist.ProcessGroup | None = None, *, ours: bool = True) -> None:
    """Calls through torch, and through mcr_dl, on the group's members."""
    size = dist.get_world_size(group)
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [size] * 3
    if ours:
        mcr_dl.all_reduce(tensor, group=group)
        assert tensor.tolist() == [size * size] * 3


@contextmanager
def _fresh() -> Iterator[None]:
    """Neither mcr_dl nor torch is initialized, before and after."""
    session.stop()
    assert not dist.is_initialized()
    yield
    assert not mcr_dl.is_initialized()
    assert not dist.is_initialized()


def started_by_torch() -> None:
    """init_process_group("mcr") of torch alone: groups, subgroups, both ways to call, a second life."""
    for name in ("mcr", "cpu:mcr,cuda:mcr"):
        with _fresh():
            dist.init_process_group(name)
            assert mcr_dl.is_initialized()
            assert mcr_dl.group.WORLD is dist.group.WORLD
            both = ":" in name or torch.backends.cuda.is_built()
            assert dist.get_backend_config() == ("cpu:mcr,cuda:mcr" if both else "cpu:mcr")
            _works()
            part = dist.new_group([0, 2])
            if dist.get_rank() != 1:
                _works(part)
                assert mcr_dl.get_process_group_ranks(part) == [0, 2]
                assert mcr_dl.get_group_rank(part, 2) == 1
            mesh = dist.init_device_mesh("cpu", (3,), mesh_dim_names=("all",))
            _works(mesh.get_group("all"))
            dist.destroy_process_group()


def started_by_torch_on_named_backends() -> None:
    """The backends underneath: MCR_DL_BACKENDS, and Options for one group."""
    os.environ["MCR_DL_BACKENDS"] = "gloo,mpi"
    try:
        with _fresh():
            dist.init_process_group("mcr")
            assert mcr_dl.get_backends() == ["gloo", "mpi"]
            only = dist.new_group(backend="mcr", pg_options=mcr_dl.Options(backends=["mpi"]))
            assert mcr_dl.get_backends(only) == ["mpi"]
            _works(only)
            dist.destroy_process_group()
            os.environ["MCR_DL_BACKENDS"] = "gloo,nothing"
            expect(InvalidArgumentError, lambda: dist.init_process_group("mcr"), "'nothing'", "gloo")
        with _fresh():
            dist.init_process_group("mcr", pg_options=mcr_dl.Options(backends=["mpi"]))
            assert mcr_dl.get_backends() == ["mpi"]
            dist.destroy_process_group()
    finally:
        del os.environ["MCR_DL_BACKENDS"]


def options() -> None:
    """A mesh whose dimensions are bound to different libraries; the options' text."""
    with _fresh():
        dist.init_process_group("mcr")
        mesh = dist.init_device_mesh(
            "cpu",
            (3, 1),
            mesh_dim_names=("data", "model"),
            backend_override={
                "data": ("mcr", mcr_dl.Options(backends=["mpi"])),
                "model": ("mcr", mcr_dl.Options(backends=["gloo"])),
            },
        )
        assert mcr_dl.get_backends(mesh.get_group("data")) == ["mpi"]
        assert mcr_dl.get_backends(mesh.get_group("model")) == ["gloo"]
        _works(mesh.get_group("data"))
        assert repr(mcr_dl.Options(backends=["mpi", "gloo"])) == "<mcr_dl.Options backends=[mpi, gloo]>"
        dist.destroy_process_group()


def splitting() -> None:
    """ProcessGroup.split_group, which torch has below its functions, and mcr_dl's."""
    session.start()
    world = dist.group.WORLD
    assert world is not None
    made = len(state.current().groups)
    part = world.split_group([1, 2], opts=mcr_dl.Options(backends=[]))
    if dist.get_rank() == 0:
        assert part is None
    else:
        assert part is not None
        assert len(state.current().groups) == made + 1  # and not one for each type of device
        assert (part.rank(), part.size()) == (dist.get_rank() - 1, 2)
        tensor = torch.ones(2)
        part.allreduce([tensor]).wait()
        assert tensor.tolist() == [2, 2]
        named = world.split_group([1, 2], opts=mcr_dl.Options(backends=["gloo"]))
        assert _C.group_of(named).backends == ["gloo"]
        before = len(state.current().groups)
        mcr_dl.destroy_process_group(part)
        assert len(state.current().groups) == before - 1
        expect(NotInitializedError, lambda: part.allreduce([torch.ones(1)]), "destroyed")
        wrong = mcr_dl.Options(backends=["gloo", "hier(shm,gloo)"])
        expect(InvalidArgumentError, lambda: world.split_group([1, 2], opts=wrong), "two dimensions")
    before = world._get_backend(CPU).options._timeout
    world.split_group([1, 2], timeout=timedelta(seconds=5))
    assert world._get_backend(CPU).options._timeout == before
    options = copy.deepcopy(world._get_backend(torch.device("cpu")).options)  # as torch's function split_group
    part = world.split_group([1, 2], opts=options)
    assert part is None or part.size() == 2
    part = mcr_dl.split_group(None, [[0, 1], [2]], pg_options=mcr_dl.Options(backends=["gloo"]))
    assert mcr_dl.get_backends(part) == ["gloo"]
    part = mcr_dl.split_group(None, [[0, 1], [2]])
    assert part is not None
    _works(part)
    dist.barrier()


def splitting_with_names() -> None:
    """Several parts may have one name, and the members of a part may name it differently."""
    session.start()
    world, rank = dist.group.WORLD, dist.get_rank()
    assert world is not None
    for ranks, name in (([0, 1], "pair"), ([1, 2], "pair"), ([0, 1], f"pair of {rank}"), (list(range(3)), "pair")):
        part = world.split_group(
            ranks,
            timeout=timedelta(seconds=20),
            opts=mcr_dl.Options(backends=["gloo"]),
            group_name=name,
        )
        assert (part is not None) == (rank in ranks)
        if part is not None:
            tensor = torch.ones(2)
            part.allreduce([tensor]).wait()
            assert tensor.tolist() == [len(ranks)] * 2
    dist.barrier()


def handles() -> None:
    """Groups are torch's process groups, one for each, known to both sides until they are destroyed."""
    session.start()
    assert mcr_dl.group.WORLD is dist.group.WORLD
    assert mcr_dl.ProcessGroup is dist.ProcessGroup
    made = mcr_dl.new_group([2, 0], sort_ranks=False)
    if dist.get_rank() != 1:
        assert isinstance(made, dist.ProcessGroup)
        assert dist.get_process_group_ranks(made) == [2, 0]
        assert dist.get_backend(made) == "mcr"
        assert _C.handle_of(_C.group_of(made)) is made
        _works(made)
        mcr_dl.destroy_process_group(made)
        expect(NotInitializedError, lambda: mcr_dl.all_reduce(torch.ones(1), group=made), "destroyed")
        expect(NotInitializedError, lambda: made.allreduce([torch.ones(1)]), "destroyed")
        expect(NotInitializedError, lambda: mcr_dl.destroy_process_group(made), "destroyed")
        expect(ValueError, lambda: dist.destroy_process_group(made), "Invalid process group")
        made.shutdown()  # a second call does nothing
    dist.barrier()


def names() -> None:
    """torch's names of groups are equal on all their ranks, also if these have made other groups before."""
    session.start()
    pair = [0, 1]
    first, second = mcr_dl.new_group(pair), mcr_dl.new_group(pair)
    if dist.get_rank() in pair:
        mcr_dl.destroy_process_group(first)
    third = mcr_dl.new_group(pair)
    everyone = dist.new_group(backend="mcr")
    _works(everyone)
    if dist.get_rank() in pair:
        assert second.group_name != third.group_name
        for group in (second, third):
            _works(group)
            mcr_dl.destroy_process_group(group)
    dist.destroy_process_group(everyone)


def names_on_two_threads() -> None:
    """While torch makes the process group of a group on one thread, another thread's get torch's names and count."""
    session.start()
    world, torchs = _C.world(), dist.distributed_c10d
    assert world is not None
    count = torchs._world.group_count
    with torch_groups._standing_for(world), ThreadPoolExecutor(1) as other:
        found = [torchs._hash_ranks_to_str([0]), other.submit(torchs._hash_ranks_to_str, [0]).result()]
    torchs._world.group_count = count  # of names alone, without groups, which some torch counts
    assert found[0] != found[1] == torchs._hash_ranks_to_str([0])
    with torch_groups._standing_for(world):
        torchs._world.group_count += 1  # as the other thread's new_group() does
    assert torchs._world.group_count == count + 1
    torchs._world.group_count = count


def made_again() -> None:
    """A group that only its members make, and destroy, gets torch's name of the one before."""
    session.start()
    for _ in range(3 if dist.get_rank() < 2 else 0):
        if dist.get_rank() == 1:
            time.sleep(0.3)  # else rank 0 may find the new address of rank 1 before it reads the former one
        made = dist.new_group(
            [0, 1],
            timedelta(seconds=20),
            "mcr",
            mcr_dl.Options(backends=["gloo"]),
            use_local_synchronization=True,
        )
        _works(made)
        dist.destroy_process_group(made)
    dist.barrier()


def nothing_left() -> None:
    """A group that was made and destroyed leaves no counts, and at the store no agreement on its form and passes."""
    session.start()
    current = state.current()

    def records() -> tuple[dict[str, set[str]], set[str]]:
        return {name: {*counts} for name, counts in current.counts.items()}, {*current.belongings}

    before = records()
    for passes in ([], [Log()]):
        with mock.patch.object(current, "passes", passes):
            made = dist.new_group(backend="mcr", pg_options=mcr_dl.Options(backends=["mpi", "shm"]))
        ours = _C.group_of(made)
        assert ours is not None
        dist.barrier(made)  # all ranks have returned
        assert ours.name() == f"torch/{made.group_name}"
        turns = [f"{key}/{turn}" for key in ("come", "answer", "read") for turn in range(3)]
        left = [f"change/{ours.name()}/0/{key}" for key in ("value/0", "value/1", *turns)]
        assert not any(current.store.check([key]) for key in left)
        dist.barrier(made)  # all ranks have looked: the next change leaves values while it runs
        mcr_dl.set_passes(["fuse"], made)  # a later change of the group works
        mcr_dl.monitored_barrier(made)
        TorchControl(ours).barrier()
        dist.destroy_process_group(made)
        assert records() == before


def foreign_groups() -> None:
    """A process group of another backend is named in the error of mcr_dl's functions, and stays torch's."""
    session.start()
    theirs = dist.new_group(backend="gloo")
    expect(InvalidTypeError, lambda: mcr_dl.all_reduce(torch.ones(1), group=theirs), "cpu:gloo", "group")
    expect(InvalidTypeError, lambda: mcr_dl.get_backends(theirs), "cpu:gloo")
    expect(InvalidTypeError, lambda: mcr_dl.barrier(group="world"), "got str")
    _works(theirs, ours=False)
    dist.destroy_process_group(theirs)


def late_start() -> None:
    """torch started with gloo: mcr_dl runs next to it, started directly or by a group of all ranks, not of some."""
    with _fresh():
        dist.init_process_group("gloo")
        if dist.get_rank() < 2:
            expect(NotInitializedError, lambda: dist.new_group([0, 1], backend="mcr"), "all ranks", "[0, 1]")
        else:  # torch never requests that
            assert dist.new_group([0, 1], backend="mcr") == dist.GroupMember.NON_GROUP_MEMBER
        if torch_groups.ANY_ORDER:  # ranks of mcr_dl that are not torch's
            turned = [2, 1, 0]
            words = "increasing order", "[2, 1, 0]"
            expect(NotInitializedError, lambda: dist.new_group(turned, backend="mcr", sort_ranks=False), *words)
        dist.barrier()
        everyone = dist.new_group(backend="mcr")
        assert mcr_dl.group.WORLD is everyone  # before a function of mcr_dl gets it
        _works(everyone)
        pair = dist.new_group([1, 2], backend="mcr")
        if dist.get_rank() > 0:
            _works(pair)
        part = everyone.split_group([0, 1, 2])  # which torch does not register
        mcr_dl.barrier(group=part)
        mcr_dl.destroy_process_group()
        assert dist.is_initialized()  # torch's default group is its own
        assert not mcr_dl.is_initialized()
        mcr_dl.init_process_group(["mpi", "gloo"])
        assert mcr_dl.group.WORLD is not dist.group.WORLD
        _works(mcr_dl.group.WORLD)
        _works(ours=False)
        dist.destroy_process_group()  # torch's: ends all its groups, including those that stand for mcr_dl's


def destroying() -> None:
    """Destroying twice, and calls afterwards, on either side."""
    with _fresh():
        dist.init_process_group("mcr")
        group = dist.group.WORLD
        assert group is not None
        mcr_dl.destroy_process_group()
        expect(NotInitializedError, mcr_dl.destroy_process_group, "init_process_group")
        expect(AssertionError, dist.destroy_process_group)
        expect(NotInitializedError, lambda: mcr_dl.all_reduce(torch.ones(1)), "init_process_group")
        expect(NotInitializedError, lambda: group.allreduce([torch.ones(1)]), "destroyed")
        expect(ValueError, lambda: dist.all_reduce(torch.ones(1)))
    with _fresh():
        mcr_dl.init_process_group("mpi")
        dist.destroy_process_group()
    with _fresh():
        mcr_dl.init_process_group("mcr")
        mcr_dl.finalize()


def aborting() -> None:
    """abort() ends a group at once; the others continue, and torch's abort of everything ends the runtime."""
    with _fresh():
        dist.init_process_group("mcr")
        made = dist.new_group()
        assert made._get_backend(CPU).get_error() == ErrorType.SUCCESS
        made.abort()
        expect(NotInitializedError, lambda: made.allreduce([torch.ones(1)]), "destroyed")
        _works()
        dist.distributed_c10d._abort_process_group()


def timeouts() -> None:
    """The timeout that the default group has now is that of groups made later, and of functions without a group."""
    with _fresh():
        dist.init_process_group("mcr", timeout=timedelta(seconds=300))
        work = mcr_dl.irecv(torch.empty(1), 1) if dist.get_rank() == 0 else None
        assert dist.group.WORLD is not None
        dist.group.WORLD.set_timeout(timedelta(seconds=7))
        for made in (mcr_dl.new_group(), mcr_dl.split_group(None, [[0, 1]])):
            assert _C.group_of(made).timeout == timedelta(seconds=7)
        with pytest.warns(UserWarning, match="only supported for either nccl or gloo"):
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=9))
        assert _C.group_of(dist.group.WORLD).timeout == timedelta(seconds=7)
        dist.group.WORLD.set_timeout(timedelta(milliseconds=200))
        if work is not None:
            expect(CollectiveTimeoutError, mcr_dl.synchronize, "0:00:00.200000")
        dist.group.WORLD.set_timeout(timedelta(seconds=60))
        dist.barrier()
        if work is None:
            mcr_dl.send(torch.ones(1), 0)
        else:
            work.wait()
        dist.destroy_process_group()


def wrong_starts() -> None:
    """Two default groups, unknown names, failed attempts, a default group of torch with other ranks than mcr_dl's."""
    with _fresh():
        dist.init_process_group("mcr")
        expect(InvalidArgumentError, lambda: mcr_dl.init_process_group("mpi"), "initialized already")
        expect(ValueError, lambda: dist.init_process_group("mcr"), "twice")
        expect(InvalidArgumentError, lambda: mcr_dl.new_group(backend="nothing"), "'nothing'")
        expect(
            InvalidArgumentError,
            lambda: dist.new_group(backend="mcr", pg_options=mcr_dl.Options(backends=["nothing"])),
            "'nothing'",
        )
        dist.destroy_process_group()
    with _fresh():  # a device that the group does not serve
        dist.init_process_group("cuda:mcr")
        expect(RuntimeError, lambda: dist.all_reduce(torch.ones(1)), "cpu")
        dist.destroy_process_group()
    for case in ("again", "with the same name", "as another group"):
        with _fresh():
            _start_after_a_failed_one(case)
    with _fresh():  # as after attempts through torch, more of them on one rank than on the other
        dist.distributed_c10d._world.group_count = launcher.detect().rank
        mcr_dl.init_process_group("gloo")
        _works(dist.new_group(backend="mcr"))
        dist.destroy_process_group()
    with _fresh():
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)  # each rank alone
        expect(InvalidArgumentError, lambda: mcr_dl.init_process_group("gloo"), "rank", "of 2", "of 1")
        dist.destroy_process_group()


def _start_after_a_failed_one(case: str) -> None:
    """torch fails after mcr_dl has started; the next start has its own backends, timeout and form."""
    with mock.patch.object(dist.distributed_c10d, "is_nccl_available", return_value=False):
        expect(RuntimeError, lambda: dist.init_process_group("cpu:mcr,cuda:nccl"), "NCCL")
    if case == "with the same name":  # torch counts anew once its default group has ended
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # each rank alone
        dist.destroy_process_group()
    limit, options = timedelta(seconds=70), mcr_dl.Options(backends=["gloo"], uniform=False)
    if case == "as another group":
        dist.init_process_group("gloo")
        everyone = dist.new_group(backend="mcr", timeout=limit, pg_options=options)
    else:
        dist.init_process_group("mcr", timeout=limit, pg_options=options)
        everyone = dist.group.WORLD
    world = _C.world()
    assert world is not None
    assert _C.handle_of(world) is everyone
    assert (list(world.backends), world.timeout, world._any_form) == (["gloo"], limit, True)
    _works(everyone)
    dist.destroy_process_group()


def left_blocks() -> None:
    """A block that an exception has left, on a thread that ends, releases its tensors with the next call or block."""
    session.start()
    group = dist.distributed_c10d._get_default_group()
    references: list[weakref.ref[torch.Tensor]] = []

    def leave() -> None:
        tensor = torch.ones(3)
        references.append(weakref.ref(tensor))
        group._start_coalescing(CPU)
        group.allreduce([tensor])

    for in_block in (True, False):
        for _ in range(3):
            thread = threading.Thread(target=leave)
            thread.start()
            thread.join()
            while Path(f"/proc/self/task/{thread.native_id}").exists():  # the system ends it after Python has
                time.sleep(0.001)
        tensor = torch.ones(3)
        if in_block:
            with dist._coalescing_manager(group, CPU, async_ops=True) as block:
                group.allreduce([tensor])
            block.wait()
        else:
            group.allreduce([tensor]).wait()
        assert tensor.tolist() == [float(dist.get_world_size())] * 3
        deadline = time.monotonic() + 20
        while any(each() is not None for each in references):
            assert time.monotonic() < deadline, "the tensors are still there"
            time.sleep(0.01)


def blocks_that_an_exception_leaves() -> None:
    """Calls after a block that an exception has left, or that could not begin, do all their work before they return."""
    session.start()
    group = dist.distributed_c10d._get_default_group()
    me, size = dist.get_rank(), dist.get_world_size()

    def leave(device: torch.device | None) -> None:
        with dist._coalescing_manager(group, device):
            dist.broadcast(torch.full((1 << 20,), float(me)), 0)
            raise ZeroDivisionError("in the program")

    for device, error in ((None, ZeroDivisionError), (CPU, ZeroDivisionError), (torch.device("meta"), RuntimeError)):
        expect(error, lambda device=device: leave(device))
        _works()
        large = torch.full((1 << 22,), float(me))
        dist.broadcast(large, 1)
        assert bool((large == 1).all())
        gathered = torch.empty(3 * size)
        dist.all_gather_into_tensor(gathered, torch.full((3,), float(me)))
        assert gathered.tolist() == [float(rank) for rank in range(size) for _ in range(3)]
    tensor = torch.ones(3)
    with dist._coalescing_manager(group, CPU, async_ops=True) as outer:  # an inner block that cannot begin
        dist.all_reduce(tensor)
        expect(ValueError, lambda: dist._coalescing_manager(group, CPU).__enter__(), "non-empty op list")
    outer.wait()
    assert tensor.tolist() == [float(size)] * 3
