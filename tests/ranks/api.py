# SPDX-License-Identifier: Apache-2.0
"""Groups, objects, arrays, batches and the coalescing manager, on one rank."""

from __future__ import annotations

import inspect
import os
import warnings
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as torch_dist
from torch.distributed import GroupMember, init_device_mesh
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor import Shard, distribute_tensor

import mcr_dl
from mcr_dl import _C, InvalidArgumentError, InvalidTypeError, UnsupportedError
from mcr_dl.groups import torch_groups
from mcr_dl.passes.compress import Compress
from mcr_dl.runtime import state
from mcr_dl.testing.expect import expect
from ranks import errors, session


def groups() -> None:
    """Ranks, sizes and translations of every group; non-members get -1 and the like, as in torch."""
    session.start()
    size, me = mcr_dl.get_world_size(), mcr_dl.get_rank()
    assert mcr_dl.get_size is mcr_dl.get_world_size
    assert (mcr_dl.get_rank("mpi"), mcr_dl.get_size("gloo")) == (me, size)  # Listing 1
    for name, group in session.groups().items():
        members = session.members(name, size)
        if group is None:
            assert me not in members
            continue
        assert group.size() == mcr_dl.get_world_size(group) == len(members)
        assert group.rank() == mcr_dl.get_rank(group) == members.index(me)
        assert mcr_dl.get_process_group_ranks(group) == members
        assert [mcr_dl.get_global_rank(group, i) for i in range(len(members))] == members
        assert [mcr_dl.get_group_rank(group, rank) for rank in members] == list(range(len(members)))
        expect(InvalidArgumentError, lambda group=group: mcr_dl.get_global_rank(group, size + 1), "group_rank")
        expect(InvalidArgumentError, lambda group=group: mcr_dl.get_group_rank(group, size + 1), "global_rank")
        assert mcr_dl.get_backend(group) == "mpi"
        assert mcr_dl.get_backend_config(group) == ",".join(f"cpu:{name}" for name in session.BACKENDS)


