# SPDX-License-Identifier: Apache-2.0
"""Functions of `make pages` on ranks of the copy to which docs/add-*.md have been applied."""

from __future__ import annotations

from functools import partial

import torch

import mcr_dl
from mcr_dl import _C
from mcr_dl.testing.expect import expect
from ranks import session


def program(text: str) -> None:
    """A program of a page; it checks its results itself."""
    session.stop()
    exec(compile(text, "a program of the page", "exec"), {"__name__": "page"})
    assert not mcr_dl.is_initialized()


def scanned(backend: str | None = "mpi") -> None:
    """A call whose result depends on every rank, and on every bit of a float32."""
    rank = mcr_dl.get_rank()
    x = torch.full((4099,), 1.0 + 2.0**-20 * rank)
    mcr_dl.scan(x, backend=backend)
    assert x.tolist() == [float(sum(1.0 + 2.0**-20 * each for each in range(rank + 1)))] * 4099


def refused() -> None:
    """Backends without it, and every codec, reject it and name what is missing; nothing is sent; the group works."""
    session.start("mpi", "gloo", "stripe(gloo,mpi)")
    x = torch.ones(3)
    for backend in ("gloo", "stripe(gloo,mpi)"):
        for asynchronous in (False, True):
            call = partial(mcr_dl.scan, x, backend=backend, async_op=asynchronous)
            expect(mcr_dl.UnsupportedError, call, f"{backend}.scan", "float32", "SUM")
        assert x.tolist() == [1.0] * 3
        mcr_dl.all_reduce(x.clone(), backend=backend)
    mcr_dl.set_passes(["compress"])
    for codec in ("bf16", "int8"):
        expect(mcr_dl.InvalidArgumentError, partial(mcr_dl.scan, x, backend="mpi", codec=codec), "mpi.scan", "codec")
    assert x.tolist() == [1.0] * 3
    scanned()
    mcr_dl.set_passes([])
    scanned()
    scanned("auto")


def left_alone() -> None:
    """The passes ignore the call: it is neither held nor encoded, as an all_reduce would be."""
    session.start("mpi")
    mcr_dl.set_passes([mcr_dl.passes.Fuse(hold_microseconds=60_000_000)])
    (fuse,) = _C.passes(_C.world())
    tensors = [torch.ones(3) for _ in range(4)]
    before = fuse.statistics()
    for work in [mcr_dl.scan(x, async_op=True) for x in tensors]:
        work.wait()
    assert fuse.statistics() == before
    for work in [mcr_dl.all_reduce(x, async_op=True) for x in tensors]:
        work.wait()
    assert fuse.statistics() != before
    exact = 1 + 2.0**-20
    mcr_dl.set_passes([mcr_dl.passes.Compress("bf16", smallest=1)])
    scanned()
    x = torch.full((4099,), exact)
    mcr_dl.all_reduce(x)
    assert x[0] == mcr_dl.get_world_size()
    mcr_dl.set_passes([])


def alone() -> None:
    """The backend `self`: every operation on blocks and one tensor on a group of one rank, native or emulated."""
    session.start("self")
    for asynchronous in (False, True):
        _alone(asynchronous)
    session.stop()


def _alone(asynchronous: bool) -> None:
    values = torch.arange(6.0)

    def check(name: str, *arguments: object, result: torch.Tensor) -> None:
        work = getattr(mcr_dl, name)(*arguments, async_op=asynchronous)
        assert asynchronous == (work is not None)
        if asynchronous:
            work.wait()
        assert result.tolist() == values.tolist(), name

    for name in ("all_reduce", "broadcast", "reduce"):
        x = values.clone()
        check(name, x, *([0] if name != "all_reduce" else []), result=x)
    for name in ("all_gather_into_tensor", "all_to_all_single", "reduce_scatter_tensor"):
        y = torch.zeros(6)
        check(name, y, values, result=y)
    y = torch.zeros(6)
    check("gather", values, [y], 0, result=y)
    y = torch.zeros(6)
    check("scatter", y, [values], 0, result=y)
    work = mcr_dl.barrier(async_op=asynchronous)
    if work is not None:
        work.wait()
    expect(mcr_dl.UnsupportedError, partial(mcr_dl.scan, values, async_op=asynchronous), "self.scan")


def too_many() -> None:
    """`self` rejects a group of several ranks with its own text, on every rank, and the next start works."""
    session.stop()
    expect(mcr_dl.InvalidArgumentError, partial(mcr_dl.init, "self"), "self", "expected a group of 1 rank")
    session.start("mpi")
    scanned()
