# SPDX-License-Identifier: Apache-2.0
"""Compressed calls that are wrong, and codecs that fail."""

from __future__ import annotations

from typing import Any

import torch

import mcr_dl
from mcr_dl import passes
from mcr_dl.testing.expect import expect
from mcr_dl.testing.position import note
from ranks import session
from ranks.compress import OPERATIONS, Calls, Started, start


def errors() -> None:
    """Each wrong call names the mistake, sends nothing, and leaves the group usable."""
    start([])
    tensor = torch.ones(10)
    invalid, wrong_type = mcr_dl.InvalidArgumentError, mcr_dl.InvalidTypeError
    expect(invalid, lambda: mcr_dl.all_reduce(tensor, codec="bf16"), "all_reduce (group", "'bf16'", "set_passes")
    mcr_dl.all_reduce(tensor, codec="none")
    mcr_dl.set_passes(["compress"])
    expect(invalid, lambda: mcr_dl.all_reduce(tensor, codec="bf61"), "bf16, fp16, int8", "'bf61'", "all_reduce (group")
    expect(invalid, lambda: mcr_dl.all_reduce(tensor, codec="int8:blok=3"), "block, feedback", "'blok=3'")
    expect(invalid, lambda: mcr_dl.all_reduce(tensor, codec="zfp"), "zfp", "rate", "tolerance")
    expect(invalid, lambda: mcr_dl.all_reduce(tensor, codec="zfp:rate=0"), "zfp:rate=0", "from 1 to 64", "'0'")
    none = "zfp:tolerance=0"
    expect(invalid, lambda: mcr_dl.all_reduce(tensor, codec=none), none, "above 0 and at most 1e+300", "'0'")
    expect(wrong_type, lambda: mcr_dl.all_reduce(tensor, codec=3), "codec", "3")
    for dtype in (torch.int32, torch.bool, torch.complex64):
        made = torch.ones(10).to(dtype)
        expect(wrong_type, lambda made=made: mcr_dl.all_reduce(made, codec="int8"), "int8", str(dtype).split(".")[1])
    half = torch.ones(10, dtype=torch.bfloat16)
    expect(wrong_type, lambda: mcr_dl.broadcast(half, 0, codec="bf16", async_op=True), "float32, float64", "bfloat16")
    expect(invalid, lambda: mcr_dl.reduce(tensor, 0, codec="bf16"), "reduce (group", "no compressed form")
    if mcr_dl.get_rank() != 0:
        expect(invalid, lambda: mcr_dl.gather(tensor, dst=0, codec="bf16"), "gather", "no compressed form")
    expect(invalid, lambda: mcr_dl.broadcast(tensor, 0, codec="int8:feedback=a"), "feedback", "all_reduce")
    red = mcr_dl.ReduceOp.MAX
    expect(invalid, lambda: mcr_dl.all_reduce(tensor, red, codec="int8:feedback=a"), "feedback", "SUM or AVG", "MAX")
    mcr_dl.all_reduce(tensor, codec="int8:feedback=a")
    expect(
        invalid, lambda: mcr_dl.all_reduce(torch.ones(9), codec="int8:feedback=a"), "'a'", "10 elements", "9 elements"
    )
    for bad in (
        {"codec": "bf61"},
        {"codec": "int8:feedback=a"},
        {"codec": "bf16", "ops": ["reduce"]},
        {"smallest": -1},
        {"smallest": True},
    ):
        expect(invalid, lambda bad=bad: passes.Compress(**bad), "bf61" if bad.get("codec") == "bf61" else "Compress: ")
    mcr_dl.barrier()
    fresh = torch.ones(10)
    mcr_dl.all_reduce(fresh, codec="bf16")
    assert fresh.tolist() == [float(mcr_dl.get_world_size())] * 10
    mcr_dl.set_passes([])
    expect(invalid, passes.reset_feedback, "compress")


class Broken:
    """A codec that fails on rank 1 in one of its two directions."""

    dtypes = ("float32",)

    def __init__(self, where: str, fixed: bool = True) -> None:
        self.where, self.fixed = where, fixed

    def capacity(self, count: int, dtype: str) -> int:
        assert dtype == "float32"
        return 4 * count

    def _fail(self, where: str) -> None:
        if self.where == where and mcr_dl.get_rank() == 1:
            raise ArithmeticError(f"cannot {where}")

    def encode(self, values: Any, out: Any) -> int:
        self._fail("encode")
        out[: 4 * len(values)] = values.view("uint8")
        return 4 * len(values)

    def decode(self, data: Any, out: Any) -> None:
        self._fail("decode")
        out[:] = data.view("float32")


