# SPDX-License-Identifier: Apache-2.0
"""Compressed calls against their definition: sent parts are encoded, received parts are decoded, in rank order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import torch

import mcr_dl
from mcr_dl import _C, passes
from mcr_dl.testing.position import note
from ranks import session

ROUNDS = 3
OPERATIONS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "messages",
    "all_gatherv",
    "all_to_allv",
    "reduce_scatterv",
    "splits",
    "lists",
)

Check = Callable[[], None]
Started = tuple[Any, Check]


def coded(tensor: torch.Tensor, codec: str) -> torch.Tensor:
    """A part after encoding and decoding."""
    return tensor.clone() if codec == "none" else passes.decode(passes.encode(tensor, codec), tensor, codec)


def values(count: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers of many magnitudes, equal on every rank for a seed."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, generator=generator) * torch.rand(count, generator=generator) * 100).to(dtype)


def shares(count: int, size: int) -> list[int]:
    """The parts of an all_reduce."""
    share = -(-count // size)
    return [max(0, min(share, count - index * share)) for index in range(size)]


def summed(parts: list[torch.Tensor], red: str = "SUM") -> torch.Tensor:
    """The sum in rank order, in the tensors' own precision."""
    combine = {"PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum}.get(red, torch.add)
    total = parts[0].clone()
    for part in parts[1:]:
        total = combine(total, part)
    return total / len(parts) if red == "AVG" else total


def reduced(inputs: list[torch.Tensor], codec: str, red: str = "SUM") -> torch.Tensor:
    """The expected result of an all_reduce."""
    counts = shares(inputs[0].numel(), len(inputs))
    columns = zip(*(tensor.split(counts) for tensor in inputs), strict=True)
    return torch.cat([coded(summed([coded(part, codec) for part in column], red), codec) for column in columns])


def same(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    """Check that tensors are equal bit for bit, except for the kind of NaN."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype), what
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    differs = (got.view(integers) != want.view(integers)) & ~(got.isnan() & want.isnan())
    if bool(differs.any()):
        bad = int(differs.nonzero()[0])
        raise AssertionError(f"{what}: first difference at {bad}: expected {want[bad]}, got {got[bad]}")


class Calls:
    """One method per operation: makes the call; returns its Work, or None, and the check of its result."""

    def __init__(self, count: int, seed: int, dtype: torch.dtype, codec: str, **keywords: Any) -> None:
        self.size, self.me = mcr_dl.get_world_size(), mcr_dl.get_rank()
        self.count, self.dtype, self.codec, self.keywords = count, dtype, codec, keywords
        self.inputs = [values(count * self.size, seed * 10 + rank, dtype) for rank in range(self.size)]
        self.mine = self.inputs[self.me].clone()
        self.uneven = [count + 3 * rank for rank in range(self.size)]
        if not keywords.pop("silent", False):
            self.keywords["codec"] = codec

    def _blocks(self, to: int, counts: list[int] | None = None) -> list[torch.Tensor]:
        counts = counts or [self.count] * self.size
        return [coded(tensor[: sum(counts)].split(counts)[to], self.codec) for tensor in self.inputs]

    def _same_sum(self, got: torch.Tensor, want: torch.Tensor) -> None:
        """Without compression, the library determines the order of the sum."""
        if self.codec == "none":
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-3)
        else:
            same(got, want, "sum")

    def all_reduce(self) -> Started:
        tensor = self.mine[: self.count].clone()
        work = mcr_dl.all_reduce(tensor, **self.keywords)
        want = reduced([each[: self.count] for each in self.inputs], self.codec)
        return work, lambda: self._same_sum(tensor, want)

    def reduce_scatter(self) -> Started:
        out = torch.full((self.count,), -1.0, dtype=self.dtype)
        work = mcr_dl.reduce_scatter_single(out, self.mine, **self.keywords)
        return work, lambda: self._same_sum(out, summed(self._blocks(self.me)))

    def reduce_scatterv(self) -> Started:
        counts = [self.count - index if self.count > index else 0 for index in range(self.size)]
        out = torch.full((counts[self.me],), -1.0, dtype=self.dtype)
        work = mcr_dl.reduce_scatterv(out, self.mine[: sum(counts)], counts, **self.keywords)
        return work, lambda: self._same_sum(out, summed(self._blocks(self.me, counts)))

    def all_gather(self) -> Started:
        out = torch.full((self.count * self.size,), -1.0, dtype=self.dtype)
        work = mcr_dl.all_gather_single(out, self.mine[: self.count], **self.keywords)
        want = torch.cat([coded(each[: self.count], self.codec) for each in self.inputs])
        return work, lambda: same(out, want, "all_gather")

    def all_gatherv(self) -> Started:
        """With gaps between the blocks, which must not be written."""
        counts = [min(count, self.count * self.size) for count in self.uneven]
        places = [1 + sum(counts[:index]) + 2 * index for index in range(self.size)]
        out = torch.full((sum(counts) + 2 * self.size + 1,), -1.0, dtype=self.dtype)
        want = out.clone()
        for rank, (place, count) in enumerate(zip(places, counts, strict=True)):
            want[place : place + count] = coded(self.inputs[rank][:count], self.codec)
        work = mcr_dl.all_gatherv(out, self.mine[: counts[self.me]], counts, places, **self.keywords)
        return work, lambda: same(out, want, "all_gatherv")

    def all_to_all(self) -> Started:
        """In place: input and output are one tensor."""
        tensor = self.mine.clone()
        work = mcr_dl.all_to_all_single(tensor, tensor, **self.keywords)
        return work, lambda: same(tensor, torch.cat(self._blocks(self.me)), "all_to_all")

    def all_to_allv(self) -> Started:
        """The block from rank i to j has the equal share of elements, minus i + j."""
        counts = [[max(0, self.count - source - target) for target in range(self.size)] for source in range(self.size)]
        arriving = [counts[source][self.me] for source in range(self.size)]
        places = [self.count * index for index in range(self.size)]
        out = torch.full((sum(arriving),), -1.0, dtype=self.dtype)
        work = mcr_dl.all_to_allv(out, self.mine, counts[self.me], arriving, places, **self.keywords)
        blocks = zip(self.inputs, arriving, strict=True)
        want = torch.cat([coded(each[places[self.me] :][:count].clone(), self.codec) for each, count in blocks])
        return work, lambda: same(out, want, "all_to_allv")

    def splits(self) -> Started:
        """all_to_all_single with rows of two for each rank but the first, which gets none."""
        rows = [2 * index for index in range(self.size)]
        given = self.mine[: sum(rows)].view(-1, 1) if self.count >= self.size else self.mine[:0].view(-1, 1)
        rows = rows if given.numel() else [0] * self.size
        out = torch.full((rows[self.me] * self.size, 1), -1.0, dtype=self.dtype)
        work = mcr_dl.all_to_all_single(out, given.contiguous(), [rows[self.me]] * self.size, rows, **self.keywords)
        want = torch.cat(self._blocks(self.me, rows)) if given.numel() else out.flatten()
        return work, lambda: same(out.flatten(), want, "splits")

    def lists(self) -> Started:
        outs = [torch.full((self.count,), -1.0, dtype=self.dtype) for _ in range(self.size)]
        ins = [part.clone() for part in self.mine.split([self.count] * self.size)]
        work = mcr_dl.all_to_all(outs, ins, **self.keywords)
        return work, lambda: same(torch.cat(outs), torch.cat(self._blocks(self.me)), "lists")

    def broadcast(self) -> Started:
        root = self.size - 1
        tensor = self.mine[: self.count].clone()
        work = mcr_dl.broadcast(tensor, src=root, **self.keywords)
        return work, lambda: same(tensor, coded(self.inputs[root][: self.count], self.codec), "broadcast")

    def messages(self) -> Started:
        """Around the ring; even ranks receive from any rank."""
        keywords = {key: value for key, value in self.keywords.items() if key != "async_op"}
        out = torch.full((self.count,), -1.0, dtype=self.dtype)
        before, after = (self.me - 1) % self.size, (self.me + 1) % self.size
        source = None if self.me % 2 == 0 and "backend" in keywords and keywords["backend"] == "mpi" else before
        received = mcr_dl.irecv(out, source, tag=7, **keywords)
        sent = mcr_dl.isend(self.mine[: self.count], after, tag=7, **keywords)

        def check() -> None:
            received.wait()
            sent.wait()
            assert received.source_rank() == before
            same(out, coded(self.inputs[before][: self.count], self.codec), "messages")

        return None, check


def start(chain: list[Any], *backends: str) -> None:
    """Start the runtime with these passes."""
    session.start(*backends)
    mcr_dl.set_passes(chain)


def matrix(codec: str, backend: str | None, counts: list[int], dtypes: list[str], operations: list[str]) -> int:
    """Every operation and count, blocking and not; returns the number of calls."""
    start(["compress"])
    made = 0
    for dtype in dtypes:
        for count in counts:
            for name in operations:
                for asynchronous in (False, True):
                    note(f"{name} of {count} {dtype}, {codec} on {backend}, asynchronous: {asynchronous}")
                    keywords = {"backend": backend, "async_op": asynchronous}
                    calls = Calls(count, made, getattr(torch, dtype), codec, **keywords)
                    work, check = getattr(calls, name)()
                    assert (work is not None) == (asynchronous and name != "messages")
                    if work is not None:
                        work.wait()
                    check()
                    made += 1
    mcr_dl.set_passes([])
    return made


def reductions(codec: str) -> None:
    """Every reduction, with the special values; 16-bit tensors are summed in float32."""
    start(["compress"])
    size, me = mcr_dl.get_world_size(), mcr_dl.get_rank()
    for red in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
        inputs = [values(301, 50 + rank, torch.float64) for rank in range(size)]
        inputs[0][7] = float("nan")
        inputs[-1][200] = float("inf")
        tensor = inputs[me].clone()
        mcr_dl.all_reduce(tensor, getattr(mcr_dl.ReduceOp, red), codec=codec)
        same(tensor, reduced(inputs, codec, red), red)
        assert bool(tensor[7].isnan()) or red in ("MIN", "MAX")
    mcr_dl.set_passes([])


def halves(name: str) -> None:
    """float16 and bfloat16 with int8: encoded from, summed in and decoded to float32."""
    start(["compress"])
    dtype, size, me = getattr(torch, name), mcr_dl.get_world_size(), mcr_dl.get_rank()
    inputs = [values(500, rank, dtype).float() for rank in range(size)]
    tensor = inputs[me].to(dtype)
    mcr_dl.all_reduce(tensor, codec="int8")
    same(tensor, reduced(inputs, "int8").to(dtype), name)
    mcr_dl.set_passes([])


def in_flight(backend: str, codecs: list[str], seed: int, count: int) -> None:
    """Many pending calls of many kinds, with uncompressed and blocking ones, waited for in another order by rank."""
    start(["compress"])
    common, mine = random.Random(seed), random.Random(seed * 100 + mcr_dl.get_rank())
    pending: list[tuple[str, Started]] = []
    for number in range(count):
        name = common.choice(OPERATIONS)
        codec = common.choice([*codecs, "none"])
        asynchronous = common.random() < 0.8
        elements = common.choice((0, 1, 17, 1000, 20_000))
        note(f"in_flight {seed}: {number}: {name} {codec} {elements}; pending: {[text for text, _ in pending]}")
        calls = Calls(elements, number, torch.float32, codec, backend=backend, async_op=asynchronous)
        pending.append((f"{number} {name} {codec}", getattr(calls, name)()))
        if mine.random() < 0.1:
            time.sleep(mine.random() * 0.01)
        while pending and (len(pending) > 20 or mine.random() < 0.2):
            text, (work, check) = pending.pop(mine.randrange(len(pending)))
            note(f"in_flight {seed}: at {number}, waiting for {text}")
            if work is not None:
                work.wait()
            check()
    mine.shuffle(pending)
    for text, (work, check) in pending:
        note(f"in_flight {seed}: at the end, waiting for {text}")
        if work is not None:
            work.wait()
        check()
    late = _C.world()._late_issues()[backend]
    assert late["issues"] > late["queued"] == 0, late
    assert 0 < late["delay"] <= late["longest_delay"], late
    mcr_dl.set_passes([])


def with_fusion(order: list[str], backend: str) -> None:
    """With tensor fusion before or after: a call that names a codec is compressed, others are exact."""
    start(order)
    for number in range(10):
        codecs = ("none", "bf16", "none", "int8", "zfp:tolerance=1e-3", "none")
        keywords = {"backend": backend, "async_op": True}
        begun = [Calls(60, number, torch.float32, codec, **keywords).all_reduce() for codec in codecs]
        begun += [Calls(60, number, torch.float32, codec, **keywords).broadcast() for codec in codecs]
        for work, check in begun if (number + mcr_dl.get_rank()) % 2 else reversed(begun):
            work.wait()
            check()
    mcr_dl.set_passes([])


def blocking_after_started(backend: str) -> None:
    """A rank in a blocking call still issues the later parts of started calls: the other waits for these first."""
    start(["compress"])
    size = mcr_dl.get_world_size()
    for _ in range(20):
        tensor = torch.full((4000,), 1.0)
        work = mcr_dl.all_reduce(tensor, codec="bf16", backend=backend, async_op=True)
        if mcr_dl.get_rank() == 0:
            work.wait()
        mcr_dl.barrier(backend=backend)
        work.wait()
        assert bool((tensor == size).all())
    mcr_dl.set_passes([])


def _of_unknown_size() -> None:
    """The group's codec does not apply to calls whose size not all ranks know, unless the pass has no limit."""
    exact = 1 + 2.0**-20
    size = mcr_dl.get_world_size()
    counts = [64] * size

    def exchanged(name: str, **keywords: Any) -> set[float]:
        given, got = torch.full((64 * size,), exact), torch.zeros(64 * size)
        if name == "all_to_all":
            mcr_dl.all_to_all(list(got.chunk(size)), list(given.chunk(size)), **keywords)
        else:
            getattr(mcr_dl, name)(got, given, counts, counts, **keywords)
        return set(got.tolist())

    for name in ("all_to_all", "all_to_all_single", "all_to_allv"):
        assert exchanged(name) == {exact}, name
        assert exchanged(name, codec="bf16") == {1.0}, name
    assert exchanged("all_to_allv", size_hint=63) == {exact}
    assert exchanged("all_to_allv", size_hint=64) == {1.0}
    before = mcr_dl.get_passes()
    mcr_dl.set_passes([passes.Compress("bf16", smallest=0)])
    assert exchanged("all_to_allv") == {1.0}
    assert mcr_dl.get_passes() == before


def by_group() -> None:
    """The group's codec applies to calls that name none, that it can compress, and that are not too small."""
    start([passes.Compress("bf16", smallest=64)])
    size, me = mcr_dl.get_world_size(), mcr_dl.get_rank()
    inputs = [values(100, rank) for rank in range(size)]

    def once(count: int, **keywords: Any) -> torch.Tensor:
        tensor = inputs[me][:count].clone()
        mcr_dl.all_reduce(tensor, **keywords)
        return tensor

    same(once(100), reduced(inputs, "bf16"), "the group's codec")
    same(once(100, codec="int8"), reduced(inputs, "int8"), "the call's codec")
    exact = summed(inputs)
    torch.testing.assert_close(once(100, codec="none"), exact)
    torch.testing.assert_close(once(15), exact[:15])
    integers = torch.arange(1000)
    mcr_dl.all_reduce(integers)
    assert integers.tolist() == [size * value for value in range(1000)]
    tensor = inputs[me].clone()
    mcr_dl.reduce(tensor, 0)
    torch.testing.assert_close(tensor, exact if me == 0 else inputs[me])
    mcr_dl.broadcast(tensor, 0)  # not among the default operations
    torch.testing.assert_close(tensor, exact)
    mcr_dl.barrier()
    _of_unknown_size()
    mcr_dl.set_passes([passes.Compress("bf16", ops=["broadcast", "send"], smallest=0)])
    Calls(50, 3, torch.float32, "bf16", silent=True).broadcast()[1]()
    Calls(50, 3, torch.float32, "bf16", silent=True).messages()[1]()
    torch.testing.assert_close(once(100), exact)
    mcr_dl.set_passes([])
    torch.testing.assert_close(once(100), exact)


def feedback() -> tuple[float, float]:
    """The mean of many all_reduces of one tensor: its error without and with feedback."""
    start(["compress"])
    size, me, steps = mcr_dl.get_world_size(), mcr_dl.get_rank(), 200
    inputs = [values(400, 7 + rank) for rank in range(size)]
    exact = summed(inputs)
    worst = []
    for codec in ("int8", "int8:feedback=mean"):
        total = torch.zeros(400, dtype=torch.float64)
        for step in range(steps):
            tensor = inputs[me].clone()
            work = mcr_dl.all_reduce(tensor, codec=codec, async_op=step % 2 == 0)
            if work is not None:
                work.wait()
            total += tensor
        worst.append(float((total / steps - exact).abs().max()))
    first = inputs[me].clone()
    passes.reset_feedback()
    mcr_dl.all_reduce(first, codec="int8:feedback=mean")
    same(first, reduced(inputs, "int8"), "after reset_feedback")
    mcr_dl.set_passes([])
    return worst[0], worst[1]


def subgroups() -> None:
    """A chain on one group, and none on the others."""
    start([])
    groups = session.groups()
    for name, group in groups.items():
        if group is None or name == "world":
            continue
        mcr_dl.set_passes([passes.Compress("int8", smallest=0)], group)
        inputs = [values(77, rank) for rank in mcr_dl.get_process_group_ranks(group)]
        tensor = inputs[group.rank()].clone()
        mcr_dl.all_reduce(tensor, group=group)
        same(tensor, reduced(inputs, "int8"), name)
        mcr_dl.set_passes([], group)
    mcr_dl.barrier()
