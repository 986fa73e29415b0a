# SPDX-License-Identifier: Apache-2.0
"""Checks of types, reductions, batches, arrays of CuPy and staging; see checks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as torch_dist

import mcr_dl
from gpu.checks import LARGE, LATE_MS, NotRun, Setting, check, same, same_parts
from mcr_dl import _C


@check
def float8(at: Setting) -> dict[str, Any]:
    """Every operation moves both eight-bit types, and adds them where the library can."""
    names = [name for name in ("float8_e4m3fn", "float8_e5m2") if name in _C.dtypes()]
    if not names:
        raise NotRun("this build has no float8")
    added = {}
    for name in names:
        dtype: torch.dtype = getattr(torch, name)
        source = at.full(64, at.rank + 1.0).to(dtype)
        target = at.full(64 * at.ranks, 0.0).to(dtype)
        at.gather(target, source)
        same_parts(at, target.float(), lambda rank: rank + 1.0, f"all_gather of {name}")
        try:
            mcr_dl.all_reduce(at.backend, source)
            same(source.float(), at.total, f"all_reduce of {name}")  # up to 10 for 4 ranks: exact in both types
            added[name] = True
        except mcr_dl.UnsupportedError:
            added[name] = False
    return {"added": added}


@check
def premul_sum(at: Setting) -> None:
    """PREMUL_SUM with a number and with a tensor of one element as factor."""
    make = getattr(torch_dist, "_make_nccl_premul_sum", None)
    if make is None or at.backend != "nccl":
        raise NotRun("only nccl has PREMUL_SUM, and only where torch can make it")
    for factor in (0.5, at.full(1, 0.25)):
        x = at.full(1001, at.rank + 1.0)
        mcr_dl.all_reduce(x, op=make(factor), backend=at.backend)
        same(x, at.total * float(factor), f"all_reduce of PREMUL_SUM({factor})")


@check
def batch(at: Setting) -> None:
    """batch_isend_irecv around a ring, and both ways between neighbors, in any order of the list."""
    if at.ranks < 2:
        raise NotRun("needs two ranks")
    after, before = (at.rank + 1) % at.ranks, (at.rank - 1) % at.ranks
    for turn in range(4):
        outgoing = [at.full(1001 + turn, at.rank + 10.0 * turn + step) for step in range(2)]
        incoming = [at.full(1001 + turn, -1.0) for _ in range(2)]
        entries = [
            mcr_dl.P2POp(mcr_dl.isend, outgoing[0], after, backend=at.backend),
            mcr_dl.P2POp(mcr_dl.isend, outgoing[1], after, backend=at.backend),
            mcr_dl.P2POp(mcr_dl.irecv, incoming[0], before, backend=at.backend),
            mcr_dl.P2POp(mcr_dl.irecv, incoming[1], before, backend=at.backend),
        ]
        for work in mcr_dl.batch_isend_irecv(entries if turn % 2 else [*entries[2:], *entries[:2]]):
            work.wait()
        for step, tensor in enumerate(incoming):
            same(tensor, before + 10.0 * turn + step, "a message of the ring")


def _same_rows(cupy: Any, gathered: Any, more: float) -> None:
    """Row r has r + 1 + more everywhere."""
    wanted = cupy.arange(1, len(gathered) + 1, dtype=cupy.float32)[:, None] + more
    assert bool((gathered == wanted).all()), f"CuPy: expected rows of {wanted.ravel()}, got {gathered[:, :4]}"


@check
def cupy_arrays(at: Setting) -> None:
    """CuPy arrays without a copy, in the order of CuPy's own current stream."""
    at.need_real()
    try:
        import cupy
    except ImportError as error:
        raise NotRun("cupy is not installed") from error
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for turn in range(5):
            array = cupy.full(1 << 20, -1.0, dtype=cupy.float32)
            target = cupy.full((at.ranks, 1 << 20), -2.0, dtype=cupy.float32)
            for _ in range(50):  # late
                array += 0
            array[...] = at.rank + 1.0 + turn
            place = target.data.ptr
            mcr_dl.all_gather_single(target.reshape(-1), array, backend=at.backend)
            result = target * 1
            stream.synchronize()
            assert target.data.ptr == place
            _same_rows(cupy, result, turn)


@check
def cupy_wait(at: Setting) -> None:
    """After wait(), later work on CuPy's current stream follows an asynchronous call on a CuPy array."""
    at.need_real()
    try:
        import cupy
    except ImportError as error:
        raise NotRun("cupy is not installed") from error
    with cupy.cuda.Stream(non_blocking=True) as stream:
        array = cupy.full(1001, at.rank + 1.0, dtype=cupy.float32)
        target = cupy.full((at.ranks, 1001), -2.0, dtype=cupy.float32)
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):  # type: ignore[no-untyped-call]
            at.device.sleep(LATE_MS / 4)
        blocker = cupy.full(LARGE, 1.0, dtype=cupy.float32)
        sink = cupy.empty(LARGE * at.ranks, dtype=cupy.float32)
        # The next one is late: it runs after this one, on the same lane.
        held = mcr_dl.all_gather_single(sink, blocker, backend=at.backend, async_op=True)
        work = mcr_dl.all_gather_single(target.reshape(-1), array, backend=at.backend, async_op=True)
        work.wait()
        after = target * 1
        held.wait()
        stream.synchronize()
        _same_rows(cupy, after, 0.0)


@check
def staged(at: Setting) -> None:
    """Host libraries on device tensors: values, and asynchronous calls concurrent with the device library's own."""
    names = [name for name in ("mpi", "gloo") if name in mcr_dl.get_backends()]
    if not names:
        raise NotRun("no host library was started")
    for name in names:
        for count in (1, 1001, 3_000_001):
            x, y = at.full(count, -1.0), at.full(count, -1.0)
            gathered, staged_parts = at.full(count * at.ranks, -2.0), at.full(count * at.ranks, -2.0)
            at.device.sleep(LATE_MS / 8)
            x.fill_(at.rank + 1.0)
            y.fill_(2.0 * (at.rank + 1))
            first = at.gather(gathered, x, async_op=True)
            second = mcr_dl.all_gather_single(staged_parts, y, backend=name, async_op=True)
            summed = y.clone()
            third = mcr_dl.all_reduce(name, summed, async_op=True)
            z = x.new_ones(count * at.ranks) * 3
            for work in (first, second, third):
                work.wait()
            what = f"{at.backend} and {name} at once, {count} elements"
            same_parts(at, gathered + staged_parts + z, lambda rank: 3.0 * (rank + 1) + 3, what)
            same(summed, 2 * at.total, what)