class Late(Broken):
    """Its first calls fail on all ranks."""

    ready = False

    def capacity(self, count: int, dtype: str) -> int:
        return super().capacity(count, dtype) if self.ready else -1


def feedback_after_a_failed_call() -> None:
    """The first call that is sent gives the number of elements."""
    start(["compress"])
    codec = Late("nowhere")
    name = f"late-{len(passes.known_codecs())}"
    passes.register_codec(codec, name)
    coded = f"{name}:feedback={name}"
    words = "all_reduce (group", "capacity()", "got -1"
    expect(mcr_dl.InvalidArgumentError, lambda: mcr_dl.all_reduce(torch.ones(9), codec=coded), *words)
    codec.ready = True
    values = torch.ones(10)
    mcr_dl.all_reduce(values, codec=coded)
    assert values.tolist() == [float(mcr_dl.get_world_size())] * 10
    mcr_dl.set_passes([])


class Unsized(Broken):
    """It cannot say its size on rank 1."""

    def capacity(self, count: int, dtype: str) -> int:
        self._fail("capacity")
        return super().capacity(count, dtype)


def capacity_that_fails() -> None:
    """Rank 1 does not join the call, so the call of rank 0 times out; other groups go on."""
    start([])
    if "unsized" not in passes.known_codecs():
        passes.register_codec(Unsized("capacity"), "unsized")
    group = mcr_dl.new_group(backend="gloo", timeout=1)
    mcr_dl.set_passes(["compress"], group)
    fails = mcr_dl.get_rank() == 1
    error, word = (mcr_dl.InvalidArgumentError, "cannot capacity") if fails else (mcr_dl.CollectiveTimeoutError, "")
    expect(error, lambda: mcr_dl.all_reduce(torch.ones(9), codec="unsized", group=group), word)
    values = torch.ones(10)
    mcr_dl.all_reduce(values)
    assert values.tolist() == [float(mcr_dl.get_world_size())] * 10
    session.stop()  # the group is broken


def _raises(name: str, where: str) -> bool:
    """Whether this rank needs what the codec cannot encode or decode on rank 1."""
    me, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    if where == "decode":
        return me == 1 or name == "all_reduce"  # of which every rank gets rank 1's part of the sum
    if name == "messages":
        return me == 2 % size
    if name == "broadcast":
        return size == 2  # the last rank is the root
    return name != "splits" or me != 0  # it gets no rows


def failing_codec(backend: str, fixed: bool) -> None:
    """A codec that fails on one rank fails that call, with its reason, on the ranks that need its output, and no other
    call.
    """
    start(["compress"])
    kind = "own" if fixed else "loose"
    if f"{kind}-plain" not in passes.known_codecs():
        for where in ("plain", "encode", "decode"):
            passes.register_codec(Broken(where, fixed), f"{kind}-{where}")
    others: list[Started] = []
    for asynchronous in (False, True):
        for number, name in enumerate(OPERATIONS):
            for where in ("encode", "decode"):
                note(f"{name} with {kind}-{where} on {backend}, asynchronous: {asynchronous}")
                good = Calls(300, number, torch.float32, "bf16", backend=backend, async_op=True)
                others.append(good.all_reduce())
                plain = f"{kind}-plain"  # in which the expected results are encoded
                calls = Calls(300, number, torch.float32, plain, backend=backend, async_op=asynchronous)
                calls.keywords["codec"] = f"{kind}-{where}"

                def complete(calls: Calls = calls, name: str = name) -> None:
                    work, check = getattr(calls, name)()
                    if work is not None:
                        work.wait()
                    check()

                if _raises(name, where):
                    elsewhere = where == "decode" and mcr_dl.get_rank() != 1
                    words = "rank 1 could not decode: Arith" if elsewhere else f"cannot {where}"
                    expect(mcr_dl.BackendError, complete, f"{kind}-{where}", words, "(group 'default'")
                else:
                    complete()
                good = Calls(1000, number, torch.float32, plain, backend=backend, async_op=True)
                others.append(good.all_reduce())
    for work, check in reversed(others):
        work.wait()
        check()
    mcr_dl.set_passes([])
