# SPDX-License-Identifier: Apache-2.0
"""The form of a torch.distributed call underneath: its own in a uniform group, any in others."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import mcr_dl
from mcr_dl import _C, InvalidArgumentError
from mcr_dl.testing.expect import expect
from ranks import session

_TURNS = 60


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


def _collectives(group: dist.ProcessGroup) -> dict[str, Callable[[bool], Any]]:
    """torch's collectives as functions of async_op. Each rank has ones, so that sums are the number of ranks."""
    me, size = group.rank(), group.size()
    ones, parts = torch.ones(3), list(torch.ones(size, 3))
    into, whole = torch.empty(3), torch.empty(size, 3)
    first = me == 0
    return {
        "all_reduce": lambda form: dist.all_reduce(torch.ones(3), group=group, async_op=form),
        "broadcast": lambda form: dist.broadcast(ones, group_src=0, group=group, async_op=form),
        "reduce": lambda form: dist.reduce(torch.ones(3), group_dst=0, group=group, async_op=form),
        "all_gather": lambda form: dist.all_gather(list(torch.empty(size, 3)), ones, group=group, async_op=form),
        "all_gather_into_tensor": lambda form: dist.all_gather_into_tensor(whole, ones, group=group, async_op=form),
        "gather": lambda form: dist.gather(
            ones, list(torch.empty(size, 3)) if first else None, group_dst=0, group=group, async_op=form
        ),
        "scatter": lambda form: dist.scatter(into, parts if first else None, group_src=0, group=group, async_op=form),
        "reduce_scatter": lambda form: dist.reduce_scatter(into, parts, group=group, async_op=form),
        "reduce_scatter_tensor": lambda form: dist.reduce_scatter_tensor(
            into, torch.ones(size, 3), group=group, async_op=form
        ),
        "all_to_all": lambda form: dist.all_to_all(list(torch.empty(size, 3)), parts, group=group, async_op=form),
        "all_to_all_single": lambda form: dist.all_to_all_single(
            whole, torch.ones(size, 3), group=group, async_op=form
        ),
        "barrier": lambda form: dist.barrier(group=group, async_op=form),
    }


def forms(backend: str) -> None:
    """A call of a uniform group keeps its form, as the comparison of calls records it; in other groups it has none."""
    for uniform in (None, False):
        with _group(backend, uniform) as group:
            for name, call in _collectives(group).items():
                assert call(False) is None, name
                assert not _last(group)["async"], name
                work = call(True)
                assert work is not None, name
                work.wait()
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
    for index, (name, call) in enumerate(_collectives(group).items()):
        work = call(index % group.size() == group.rank())
        assert (work is None) == (index % group.size() != group.rank()), name
        if work is not None:
            work.wait()


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
        uniform = mcr_dl.Options(uniform=True)
        assert not _any_form(mcr_dl.split_group(None, halves, pg_options=uniform))
        if dist.get_rank() > 0:
            assert dist.group.WORLD is not None
            assert _any_form(dist.group.WORLD.split_group(halves[1], opts=mcr_dl.Options()))
        dist.barrier()
        dist.destroy_process_group()


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
        for _ in range(2):
            with model.join():
                assert _any_form(group)
                for step in range(1 + 2 * dist.get_rank()):
                    model(torch.full((4, 2), float(step))).sum().backward()
        weights = [torch.empty(2, 2) for _ in range(group.size())]
        dist.all_gather(weights, model.module.weight.grad, group=group)


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
