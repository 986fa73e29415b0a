# SPDX-License-Identifier: Apache-2.0
"""The form of a torch.distributed call underneath: its own in a uniform group, any in others."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _get_work_registry_size as registered
from torch.distributed._functional_collectives import allow_inflight_collective_as_graph_input_ctx
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import mcr_dl
from mcr_dl import _C, InvalidArgumentError
from mcr_dl.base import launcher
from mcr_dl.testing.expect import expect
from ranks import session

_TURNS = 60

Checked = tuple[Callable[[bool], Any], Callable[[], None]]


@contextmanager
def _group(backend: str, uniform: bool | None = None) -> Iterator[dist.ProcessGroup]:
    session.start()
    made = dist.new_group(backend="mcr", pg_options=mcr_dl.Options([backend], uniform))
    yield made
    dist.barrier(made)
    dist.destroy_process_group(made)


def _any_form(group: dist.ProcessGroup | None) -> bool:
    ours = _C.group_of(group)
    assert ours is not None
    return ours._any_form


def _last(group: dist.ProcessGroup) -> dict[str, Any]:
    """The group's newest collective, as ranks compare it."""
    label = getattr(_C.group_of(group), "_label")  # noqa: B009
    found: dict[str, Any] = next(each for each in _C.positions() if each["label"] == label)["calls"][-1]
    return found


def _block(rank: int, to: int = 0) -> torch.Tensor:
    """Values that a rank has for another one; their sums are exact, in bfloat16 too."""
    return torch.full((3,), 10.0 * rank + to + 1)


