# SPDX-License-Identifier: Apache-2.0
"""Collectives over the dimensions of a topology, on one rank."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.device_mesh import init_device_mesh

import grids
import mcr_dl
from mcr_dl import _C, BackendUnavailableError, InvalidArgumentError, NotInitializedError
from mcr_dl.libraries import shm
from mcr_dl.runtime import attempts, lines, state
from mcr_dl.testing.calls import Case
from mcr_dl.testing.expect import expect
from ranks import operations, session

BACKENDS = ("mpi", "gloo", "shm", "hier(shm,mpi)", "hier(shm,gloo)", "hier(mpi,gloo)", "hier(shm,stripe(gloo,mpi))")
NEEDED = ("stripe(gloo,mpi)",)
GRIDS = ("themis(shm,mpi)", "themis(mpi,gloo)")  # need lines of equal lengths


@contextmanager
def _grid(
    *ranks: int,
    sizes: Sequence[int] = (2, 2),
    backends: Sequence[str] = (),
    figures: Sequence[dict[str, int]] = (),
) -> Iterator[None]:
    """Two hosts with two ranks each, or other dimensions, outermost first, in a file."""
    rows: list[dict[str, Any]] = [{"name": f"level-{index}", "size": size} for index, size in enumerate(sizes)]
    for row, given in zip(rows, figures, strict=False):
        row.update(given)
    for row, backend in zip(rows, backends, strict=False):
        row["backend"] = backend
    order = list(ranks or range(prod(sizes)))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MCR_DL_TOPOLOGY"] = grids.write(Path(folder) / "topology.json", *rows, ranks=order)
        try:
            yield
        finally:
            del os.environ["MCR_DL_TOPOLOGY"]


@contextmanager
def _uneven() -> Iterator[None]:
    """As if the last rank had a host of its own."""
    of = lines.of

    def uneven(ranks: Sequence[int], level: int = 0) -> list[list[int]]:
        return [list(range(len(ranks) - 1)), [len(ranks) - 1]] if len(ranks) > 2 else of(ranks, level)

    lines.of = uneven
    try:
        yield
    finally:
        lines.of = of


@contextmanager
def _memory_for(number: int) -> Iterator[None]:
    """The host has memory for so many groups on shared memory."""
    connected = 0

    def argument(*_: object) -> None:
        nonlocal connected
        connected += 1
        if connected > number:
            raise BackendUnavailableError("no memory left on this host")

    shm.LIBRARY.argument = argument  # type: ignore[method-assign]
    try:
        yield
    finally:
        del shm.LIBRARY.argument


_shape: list[int] | None = None  # of the running session


def _start(shape: Sequence[int]) -> None:
    """Start on a grid whose ranks are in this order, or on uneven hosts, unless that runs."""
    global _shape
    names = [*BACKENDS[:-1], *NEEDED, BACKENDS[-1], *(GRIDS if shape else ())]
    if mcr_dl.is_initialized() and mcr_dl.get_backends() == names and _shape == shape:
        return
    session.stop()
    with _grid(*shape) if shape else _uneven():
        mcr_dl.init_process_group(names)
    _shape = list(shape)


def run_all(cases: Sequence[Case], shape: Sequence[int]) -> int:
    """Run the cases on lines of this shape; returns how many there were."""
    _start(shape)
    for case in cases:
        operations.run_supported(case)
    return len(cases)


def mixed(shape: Sequence[int]) -> None:
    """Calls in flight on all candidates, mixed with other calls on the same libraries, and in any order of waiting."""
    _start(shape)
    size, rank = mcr_dl.get_world_size(), mcr_dl.get_rank()
    for turn in range(6):
        works, results = [], []
        for backend in (*BACKENDS, *(GRIDS if shape else ())):
            for count in (5, 40_001):
                tensor = torch.full((count,), float(turn + rank))
                works.append(mcr_dl.all_reduce(tensor, backend=backend, async_op=True))
                results.append((tensor, float(turn * size + sum(range(size)))))
                root = (turn + count) % size
                other = torch.full((count,), float(rank))
                works.append(mcr_dl.broadcast(other, root, backend=backend, async_op=True))
                results.append((other, float(root)))
            blocking = torch.full((3000,), 1.0)
            mcr_dl.all_reduce(blocking, backend=backend)
            results.append((blocking, float(size)))
        for work in works[:: -1 if turn % 2 else 1]:
            work.wait()
        for index, (tensor, want) in enumerate(results):
            assert tensor.eq(want).all(), (turn, index, tensor, want)
    mcr_dl.barrier(backend="hier(shm,mpi)")


def fused_in_any_order() -> None:
    """Held calls without steps and held calls of the outermost library, waited for in another order on each rank."""
    _start([0, 1, 2, 3])
    rank = mcr_dl.get_rank()
    mcr_dl.set_passes([mcr_dl.passes.Fuse(hold_microseconds=60_000_000)])
    for turn in range(4):
        tensors = [torch.full((8,), float(value + rank)) for value in (0, 100)]
        calls = zip(tensors, ("mpi", "themis(shm,mpi)"), strict=True)
        works = [mcr_dl.broadcast(tensor, 1, backend=backend, async_op=True) for tensor, backend in calls]
        for work in works[:: -1 if (rank + turn) % 2 else 1]:
            work.wait()
        assert [tensor.unique().tolist() for tensor in tensors] == [[1], [101]]
    mcr_dl.set_passes([])


def life() -> None:
    """Groups that take over the backends, passes, the end of a library, and explanations."""
    _start([0, 1, 2, 3])
    size = mcr_dl.get_world_size()
    again = mcr_dl.new_group(backend="mpi,hier(shm,mpi)")
    part = mcr_dl.new_group([0, 1])
    if mcr_dl.get_rank() < 2:
        assert not [name for name in mcr_dl.get_backends(part) if name.startswith(("hier", "themis"))]
    expect(InvalidArgumentError, lambda: mcr_dl.new_group(backend="hier(shm,mpi)"), "'mpi' before it")
    for group in (None, again):
        mcr_dl.set_passes(["compress", "fuse"], group)
        tensor = torch.ones(40_000)
        mcr_dl.all_reduce(tensor, backend="hier(shm,mpi)|bf16", group=group)
        assert tensor.eq(size).all()
    mcr_dl.set_passes([])
    mcr_dl.set_passes([], again)
    explained = mcr_dl.explain("all_reduce", 1 << 20)
    assert "hier(shm,gloo)" in str(explained)
    assert set(explained.plans) == {*GRIDS, "themis(shm,mpi,baseline)", "themis(mpi,gloo,baseline)"}
    assert explained.plans["themis(shm,mpi,baseline)"].startswith("baseline, ")
    for plan in explained.plans.values():
        assert re.fullmatch(
            r"(baseline|themis-\w+), chunks: (\d+ in order (12|21)(, )?)+; [\d.]+ us by simulation", plan
        )
    for name, nbytes in (("broadcast", 1 << 20), ("all_reduce", (1 << 50) + 1)):
        assert not mcr_dl.explain(name, nbytes).plans
    mcr_dl.destroy_process_group(again)
    mcr_dl.finalize(["shm"])
    current = state.current()
    kept = [*current.groups, *(name for each in current.belongings.values() for name in each.shadows)]
    assert not [name for name in kept if "shm" in name]
    assert set(current.belongings) <= set(current.groups)
    assert {name for each in current.belongings.values() for name in each.networks} == {"themis(mpi,gloo)"}
    assert mcr_dl.get_backends() == ["mpi", "gloo", "hier(mpi,gloo)", "stripe(gloo,mpi)", "themis(mpi,gloo)"]
    tensor = torch.ones(40_000)
    mcr_dl.all_reduce(tensor, backend="hier(mpi,gloo)")
    assert tensor.eq(size).all()
    expect(NotInitializedError, lambda: mcr_dl.all_reduce(tensor, backend="hier(shm,mpi)"), "hier(shm,mpi)")
    session.stop()


def _check_values(count: int, backend: str) -> None:
    """The operations that Themis has, with the values of plain torch."""
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    tensor = torch.arange(count) + rank
    mcr_dl.all_reduce(tensor, backend=backend)
    assert torch.equal(tensor, torch.arange(count) * size + sum(range(size)))
    block = torch.empty(count, dtype=torch.int64)
    mcr_dl.reduce_scatter_tensor(block, torch.arange(count * size) * (rank + 1), backend=backend)
    assert torch.equal(block, torch.arange(rank * count, (rank + 1) * count) * sum(range(1, size + 1)))
    gathered = torch.empty(count * size, dtype=torch.int64)
    mcr_dl.all_gather_into_tensor(gathered, torch.arange(count) + 1000 * rank, backend=backend)
    assert torch.equal(gathered, torch.cat([torch.arange(count) + 1000 * peer for peer in range(size)]))


def three_dimensions() -> None:
    """On a grid of three dimensions; equal results on all ranks."""
    session.stop()
    names = ["shm", "mpi", "gloo", "themis(shm,mpi,gloo)"]
    with _grid(sizes=(2, 2, 2)):
        mcr_dl.init_process_group(names)
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    for count in (1, 8, 1001, 60_000):
        _check_values(count, names[-1])
    reals = torch.randn(50_001, generator=torch.Generator().manual_seed(rank))
    mcr_dl.all_reduce(reals, backend=names[-1])
    same = [torch.empty_like(reals) for _ in range(size)]
    mcr_dl.all_gather(same, reals, backend="shm")
    assert all(torch.equal(each, same[0]) for each in same)
    session.stop()
    with _grid(sizes=(2, 2, 2)):
        expect(InvalidArgumentError, lambda: session.start("mpi", "themis(shm,mpi)"), "2 dimensions", "2 x 2 x 2")
    session.stop()


def groups_of_three_dimensions() -> None:
    """Subgroups have the lines of the job's dimensions, whichever they have themselves; they leave out the candidates
    that need more."""
    session.stop()
    names = ["gloo", "hier(shm,gloo)", "hier(shm,shm,gloo)"]
    with _grid(sizes=(2, 2, 2)):
        mcr_dl.init_process_group(names)
    rank = mcr_dl.get_rank()
    for ranks, fitting in (
        ([0, 1, 2, 3, 4, 5, 6, 7], 3),
        ([0, 1, 3, 4, 5, 6, 7], 3),  # lines of different lengths
        ([0, 1, 4, 5], 2),
        ([0, 1, 2, 3], 2),
        ([0, 2, 4, 6], 1),
        ([0, 1], 1),
    ):
        group = mcr_dl.new_group(ranks)
        if rank not in ranks:
            continue
        assert mcr_dl.get_backends(group) == names[:fitting], (ranks, mcr_dl.get_backends(group))
        for backend in names[:fitting]:
            tensor = torch.full((5000,), float(rank))
            mcr_dl.all_reduce(tensor, group=group, backend=backend)
            assert tensor.eq(sum(ranks)).all()
        wrong = (
            (names[:2], fitting < 2, "expected a topology of two dimensions"),
            ([names[0], names[2]], fitting < 3, "expected a topology of 3 dimensions"),
        )
        for named, fails, text in wrong:
            if fails:
                make = partial(mcr_dl.new_group, ranks, backend=named, use_local_synchronization=True)
                expect(InvalidArgumentError, make, text)
    session.stop()


def without_memory() -> None:
    """A part of a hierarchy, or on one rank a dimension's group, cannot be connected: nothing is left of the group or
    of its pass, and both can be made later. Then their agreements leave nothing at the store either."""
    _start([0, 1, 2, 3])
    current, names = state.current(), ("gloo", "hier(shm,gloo)")

    def groups() -> tuple[set[str], dict[str, list[str]]]:
        return set(current.groups), {name: [*each.shadows] for name, each in current.belongings.items() if each.shadows}

    before = groups()
    with _memory_for(1):
        expect(BackendUnavailableError, lambda: mcr_dl.new_group(backend=names), "no memory left")
    assert groups() == before
    with _memory_for(1) if mcr_dl.get_rank() == 2 else nullcontext():  # the whole group, not a line of its topology
        expect(BackendUnavailableError, lambda: mcr_dl.new_group(backend="shm"), "no memory left")
    assert groups() == before
    agree = attempts.Attempt.agree
    with patch.object(attempts.Attempt, "agree", autospec=True, side_effect=agree) as agreed:
        group = mcr_dl.new_group(backend=names)
    parts = [each.args[0].name(each.args[1]) for each in agreed.call_args_list if each.args[1].startswith("part/")]
    assert parts
    keys = [f"{part}/{key}" for part in parts for key in (f"value/{mcr_dl.get_rank()}", "come/0", "answer/0", "read/0")]
    assert [key for key in keys if current.store.check([key])] == []
    with _memory_for(1):
        expect(BackendUnavailableError, lambda: mcr_dl.set_passes(["compress"], group), "no memory left")
    mcr_dl.set_passes(["compress"], group)
    tensor = torch.ones(40_000)
    mcr_dl.all_reduce(tensor, backend="hier(shm,gloo)|bf16", group=group)
    assert tensor.eq(mcr_dl.get_world_size()).all()
    mcr_dl.destroy_process_group(group)
    assert groups() == before


def automatic(table: str) -> None:
    """A topology whose dimensions name backends adds a candidate of Themis to those of auto, which chooses it where the
    table has it for the cheapest."""
    session.stop()
    with _grid(sizes=(2, 2), backends=("gloo", "mpi")):
        mcr_dl.init_process_group("auto", tuning_table=table)
        assert "themis(mpi,gloo)" in mcr_dl.get_backends(), mcr_dl.get_backends()
        tensor = torch.ones(40_000)
        mcr_dl.all_reduce(tensor, backend="themis(mpi,gloo)")
        assert tensor.eq(mcr_dl.get_world_size()).all()
        assert mcr_dl.explain("all_reduce", 32 << 20).candidate == "themis(mpi,gloo)"
        assert mcr_dl.explain("all_reduce", 4).candidate == "mpi"
        work = mcr_dl.all_reduce(tensor, async_op=True)
        work.wait()
        assert "themis(mpi,gloo).all_reduce" in str(work), work
        session.stop()
        mcr_dl.init_process_group("mpi,gloo")  # the program says which
        assert mcr_dl.get_backends() == ["mpi", "gloo"]
    session.stop()
    for backends, figures in ((("gloo", ""), ()), (("gloo", "mpi"), ({"bandwidth": 25},))):
        with _grid(sizes=(2, 2), backends=backends, figures=figures):  # without a backend, and too slow for a plan
            mcr_dl.init_process_group("auto")
        assert not [name for name in mcr_dl.get_backends() if name.startswith("themis")]
        session.stop()
    session.stop()


def without_null(table: str) -> None:
    """Calls that name no backend move their data, though the table has candidates with ``null`` for the cheapest, which
    the group itself does not have."""
    session.stop()
    with _grid():
        mcr_dl.init_process_group("mpi,hier(null,mpi),themis(null,mpi)", tuning_table=table)
    tensor = torch.ones(4)
    for candidate in (None, "hier(null,mpi)", "themis(null,mpi)"):
        mcr_dl.all_reduce(tensor, backend=candidate)
        if candidate is None:
            assert tensor.eq(mcr_dl.get_world_size()).all(), tensor
    explained = mcr_dl.explain("all_reduce", 16)
    assert explained.candidate == "mpi", explained
    assert not [name for name in explained.predicted_us if "null" in name], explained
    session.stop()


def of_a_mesh() -> tuple[Any, Any]:
    """New groups get the dimensions of the default group's mesh; the network and the plans."""
    session.stop()
    session.start("gloo", "mpi")
    names = ("gloo", "mpi", "themis(gloo,mpi)")
    missing = "expected a topology of 2 dimensions of several ranks, one for each backend, got 1 x "
    expect(InvalidArgumentError, lambda: mcr_dl.new_group(backend=names), "got 4", "set_topology()")
    mcr_dl.set_topology(init_device_mesh("cpu", (2, 2)))
    group = mcr_dl.new_group(backend=names)
    tensor = torch.ones(40_001)
    mcr_dl.all_reduce(tensor, backend=names[-1], group=group)
    assert tensor.eq(4).all()
    plans = [mcr_dl.explain(name, 1 << 20, group=group).plans for name in ("all_reduce", "reduce_scatter")]
    current = state.current()
    (network,) = [rows for each in current.belongings.values() for rows in each.networks.values()]
    found = [*network], plans
    if mcr_dl.get_rank() < 2:
        expect(
            InvalidArgumentError,
            lambda: mcr_dl.new_group([0, 1], backend=names, use_local_synchronization=True),
            missing,
        )
    core = _C.group_of(group)
    assert core is not None
    for slow, text in ((0, "dimension 2: bandwidth: expected 1 to "), (25, "take less than 50 days")):
        rows = [("fully_connected", 2, rate, 0, 1) for rate in (10**9, slow)]
        connect = partial(core._connect_themis, names[-1], rows, [], [], [])
        expect(InvalidArgumentError, connect, "backend 'themis(gloo,mpi)'", text)
    mcr_dl.destroy_process_group(group)
    assert not any(each.networks for each in current.belongings.values())
    session.stop()
    return found