def not_a_member() -> None:
    """On other ranks a group is torch's NON_GROUP_MEMBER, calls on it warn and do nothing."""
    session.start()
    group = mcr_dl.new_group([0])
    if mcr_dl.get_rank() == 0:
        errors.good_call("mpi", group)
        return
    assert group == GroupMember.NON_GROUP_MEMBER
    assert mcr_dl.get_rank(group) == -1
    assert mcr_dl.get_world_size(group) == -1
    mcr_dl.destroy_process_group(group)  # nothing to end here, as in torch
    tensor = torch.ones(3)
    for call in (
        lambda: mcr_dl.all_reduce(tensor, group=group),
        lambda: mcr_dl.all_reduce(tensor, group=group, async_op=True),
        lambda: mcr_dl.barrier(group=group),
        lambda: mcr_dl.broadcast(tensor, 0, group=group),
        lambda: mcr_dl.all_gather_object([], 1, group),
        lambda: mcr_dl.gather_object(1, None, 0, group),
        lambda: mcr_dl.broadcast_object_list([1], 0, group),
        lambda: mcr_dl.scatter_object_list([1], None, 0, group),
        lambda: mcr_dl.send_object_list([1], 0, group),
        lambda: mcr_dl.monitored_barrier(group),
        lambda: mcr_dl.set_passes(["log"], group),
        lambda: mcr_dl.refine(0.1, group),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert call() is None
        assert ("does not belong to the given group" in str(caught[0].message), caught[0].filename) == (True, __file__)
    for refused in (mcr_dl.get_backend, mcr_dl.get_process_group_ranks, mcr_dl.topology, mcr_dl.shrink):
        expect(InvalidTypeError, partial(refused, group), "this rank is not a member")
    assert tensor.tolist() == [1.0] * 3


class _Number(int):
    """A number type that torch does not know."""


def _with_group(function: Any, name: str, group: Any) -> Any:
    """Call a function with this group, and None for all other arguments."""
    needed = [each for each in inspect.signature(function).parameters.values() if each.default is each.empty]
    made = function(**{**dict.fromkeys(each.name for each in needed), name: group})
    return made.__enter__() if hasattr(made, "__enter__") else made


def wrong_groups() -> None:
    """Every function that takes a group rejects other objects: a wrong argument never makes a call do nothing."""
    session.start()
    seen = []
    for name in mcr_dl.__all__:
        function = getattr(mcr_dl, name)
        own = not inspect.isclass(function) and getattr(function, "__module__", "").startswith("mcr_dl")
        parameters = inspect.signature(function).parameters if own and callable(function) else {}
        for parameter in {"group", "parent_pg"} & set(parameters):
            seen.append(name)
            for wrong in (True, False, 0, 1, -1, -100.0, np.int64(-100), _Number(-100), object()):
                call = partial(_with_group, function, parameter, wrong)
                expect(InvalidTypeError, call, "group", "expected a process group of mcr_dl or None")
    assert len(seen) > 40, seen
    peer = (mcr_dl.get_rank() + 1) % mcr_dl.get_world_size()
    expect(InvalidTypeError, lambda: mcr_dl.P2POp(mcr_dl.isend, torch.ones(1), peer, True), "group")
    errors.good_call("mpi")


def texts_of_any_kind() -> None:
    """Names with lone surrogates, null characters and the like raise an error of mcr_dl wherever a text is valid."""
    session.start()
    size = mcr_dl.get_world_size()
    for text in ("\ud800", "a\ud800", "gl\0oo", "\0", "", "x" * 5000, "é", "\U0001f600"):
        calls: dict[str, Any] = {
            "backend": lambda text=text: mcr_dl.all_reduce(torch.ones(3), backend=text),
            "leading backend": lambda text=text: mcr_dl.all_reduce(text, torch.ones(3)),
            "codec": lambda text=text: mcr_dl.all_reduce(torch.ones(3), codec=text),
            "size_hint": lambda text=text: mcr_dl.all_gatherv(
                torch.ones(size), torch.ones(1), [1] * size, size_hint=text
            ),
            "tag": lambda text=text: mcr_dl.isend(torch.ones(1), 0, tag=text),
            "root": lambda text=text: mcr_dl.broadcast(torch.ones(1), text),
            "op": lambda text=text: mcr_dl.all_reduce(torch.ones(1), text),
            "group": lambda text=text: mcr_dl.all_reduce(torch.ones(1), group=text),
            "timeout": lambda text=text: mcr_dl.barrier(timeout=text),
            "tensor": lambda text=text: mcr_dl.broadcast(torch.ones(1), text, text),
            "counts": lambda text=text: mcr_dl.all_gatherv(torch.ones(1), torch.ones(1), [text]),
            "use": lambda text=text: mcr_dl.use(text).__enter__(),
            "get_rank": lambda text=text: mcr_dl.get_rank(text),
            "new_group": lambda text=text: mcr_dl.new_group(backend=text or "?"),
            "set_passes": lambda text=text: mcr_dl.set_passes([text]),
            "explain": lambda text=text: mcr_dl.explain(text, 8),
            "encode": lambda text=text: _C.encode(torch.ones(3), text),
            "Compress": lambda text=text: Compress(text),
        }
        for name, call in calls.items():
            try:
                call()
            except mcr_dl.McrError:
                continue
            raise AssertionError(f"{name}={text!r}: expected an error")
        expect(TypeError, lambda text=text: mcr_dl.all_reduce(torch.ones(3), **{text: 1}), "unexpected keyword")
    named = mcr_dl.new_group(group_desc="é \U0001f600")
    errors.good_call("gloo", named)
    for text in ("\ud800", "a\0b"):
        expect(InvalidArgumentError, lambda text=text: mcr_dl.new_group(group_desc=text), "group_desc")
        expect(InvalidArgumentError, lambda text=text: mcr_dl.split_group(None, [[0]], group_desc=text), "group_desc")
    errors.good_call("mpi")


def the_same_ranks_again() -> None:
    """Groups of the same ranks while earlier ones come and go, in any order; on one rank there is one group more."""
    session.start()
    ranks = list(range(mcr_dl.get_world_size()))
    if mcr_dl.get_rank() == 0:
        mcr_dl.new_group([0], use_local_synchronization=True)
    for _ in range(3):
        first, second = mcr_dl.new_group(ranks), mcr_dl.new_group(ranks)
        mcr_dl.destroy_process_group(first)
        third, fourth = mcr_dl.new_group(ranks), mcr_dl.new_group(ranks)
        for group in (third, second, fourth):
            errors.good_call("gloo", group)
            mcr_dl.destroy_process_group(group)


def equal_names() -> None:
    """Groups of different ranks have different names, whatever the counts and descriptions are (for four ranks)."""
    session.start()
    me = mcr_dl.get_rank()
    half, _ = mcr_dl.new_subgroups(2)
    for backend in session.BACKENDS:
        part = mcr_dl.split_group(half, [[0, 1]], group_desc="the same", backend=backend)
        errors.good_call(backend, part)
    if me in (1, 2):
        for again in (False, True):  # rank 2 without its counts, as a process that takes a lost rank's place
            counts = {} if again and me == 2 else state.current().counts
            with mock.patch.object(state.current(), "counts", counts):
                local = mcr_dl.new_group([1, 2], use_local_synchronization=True)
                errors.good_call("gloo", local)
    mcr_dl.barrier()


def subgroups_of_hosts() -> None:
    """By the hosts on which the ranks agree, and not by what each rank's launcher says (for four ranks)."""
    session.start()
    me, current = mcr_dl.get_rank(), state.current()
    with mock.patch.dict("os.environ", LOCAL_WORLD_SIZE="1" if me else "4"):
        for nodes, expected in (([0, 0, 1, 1], [[0, 1], [2, 3]]), ([0, 0, 0, 0], [[0, 1, 2, 3]])):
            with mock.patch.object(current, "knowledge", replace(current.knowledge, nodes=nodes)):
                mine, everyone = mcr_dl.new_subgroups()
                assert len(everyone) == len(expected)
                assert mcr_dl.get_process_group_ranks(mine) == next(each for each in expected if me in each)
        for nodes in ([0, 0, 0, 1], [0, 1, 0, 1]):
            with mock.patch.object(current, "knowledge", replace(current.knowledge, nodes=nodes)):
                expect(InvalidArgumentError, mcr_dl.new_subgroups, "group_size", "expected a number", str(nodes))
    mcr_dl.barrier()


def making_groups() -> None:
    """new_group's options, subgroups and splits (for four ranks)."""
    session.start()
    me = mcr_dl.get_rank()
    assert mcr_dl.get_process_group_ranks(mcr_dl.new_group([3, 1, 2, 0])) == [0, 1, 2, 3]
    assert mcr_dl.get_process_group_ranks(mcr_dl.new_group([3, 1, 2, 0], sort_ranks=False)) == [3, 1, 2, 0]
    if me in (1, 3):  # only the members call
        local = mcr_dl.new_group([3, 1], use_local_synchronization=True)
        assert mcr_dl.get_process_group_ranks(local) == [1, 3]
        errors.good_call("gloo", local)
        errors.good_call("mpi", local)
    with mock.patch.object(torch_groups, "ANY_ORDER", False):  # torch before its new_group had sort_ranks
        unsorted = partial(mcr_dl.new_group, [3, 1, 2, 0], sort_ranks=False)
        expect(UnsupportedError, unsorted, "expected increasing ranks", torch.__version__, "[3, 1, 2, 0]")
        assert mcr_dl.get_process_group_ranks(mcr_dl.new_group([2, 0, 1, 3])) == [0, 1, 2, 3]
    only = mcr_dl.new_group(backend="gloo", timeout=timedelta(seconds=20), group_desc="only gloo")
    assert mcr_dl.get_backends(only) == ["gloo"]
    assert _C.group_of(only).timeout == timedelta(seconds=20)
    assert "only gloo" in only.group_desc
    errors.good_call("gloo", only)
    mine, everyone = mcr_dl.new_subgroups(2)
    assert mcr_dl.get_process_group_ranks(mine) == [[0, 1], [0, 1], [2, 3], [2, 3]][me]
    assert len(everyone) == 2
    errors.good_call("mpi", mine)
    mine, _ = mcr_dl.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    assert mcr_dl.get_process_group_ranks(mine) == [[0, 3], [1, 2], [1, 2], [0, 3]][me]
    errors.good_call("gloo", mine)
    part = mcr_dl.split_group(None, [[0, 2], [1]])
    assert (None if part is None else mcr_dl.get_process_group_ranks(part)) == [[0, 2], [1], [0, 2], None][me]
    if part is not None:
        errors.good_call("mpi", part)
    for wrong in ([0, 0], [0, 4], [-1]):
        expect(InvalidArgumentError, lambda wrong=wrong: mcr_dl.new_group(wrong), "ranks", "expected", "got")
    expect(InvalidArgumentError, lambda: mcr_dl.new_subgroups(3), "group_size", "expected", "got 3")
    expect(InvalidArgumentError, lambda: mcr_dl.new_subgroups_by_enumeration([[0, 1], [1]]), "each rank once")
    expect(InvalidArgumentError, lambda: mcr_dl.split_group(None, [[0, 1], [1]]), "each rank once")
    mcr_dl.barrier()


def objects() -> None:
    """Object collectives on every group, with objects of different sizes."""
    session.start()
    me = mcr_dl.get_rank()
    _objects(None, list(range(mcr_dl.get_world_size())), me)
    turned = session.groups()["turned"]
    if turned is not None:
        _objects(turned, mcr_dl.get_process_group_ranks(turned), me)
    mcr_dl.barrier()


def _objects(group: Any, members: list[int], me: int) -> None:
    mine = {"rank": me, "text": "x" * me * 100}
    want = [{"rank": rank, "text": "x" * rank * 100} for rank in members]
    everything: list[Any] = [None] * (len(members) + 1)  # torch takes longer lists, too
    mcr_dl.all_gather_object(everything, mine, group)
    assert everything == [*want, None]
    root = members[-1]
    gathered: list[Any] | None = [None] * len(members) if me == root else None
    mcr_dl.gather_object(mine, gathered, root, group)
    assert gathered == (want if me == root else None)
    listed: list[Any] = [me, (1, 2), "a"] if me == root else [None, None, None]
    mcr_dl.broadcast_object_list(listed, root, group)
    assert listed == [root, (1, 2), "a"]
    got: list[Any] = [None]
    mcr_dl.scatter_object_list(got, [*want, "ignored"] if me == root else None, root, group)
    assert got == [mine]
    if me == members[0]:
        mcr_dl.send_object_list([{"a": 1}, None], members[1], group)
    elif me == members[1]:
        received: list[Any] = [0, 0]
        assert mcr_dl.recv_object_list(received, members[0], group) == members[0]
        assert received == [{"a": 1}, None]


def coalescing(backend: str) -> None:
    """The manager starts the calls of its block and waits for them, at its end or later."""
    session.start()
    size = mcr_dl.get_world_size()
    tensors = [torch.full((n,), float(n)) for n in range(1, 6)]
    with mcr_dl._coalescing_manager():
        for tensor in tensors:
            assert mcr_dl.all_reduce(tensor, backend=backend) is None
    for n, tensor in enumerate(tensors, 1):
        assert bool((tensor == float(n * size)).all())
    outputs = [torch.empty(size * 3) for _ in range(3)]
    with mcr_dl._coalescing_manager(async_ops=True) as manager:
        for output in outputs:
            mcr_dl.all_gather_into_tensor(output, torch.full((3,), 2.0), backend=backend)
    assert len(manager.works) == 3
    assert manager.wait(timedelta(seconds=60))
    assert manager.is_completed()
    assert manager.wait()
    assert all(bool((output == 2.0).all()) for output in outputs)

    def nested() -> None:
        with mcr_dl._coalescing_manager(), mcr_dl._coalescing_manager():
            pass

    expect(InvalidArgumentError, nested, "nested")
    mcr_dl.barrier()


def coalescing_other_calls(backend: str) -> None:
    """The group's asynchronous calls join the block; calls of other groups, and those that return data, end at once."""
    session.start()
    me, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    other = mcr_dl.new_group()
    output, total, number = torch.empty(4), torch.ones(3), torch.full((2,), float(me))
    objects: list[Any] = [None] * size
    with mcr_dl._coalescing_manager(async_ops=True) as manager:
        work = mcr_dl.reduce_scatter_tensor(output, torch.ones(4 * size), backend=backend, async_op=True)
        assert mcr_dl.all_reduce(total, group=other, backend=backend) is None
        assert total.tolist() == [float(size)] * 3
        mcr_dl.broadcast(number, 1, backend=backend)
        assert number.tolist() == [1.0] * 2
        mcr_dl.all_gather_object(objects, {"rank": me})
        assert objects == [{"rank": rank} for rank in range(size)]
        sent = mcr_dl.isend(number, (me + 1) % size, backend=backend)
        assert mcr_dl.recv(number, (me - 1) % size, backend=backend) == (me - 1) % size
        mcr_dl.barrier(backend=backend)
    assert manager.works[0] is work
    assert manager.works[-1] is sent
    manager.wait()
    assert output.tolist() == [float(size)] * 4
    mcr_dl.destroy_process_group(other)


def tensors_without_memory() -> None:
    """The results of torch's functional collectives are waited for; a DTensor is refused, its local part is not."""
    session.start()
    size = mcr_dl.get_world_size()
    found = functional.all_reduce(torch.ones(3), "sum", torch_dist.group.WORLD)
    parts = [torch.empty(3) for _ in range(size)]
    mcr_dl.all_gather(parts, found)
    mcr_dl.all_reduce(found)
    assert [part.tolist() for part in parts] == [[float(size)] * 3] * size
    assert found.tolist() == [float(size * size)] * 3
    mesh = init_device_mesh("cpu", (size,))
    shards = distribute_tensor(torch.ones(2 * size), mesh, [Shard(0)])
    expect(InvalidTypeError, lambda: mcr_dl.all_reduce(shards), "DTensor", ".to_local()")
    expect(InvalidTypeError, lambda: mcr_dl.all_gather(parts, shards), "DTensor", ".to_local()")
    expect(InvalidTypeError, lambda: mcr_dl.all_gather([shards] * size, found), "tensor_list[0]", "DTensor")
    mcr_dl.all_reduce(shards.to_local())
    assert shards.to_local().tolist() == [float(size)] * 2


def batch(backend: str) -> None:
    """A ring by batch_isend_irecv, with operations under both libraries' names and torch's own P2POp."""
    session.start()
    me, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    for send, receive in ((mcr_dl.isend, mcr_dl.irecv), (torch_dist.isend, torch_dist.irecv)):
        incoming = torch.empty(4)
        works = mcr_dl.batch_isend_irecv(
            [
                mcr_dl.P2POp(send, torch.full((4,), float(me)), (me + 1) % size, backend=backend),
                mcr_dl.P2POp(receive, incoming, group_peer=(me - 1) % size, backend=backend),
            ]
        )
        assert len(works) == 2
        for work in works:
            work.wait()
        assert incoming.tolist() == [float((me - 1) % size)] * 4
    incoming, after = torch.empty(4), (me + 1) % size
    torchs = [torch_dist.P2POp(torch_dist.isend, torch.full((4,), float(me)), after)]
    torchs.append(torch_dist.P2POp(torch_dist.irecv, incoming, (me - 1) % size))
    for work in mcr_dl.batch_isend_irecv(torchs):
        work.wait()
    assert incoming.tolist() == [float((me - 1) % size)] * 4
    assert mcr_dl.P2POp(mcr_dl.isend, incoming, after).group_peer == after
    expect(InvalidTypeError, lambda: mcr_dl.batch_isend_irecv([3]), "p2p_op_list[0]")  # type: ignore[list-item]
    expect(InvalidTypeError, lambda: mcr_dl.P2POp(mcr_dl.all_reduce, torch.ones(1), 0), "isend or irecv")
    expect(InvalidArgumentError, lambda: mcr_dl.P2POp(mcr_dl.isend, torch.ones(1)), "peer")


def arrays(backend: str) -> None:
    """NumPy arrays are used in place: results appear in the array itself."""
    session.start()
    me, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    array = np.full(6, me + 1, dtype=np.float32)
    mcr_dl.all_reduce(array, backend=backend)
    assert array.tolist() == [size * (size + 1) / 2] * 6
    output = np.zeros(2 * size, dtype=np.int64)
    work = mcr_dl.all_gather_single(output, np.full(2, me), backend=backend, async_op=True)
    work.wait()
    assert output.reshape(size, 2).tolist() == [[rank, rank] for rank in range(size)]
    assert work.result()[0].data_ptr() == output.ctypes.data
    parts = [np.zeros(3, dtype=np.int16) for _ in range(size)]
    mcr_dl.all_gather(parts, np.full(3, me, dtype=np.int16), backend=backend)
    assert [part.tolist() for part in parts] == [[rank] * 3 for rank in range(size)]
    constant = np.full(2, me, dtype=np.int64)
    constant.flags.writeable = False  # an input may be read-only
    mcr_dl.all_gather_single(output, constant, backend=backend)
    assert output.reshape(size, 2)[:, 0].tolist() == list(range(size))

    def read_only() -> None:
        frozen = np.zeros(2 * size, dtype=np.int64)
        frozen.flags.writeable = False
        mcr_dl.all_gather_single(frozen, np.full(2, me), backend=backend)

    expect(InvalidArgumentError, read_only, "output_tensor", "read-only")

    def read_only_in_place() -> None:
        frozen = np.zeros(2, dtype=np.float32)
        frozen.flags.writeable = False
        mcr_dl.all_reduce(frozen, backend=backend)

    expect(InvalidArgumentError, read_only_in_place, "tensor", "read-only")
    errors.good_call(backend)


def mpi4py_communicator() -> None:
    """A group from an mpi4py communicator: its members and its order, also a reversed one."""
    session.start()
    from mpi4py import MPI

    me, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    assert (MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()) == (me, size)
    turned = MPI.COMM_WORLD.Split(0, -me)
    group = mcr_dl.new_group(mpi_comm=turned)
    assert mcr_dl.get_process_group_ranks(group) == list(reversed(range(size)))
    assert mcr_dl.get_backends(group) == ["mpi"]
    assert group.rank() == turned.Get_rank() == size - 1 - me
    output = torch.empty(size, dtype=torch.int64)
    mcr_dl.all_gather_single(output, torch.tensor([me]), group=group)
    assert output.tolist() == mcr_dl.get_process_group_ranks(group)
    half = MPI.COMM_WORLD.Split(me % 2, me)
    both = mcr_dl.new_group(mpi_comm=half, backend=["mpi", "gloo"])
    assert mcr_dl.get_process_group_ranks(both) == [rank for rank in range(size) if rank % 2 == me % 2]
    for backend in ("mpi", "gloo"):
        errors.good_call(backend, both)
    expect(InvalidTypeError, lambda: mcr_dl.new_group(mpi_comm=3), "mpi_comm", "mpi4py")
    mcr_dl.destroy_process_group(group)
    mcr_dl.destroy_process_group(both)
    assert turned.allreduce(1) == size  # the communicator itself still belongs to its owner
    turned.Free()
    half.Free()


def mpi4py_shares_the_library() -> None:
    """A variant that one rank has used changes no later call of mpi4py; errors are raised where its own are fatal."""
    session.start()
    from mpi4py import MPI

    me, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    alone = mcr_dl.new_group([0])
    variants = [each for each in _C.world().candidates if each.startswith("mpi:")]
    assert variants or len(os.sched_getaffinity(0)) < size
    for variant in variants if me == 0 else ():
        mcr_dl.all_reduce(torch.ones(4), group=alone, backend=variant)
    sums = torch.empty(1)
    for _ in range(30):
        MPI.COMM_WORLD.Allreduce(torch.ones(1).numpy(), sums.numpy())
        assert sums.item() == size
    usual = MPI.COMM_WORLD.Get_errhandler()
    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    group = mcr_dl.new_group(list(range(size)), backend="mpi")
    MPI.COMM_WORLD.Set_errhandler(usual)
    if me == 0:
        mcr_dl.send(torch.ones(8), 1, group=group)
    elif me == 1:
        expect(InvalidArgumentError, lambda: mcr_dl.recv(torch.ones(4), 0, group=group), "recv")
    mcr_dl.monitored_barrier()
    mcr_dl.destroy_process_group(group)


def fake_and_null() -> None:
    """torch's fake backend through the adapter of gloo, and the backend without communication."""
    session.stop()
    session.start("fake", "null")
    size = mcr_dl.get_world_size()
    for backend in ("fake", "null"):
        tensor = torch.ones(4)
        mcr_dl.all_reduce(tensor, backend=backend)
        assert tensor.tolist() == [1.0] * 4  # neither communicates
        mcr_dl.all_to_all_single(torch.empty(size), torch.ones(size), backend=backend, async_op=True).wait()
        mcr_dl.broadcast(backend, tensor, 0, async_op=True).wait()
        mcr_dl.barrier(backend=backend)
    assert mcr_dl.get_backends() == ["fake", "null"]
    expect(InvalidArgumentError, lambda: mcr_dl.broadcast(torch.ones(1), size, backend="fake"), "fake.broadcast")
    session.stop()
    session.start()