def _checked(call: Callable[[bool], Any], got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> Checked:
    """The call with the check of its results, once it has ended."""

    def check() -> None:
        assert [each.tolist() for each in got] == [each.tolist() for each in want]

    return call, check


def _collectives(group: dist.ProcessGroup) -> dict[str, Checked]:
    """torch's collectives as functions of async_op, each to be called once, with the checks of their results."""
    me, size = group.rank(), group.size()
    ranks, first = range(size), me == 0
    mine = [_block(me, to) for to in ranks]
    gathered, swapped = [_block(rank) for rank in ranks], [_block(rank, me) for rank in ranks]
    sums = [torch.stack([_block(rank, to) for rank in ranks]).sum(0) for to in ranks]
    total, sent, at_root = _block(me), _block(me), _block(me)
    rows, at_root_rows, new_rows = (list(torch.full((size, 3), -1.0)) for _ in range(3))
    whole, new_whole = torch.full((size, 3), -1.0), torch.full((size, 3), -1.0)
    part, share, same_share = (torch.full((3,), -1.0) for _ in range(3))
    together = torch.stack(mine)

    def made(function: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[bool], Any]:
        return lambda form: function(*arguments, group=group, async_op=form, **options)

    parts = mine if first else None
    collected = at_root_rows if first else None
    return {
        "all_reduce": _checked(made(dist.all_reduce, total), [total], sums[:1]),
        "broadcast": _checked(made(dist.broadcast, sent, group_src=0), [sent], gathered[:1]),
        "reduce": _checked(made(dist.reduce, at_root, group_dst=0), [at_root][: int(first)], sums[: int(first)]),
        "all_gather": _checked(made(dist.all_gather, rows, mine[0]), rows, gathered),
        "all_gather_into_tensor": _checked(made(dist.all_gather_into_tensor, whole, mine[0]), list(whole), gathered),
        "gather": _checked(
            made(dist.gather, mine[0], collected, group_dst=0), collected or [], gathered if first else []
        ),
        "scatter": _checked(made(dist.scatter, part, parts, group_src=0), [part], [_block(0, me)]),
        "reduce_scatter": _checked(made(dist.reduce_scatter, share, mine), [share], [sums[me]]),
        "reduce_scatter_tensor": _checked(
            made(dist.reduce_scatter_tensor, same_share, together), [same_share], [sums[me]]
        ),
        "all_to_all": _checked(made(dist.all_to_all, new_rows, mine), new_rows, swapped),
        "all_to_all_single": _checked(made(dist.all_to_all_single, new_whole, together), list(new_whole), swapped),
        "barrier": _checked(made(dist.barrier), [], []),
    }


def forms(backend: str) -> None:
    """A call of a uniform group keeps its form, as the comparison of calls records it; in other groups it has none."""
    for uniform in (None, False):
        with _group(backend, uniform) as group:
            for name, (call, check) in _collectives(group).items():
                assert call(False) is None, name
                check()
                assert not _last(group)["async"], name
            for name, (call, check) in _collectives(group).items():
                work = call(True)
                assert work is not None, name
                work.wait()
                check()
                assert _last(group)["async"] == (uniform is None), name


def meets_ours(backend: str) -> None:
    """In a uniform group torch's blocking call is the library's: it matches mcr_dl's own function on another rank."""
    with _group(backend) as group:
        for turn in range(_TURNS):
            module: Any = dist if turn % group.size() == group.rank() else mcr_dl
            tensor = torch.full((3,), float(turn))
            module.all_reduce(tensor, group=group)
            assert tensor.tolist() == [float(turn) * group.size()] * 3
            module.broadcast(tensor, 0, group=group)


def mixed(backend: str) -> None:
    """With uniform=False a call is blocking on some ranks, and asynchronous on others; with passes, too."""
    with _group(backend, False) as group:
        for passes in ([], ["fuse"], [mcr_dl.passes.Compress("bf16", smallest=1)]):
            mcr_dl.set_passes(passes, group)
            _mixed(group)
        mcr_dl.set_passes([], group)


def _mixed(group: dist.ProcessGroup) -> None:
    for turn in range(_TURNS):
        tensor = torch.full((3,), float(turn))
        work = dist.all_reduce(tensor, group=group, async_op=turn % group.size() == group.rank())
        if work is not None:
            work.wait()
        assert tensor.tolist() == [float(turn) * group.size()] * 3
    for index, (name, (call, check)) in enumerate(_collectives(group).items()):
        work = call(index % group.size() == group.rank())
        assert (work is None) == (index % group.size() != group.rank()), name
        if work is not None:
            work.wait()
        check()


def agreement(backend: str) -> None:
    """Options and variables that differ between ranks are an error on all; the next group can still be made."""
    session.start()
    first = dist.get_rank() == 0
    texts = ("uniform (of mcr_dl.Options, or MCR_DL_UNIFORM)", "True on rank 0 and False on rank 1")
    differing = mcr_dl.Options([backend], uniform=first)
    for module in (dist, mcr_dl):
        expect(InvalidArgumentError, lambda module=module: module.new_group(pg_options=differing), *texts)
    os.environ["MCR_DL_UNIFORM"] = "1" if first else "often"
    try:
        expect(InvalidArgumentError, mcr_dl.new_group, "MCR_DL_UNIFORM: expected 0 or 1, got 'often' on rank 1")
        os.environ["MCR_DL_UNIFORM"] = "0"
        made = mcr_dl.new_group(backend=backend)
        assert _any_form(made)
        with _group(backend, True) as group:  # the program overrides the variable
            assert not _any_form(group)
    finally:
        del os.environ["MCR_DL_UNIFORM"]
    assert not _any_form(dist.group.WORLD)
    dist.barrier()
    assert repr(mcr_dl.Options(uniform=False)) == "<mcr_dl.Options backends=[] uniform=False>"


def starts(backend: str) -> None:
    """The default group, made by torch and by mcr_dl; its parts take its form, unless their options differ."""
    session.start()
    differing = mcr_dl.Options([backend], uniform=dist.get_rank() == 0)
    session.stop()
    expect(InvalidArgumentError, lambda: dist.init_process_group("mcr", pg_options=differing), "True on rank 0")
    expect(InvalidArgumentError, lambda: mcr_dl.init_process_group(backend, pg_options=differing), "True on rank 0")
    any_form = mcr_dl.Options([backend], uniform=False)
    for start in (
        lambda: dist.init_process_group("mcr", pg_options=any_form),
        lambda: mcr_dl.init_process_group(backend, pg_options=any_form),
    ):
        start()
        assert _any_form(dist.group.WORLD)
        assert not _any_form(dist.new_group())
        halves = [[0], list(range(1, dist.get_world_size()))]
        assert _any_form(mcr_dl.split_group(None, halves))
        assert _any_form(mcr_dl.new_subgroups(1)[0])
        assert not _any_form(mcr_dl.new_subgroups_by_enumeration(halves)[0])
        uniform = mcr_dl.Options(uniform=True)
        assert not _any_form(mcr_dl.split_group(None, halves, pg_options=uniform))
        if dist.get_rank() > 0:
            assert dist.group.WORLD is not None
            assert _any_form(dist.group.WORLD.split_group(halves[1], opts=mcr_dl.Options()))
        dist.barrier()
        dist.destroy_process_group()


def _uneven_steps(model: DistributedDataParallel, check: Callable[[], None]) -> torch.Tensor:
    """The gradient after two rounds in which the ranks make different numbers of steps; ``check`` runs in each."""
    for _ in range(2):
        with model.join():
            check()
            for step in range(1 + 2 * dist.get_rank()):
                model(torch.full((4, 2), float(step))).sum().backward()
    gradient: torch.Tensor = model.module.weight.grad
    return gradient


def joins(backend: str) -> None:
    """A Join lets its group take any form, at one point in the group's calls; else all ranks get an error."""
    with _group(backend) as group:
        model = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group)
        assert not _any_form(group)
        first = dist.get_rank() == 0
        early = dist.all_reduce(torch.ones(1), group=group, async_op=True) if first else None
        expect(
            InvalidArgumentError,
            lambda: Join([model]),
            "Join: expected all ranks of group",
            "after the same collective",
        )
        assert not _any_form(group)
        if early is None:
            early = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        assert early is not None
        early.wait()

        def check() -> None:
            assert _any_form(group)

        gradient = _uneven_steps(model, check)
        weights = [torch.empty(2, 2) for _ in range(group.size())]
        dist.all_gather(weights, model.module.weight.detach(), group=group)
        assert all(torch.equal(each, weights[0]) for each in weights), weights
        theirs = dist.new_group(backend="gloo")
        plain = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=theirs)
        torch.testing.assert_close(gradient, _uneven_steps(plain, lambda: None))
        assert bool(gradient.any())
        dist.destroy_process_group(theirs)