def six() -> list[Any]:
    """On a grid whose dimensions have 3 and 2 ranks, in another order; the network, which the file gives in part."""
    session.stop()
    names = ["shm", "mpi", "themis(shm,mpi)"]
    with _grid(5, 0, 3, 1, 2, 4, sizes=(2, 3), figures=({"bandwidth": 10**9, "latency": 5000}, {})):
        mcr_dl.init_process_group(names)
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    for count in (1, 7, 1000, 60_001):
        _check_values(count, names[-1])
    tensor = torch.full((8,), float(rank))
    mcr_dl.all_reduce(tensor, backend="themis(shm,mpi,baseline)")
    assert tensor.eq(sum(range(size))).all()
    found = [*state.current().of("default").networks[names[-1]]]
    session.stop()
    return found


def without_lines() -> None:
    """On one host without a topology there is one error on all ranks, which says what to do."""
    session.stop()
    expect(InvalidArgumentError, lambda: session.start("mpi", "hier(shm,mpi)"), "two dimensions", "MCR_DL_TOPOLOGY")
    session.start("mpi", "gloo")
    named = ("gloo", "hier(shm,gloo)")
    expect(BackendUnavailableError, lambda: mcr_dl.shrink(backend=named), "expected a topology of two dimensions")
    tensor = torch.ones(3)
    mcr_dl.all_reduce(tensor)
    assert tensor.eq(mcr_dl.get_world_size()).all()
