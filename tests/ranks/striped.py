# SPDX-License-Identifier: Apache-2.0
"""Messages that are cut over two libraries, on one rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import mcr_dl
from calls import Case
from mcr_dl import _C, InvalidArgumentError, NotInitializedError
from ranks import operations, session
from ranks.expect import expect

BACKENDS = ("mpi", "gloo", "gloo+mpi", "mpi+gloo")


def run_all(cases: Sequence[Case]) -> int:
    """Run the cases; returns how many there were."""
    session.start(*BACKENDS)
    session.groups()
    for case in cases:
        operations.run(case)
    return len(cases)


def mixed() -> None:
    """Calls that are cut, among others on the same libraries and groups, and in any order of waiting."""
    session.start(*BACKENDS)
    size = mcr_dl.get_world_size()
    groups = [group for group in session.groups().values() if group is not None and size == group.size()]
    for turn in range(6):
        works, tensors = [], []
        for group in groups:
            for backend in ("mpi", "gloo+mpi:67", "gloo", "mpi+gloo:25", "gloo+mpi"):
                tensors.append(torch.full((40_000,), float(turn)))
                works.append(mcr_dl.all_reduce(tensors[-1], group=group, backend=backend, async_op=True))
                tensors.append(torch.full((40_000,), float(turn)))
                mcr_dl.all_reduce(tensors[-1], group=group, backend=backend)
        for work in works[:: -1 if turn % 2 else 1]:
            work.wait()
        for tensor in tensors:
            assert tensor.eq(turn * size).all()


def choices() -> list[str]:
    """What `auto` compares, for an operation that is cut and for one that is not."""
    session.start(*BACKENDS)
    for op in ("all_reduce", "gather"):
        told = str(mcr_dl.explain(op, 1 << 20))
        assert ("gloo+mpi:67" in told) == (op == "all_reduce"), told
    world = _C.world()
    assert world is not None
    return world.candidates


def ends() -> None:
    """A library that ends takes what is cut over it along; the rest goes on."""
    session.start("mpi", "gloo", "gloo+mpi")
    mcr_dl.finalize(["gloo"])
    assert mcr_dl.get_backends() == ["mpi"]
    tensor = torch.ones(40_000)
    mcr_dl.all_reduce(tensor)
    assert tensor.eq(mcr_dl.get_world_size()).all()
    expect(NotInitializedError, lambda: mcr_dl.all_reduce(tensor, backend="gloo+mpi"), "gloo+mpi")


def wrong_names() -> None:
    """Its parts must be there, must be two, and must be known."""
    session.stop()
    expect(InvalidArgumentError, lambda: mcr_dl.init_process_group(["mpi", "gloo+mpi"]), "expected 'gloo' before it")
    expect(InvalidArgumentError, lambda: mcr_dl.init_process_group("gloo+mpi,gloo,mpi"), "expected 'gloo' before it")
    for name in ("gloo+gloo", "gloo+mip", "gloo+", "gloo+mpi+null"):
        expect(InvalidArgumentError, lambda n=name: mcr_dl.init_process_group(["gloo", "mpi", n]), "unknown name", name)
    session.start(*BACKENDS)
    expect(InvalidArgumentError, lambda: mcr_dl.new_group(backend="gloo+mpi"), "expected 'gloo' before it")