def threads(backend: str) -> None:
    """Two threads make blocking calls on separate groups, in any order."""
    with _group(backend) as mine, _group(backend) as others:
        failures: list[BaseException] = []

        def reduce(group: dist.ProcessGroup) -> None:
            for turn in range(4 * _TURNS):
                tensor = torch.full((3,), float(turn))
                dist.all_reduce(tensor, group=group)
                assert tensor.tolist() == [float(turn) * group.size()] * 3

        def concurrent() -> None:
            try:
                reduce(others)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=concurrent)
        thread.start()
        reduce(mine)
        thread.join()
        assert not failures


def _in_thread(function: Callable[[], None]) -> None:
    """Run the function in a thread of its own, which ends; raise its exception."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(function).result()


def starter_that_ended() -> None:
    """The thread that has started the runtime of rank 0 has ended; a later one gets its identity from the system."""
    session.stop()
    if launcher.detect().rank == 0:
        _in_thread(lambda: session.start("mpi"))
    else:
        session.start("mpi")

    def reduce() -> None:
        for turn in range(_TURNS):
            tensor = torch.full((3,), float(turn))
            dist.all_reduce(tensor)
            assert tensor.tolist() == [float(turn) * dist.get_world_size()] * 3

    for _ in range(3):
        _in_thread(reduce)
    session.stop()


def registered_works() -> None:
    """In torch's context that registers the works of all calls, they leave the registry when they are waited for."""
    with _group("gloo") as group, allow_inflight_collective_as_graph_input_ctx():
        for form in (False, True):
            for name, (call, check) in _collectives(group).items():
                work = call(form)
                if work is not None:
                    work.wait()
                check()
                assert registered() == 0, (name, form)
        tensors = [torch.ones(3), torch.ones(4)]
        dist.all_reduce(tensors[0], group=group, async_op=True)
        dist.all_reduce(tensors[1], group=group)
        assert registered() == 1
        for tensor in tensors:
            assert torch.ops._c10d_functional.wait_tensor(tensor).eq(group.size()).all()
        assert registered() == 0


def wait_that_a_hook_outlasts(backend: str) -> None:
    """A wait with a limit ends although the completion hook still runs; a later one succeeds."""
    with _group(backend) as group:
        if dist.get_rank() == 0:
            begun, go_on = threading.Event(), threading.Event()

            def hook(_: Any) -> None:
                begun.set()
                go_on.wait(20)

            group._register_on_completion_hook(hook)
            work = dist.irecv(torch.empty(3), 1, group=group)
            assert work is not None
            mcr_dl.barrier()
            assert begun.wait(20)
            words = (
                f"{backend}.recv (group",
                "timed out: the completion hook is still running after the timeout of 100",
            )
            expect(mcr_dl.CollectiveTimeoutError, lambda: work.wait(timedelta(milliseconds=100)), *words)
            go_on.set()
            assert work.wait()
        else:
            mcr_dl.barrier()
            if dist.get_rank() == 1:
                dist.send(torch.ones(3), 0, group=group)


def hook_on_one_rank(backend: str) -> None:
    """A completion hook on one rank sees blocking calls and keeps their form; its error is the call's."""
    with _group(backend) as group:
        seen: list[Any] = []

        def hook(info: Any) -> None:
            seen.append(info)
            if len(seen) == 3:
                raise ValueError("enough")

        first = dist.get_rank() == 0
        if first:
            group._register_on_completion_hook(hook)
        for _ in range(2):
            dist.all_reduce(torch.ones(3), group=group)
        if first:
            expect(mcr_dl.BackendError, lambda: dist.barrier(group), "completion hook", "ValueError: enough")
        else:
            dist.barrier(group)
        assert len(seen) == (3 if first else 0)
