# SPDX-License-Identifier: Apache-2.0
"""Runs cases of the operation table on one rank and compares with ``reference``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed

import mcr_dl
from mcr_dl import _C
from mcr_dl.testing import forms, reference, session
from mcr_dl.testing.calls import OPS, SIGNATURES, Case, Guards, Side, kinds, place, spell
from mcr_dl.testing.expect import expect
from mcr_dl.testing.position import note

__all__ = ["run", "run_all", "support", "supported"]

_COMPLETE_SECONDS = 5.0
_LATE_SECONDS = 2e-3  # of one rank, where a call must wait for it
_UNEVEN = 2, 0, 3  # added to a block's size; every third block is empty


def block_sizes(case: Case, size: int) -> list[Any]:
    """Elements of each rank's block; for all_to_all a row of them for each rank."""
    even = case.layout not in ("uneven", "splits", "rows", "packed", "gaps", "reversed")

    def one(index: int) -> int:
        extra = _UNEVEN[index % 3]
        return case.count if even else (case.count + extra if extra else 0)

    if case.op == "all_to_all":
        return [[one(i + j + case.seed) for j in range(size)] for i in range(size)]
    return [one(i + case.seed) for i in range(size)]


@dataclass
class Prepared:
    """A prepared call on this rank, with its expected results."""

    case: Case
    arguments: dict[str, Any]
    input: Side | None
    output: Side | None
    want_output: torch.Tensor | None
    want_input: torch.Tensor | None
    guards: Guards

    def check(self) -> None:
        """Compare results, the memory between blocks and around tensors, and inputs."""
        self.guards.check(str(self.case))
        if self.output is not None and self.want_output is not None:
            got, want = self.output.content().cpu(), self.want_output.cpu()
            reference.assert_same(got, want, f"output of {self.case}", self.case.red)
        if self.input is not None and self.want_input is not None:
            red = self.case.red if self.case.aliased else ""  # then it holds the result
            reference.assert_same(self.input.content().cpu(), self.want_input.cpu(), f"input after {self.case}", red)


def _has_data(case: Case) -> bool:
    return bool(OPS[case.op]["bus"] != "none")


def _width(case: Case) -> int:
    return 3 if case.layout == "rows" else 1


def _sides(case: Case, sizes: list[Any], rank: int, fill: Any, guards: Guards) -> tuple[Side | None, Side | None]:
    """Memory for this rank's input and output, not aliased."""
    extent_in, extent_out = _block_lists(case, sizes, rank)
    here = not OPS[case.op]["rooted"] or rank == case.root
    # Displacements are for the side with a block per rank; the other side is a tensor of one block's size.
    single = {"gaps": "plain", "reversed": "plain"}.get(case.layout, case.layout)
    layout_in = single if case.op in ("gather", "all_gather") else case.layout
    layout_out = single if case.op in ("scatter", "reduce_scatter") else case.layout
    source = place(extent_in, layout_in, partial(fill, 1), guards) if case.op != "scatter" or here else None
    target = place(extent_out, layout_out, partial(fill, 2), guards) if case.op != "gather" or here else None
    return source, target


def _block_lists(case: Case, sizes: list[Any], rank: int) -> tuple[list[int], list[int]]:
    """The numbers and sizes of the blocks in this rank's input and output."""
    if case.op == "all_to_all":
        return sizes[rank], [row[rank] for row in sizes]
    if case.op in ("all_gather", "gather"):
        return [sizes[rank]], sizes
    return sizes, [sizes[rank]]  # scatter, reduce_scatter


def _alias(case: Case, rank: int, source: Side, target: Side) -> tuple[Side, Side]:
    """Put the smaller side inside the larger one: this rank's own block, or all of it for all_to_all."""
    if case.op == "all_to_all":
        if source.base.numel() < target.base.numel():
            larger = target.base.clone()
            larger[: source.base.numel()] = source.base
            source.base = larger
        target.base = source.base[: target.base.numel()]
        source.base = source.base[: max(start + count for start, count in source.places)]
        return source, target
    large, small = (target, source) if len(target.places) > len(source.places) else (source, target)
    small.tensors = [large.blocks()[rank]] if large.tensors else []
    start, count = large.places[rank]
    small.base = large.base[start : start + count] if not large.tensors else small.tensors[0]
    small.places = [(0, count)]
    return source, target


def prepare(case: Case, rank: int, size: int) -> Prepared:
    """Make the tensors, arguments and expectations of a case for group rank `rank` of `size`."""
    dtype = reference.dtype_of(case.dtype)
    red = case.red if OPS[case.op]["reduces"] else None
    guards = Guards(case.seed)
    if not _has_data(case):
        return Prepared(case, _arguments(case, None, None, rank), None, None, None, None, guards)
    sizes = block_sizes(case, size)
    width = _width(case)
    if width > 1:
        sizes = [[count * width for count in row] for row in sizes]
    totals = _input_totals(case, sizes, size)
    given = [reference.values(dtype, total, case.seed * 64 + i, red) for i, total in enumerate(totals)]
    inputs = reference.thinned(given, red)
    want = reference.expected(case.op, inputs, sizes, case.root, case.red, rank)

    def fill(salt: int, count: int) -> torch.Tensor:
        return guards.around(reference.values(dtype, count, case.seed * 64 + 32 + salt + 2 * rank).to(case.device))

    if "tensor" in kinds(case.function):
        return _prepare_single(case, inputs, want, rank, fill, guards)
    source, target = _sides(case, sizes, rank, fill, guards)
    if case.aliased and source is not None and target is not None:
        source, target = _alias(case, rank, source, target)
    if source is not None:
        _pour(inputs[rank], source.blocks())
    want_output = _poured(target, want) if target is not None and want is not None else None
    want_input = source.content() if source is not None else None
    if case.aliased and source is not None and target is not None:
        want_input = _input_after(case, rank, source, want_output)
    if width > 1 and source is not None and target is not None:
        source.shape = target.shape = (-1, width)
    return Prepared(case, _arguments(case, source, target, rank), source, target, want_output, want_input, guards)


def _input_after(case: Case, rank: int, source: Side, result: torch.Tensor | None) -> torch.Tensor | None:
    """An input that contains the output as a block: that block is the result, the others stay unchanged."""
    if result is None or case.op not in ("scatter", "reduce_scatter"):
        return None
    after = source.content()
    start, count = source.places[rank]
    after[start : start + count] = result[:count]
    return after


def _input_totals(case: Case, sizes: list[Any], size: int) -> list[int]:
    if case.op == "all_to_all":
        return [sum(row) for row in sizes]
    if case.op in ("scatter", "reduce_scatter"):
        return [sum(sizes)] * size
    if "tensor" in kinds(case.function):
        return [case.count] * size
    return list(sizes)


def _prepare_single(
    case: Case, inputs: list[torch.Tensor], want: torch.Tensor | None, rank: int, fill: Any, guards: Guards
) -> Prepared:
    """Operations on one tensor, in place; in a ring, send and receive use one each."""
    shape: tuple[int, ...] = (case.count,)
    if case.layout == "matrix":
        shape = () if case.count == 1 else (case.count, 1)
    if case.op == "recv":
        side = Side(fill(1, case.count), [(0, case.count)], shape=shape)
    else:
        side = Side(guards.around(inputs[rank].to(case.device)), [(0, case.count)], shape=shape)
    if case.op == "send":
        want = inputs[rank]
    return Prepared(case, _arguments(case, None, side, rank), None, side, want, None, guards)


def _pour(packed: torch.Tensor, blocks: Sequence[torch.Tensor]) -> None:
    start = 0
    for block in blocks:
        block.copy_(packed[start : start + block.numel()].view_as(block))
        start += block.numel()


def _poured(side: Side, packed: torch.Tensor) -> torch.Tensor:
    """The side's base with the expected content of its blocks."""
    result = side.content()
    start = 0
    for offset, count in side.places:
        result[offset : offset + count] = packed[start : start + count]
        start += count
    return result


def _list_argument(case: Case, side: Side | None) -> Any:
    if side is None:
        return None
    return side.base if case.layout == "single" else side.blocks()


def _arguments(case: Case, source: Side | None, target: Side | None, rank: int) -> dict[str, Any]:
    """Every parameter's value by its kind."""
    ranks = session.members(case.group, mcr_dl.get_world_size())
    width = _width(case)
    root = ranks[(rank + (1 if case.op == "send" else -1)) % len(ranks)] if OPS[case.op]["peer"] else ranks[case.root]
    local = ranks.index(root)
    named: dict[str, Any] = {
        "group": session.group(case.group) if case.group != "world" else None,
        "async_op": case.asynchronous,
        "op": getattr(mcr_dl.ReduceOp, case.red),
        "src": None if case.by_group_rank else root,
        "group_src": local if case.by_group_rank else None,
        "tag": case.seed % 7,
    }
    if target is not None:
        named["tensor"] = named["output"] = target.tensors[0] if len(target.tensors) == 1 else target.whole()
        if case.layout not in ("even", "plain"):
            named["output_split_sizes"] = [count // width for count in target.counts()]
        named["rdispls"] = None if case.layout in ("packed", "even") else target.displs()
        named["rcounts"] = target.counts()
    if source is not None:
        named["input"] = source.tensors[0] if len(source.tensors) == 1 else source.whole()
        if case.layout not in ("even", "plain"):
            named["input_split_sizes"] = [count // width for count in source.counts()]
        named["sdispls"] = None if case.layout in ("packed", "even") else source.displs()
        named["scounts"] = source.counts()
    named["inputs"] = _list_argument(case, source)
    named["outputs"] = _list_argument(case, target)
    params = SIGNATURES[case.function]["params"]
    result = {name: named.get(kind) for name, kind, default, _ in params if kind in named or not default}
    if "async_op" not in kinds(case.function):
        result.pop("async_op", None)
    return result


def run_all(cases: Sequence[Case]) -> int:
    """Run the cases in order, on all ranks; mcr_dl must be initialized. Returns their number."""
    session.groups()
    for case in cases:
        run(case)
    return len(cases)


def support(case: Case, *, vectored: bool = False) -> str:
    """How the case's backend does it: "native", "emulated" or, if it does not, "-". The group's own choice is "native"
    here.
    """
    if case.backend in (None, "auto"):
        return "native"
    world = _C.world()
    assert world is not None
    assert case.backend is not None
    return world._support(case.backend, case.op, case.dtype, case.red, vectored, case.device)


def supported(case: Case) -> bool:
    """Whether the case's backend does it, natively or not; the layout makes no difference."""
    return support(case) != "-"


def refuse(case: Case) -> None:
    """The call raises UnsupportedError, which names operation, backend, reduction and type; nothing is sent."""
    ranks = session.members(case.group, mcr_dl.get_world_size())
    if mcr_dl.get_rank() not in ranks or case.count == 0:
        return
    if case.op == "reduce_scatter" and not any(block_sizes(case, len(ranks))):
        return  # nothing to do, which every backend supports
    note(f"refused: {case}")
    prepared = prepare(case, ranks.index(mcr_dl.get_rank()), len(ranks))
    words = (case.dtype, case.red) if OPS[case.op]["reduces"] else (case.dtype,)
    expect(mcr_dl.UnsupportedError, spell(case, dict(prepared.arguments)), f"{case.backend}.{case.op}", *words)


def run(case: Case) -> bool:
    """Make the call on this rank, if it is a member of the group, and check everything.

    Returns False, equally on all ranks, where no result can be checked: the backend does not support the call, which
    must then be rejected, or a group of one rank has no rank to send to.
    """
    ranks = session.members(case.group, mcr_dl.get_world_size())
    if OPS[case.op]["peer"] and len(ranks) == 1:
        return False
    if not supported(case):
        refuse(case)
        return False
    if mcr_dl.get_rank() in ranks:
        _run(case, ranks)
    return True


def _run(case: Case, ranks: list[int]) -> None:
    me = mcr_dl.get_rank()
    meeting = None if _has_data(case) else session.Meeting(case.group)
    if meeting is not None:
        if me == ranks[case.root % len(ranks)]:
            time.sleep(_LATE_SECONDS)  # a rank that did not wait for this one would be seen
        meeting.arrive()
    rank = ranks.index(me)
    note(str(case))
    prepared = prepare(case, rank, len(ranks))
    other = companion(case, rank, len(ranks))
    result, bring_back = _start(prepared)
    if case.asynchronous or SIGNATURES[case.function]["starts"]:
        kind = torch.distributed.Work if case.through_torch else mcr_dl.Work
        assert isinstance(result, kind), f"{case}: expected a Work, got {result!r}"
        assert result.wait() is True
        _assert_complete(case, result)
        assert result.is_success()
    elif case.op == "recv":
        assert result == ranks[rank - 1], f"{case}: expected the sender {ranks[rank - 1]}, got {result!r}"
    else:
        assert result is None, f"{case}: expected None, got {result!r}"
    if other is not None:
        other[1].wait()
        other[2]()
        other[0].check()
    bring_back()
    prepared.check()
    absent = [] if meeting is None else meeting.absent()
    assert not absent, f"{case}: returned before ranks {absent} had entered it"


def _start(prepared: Prepared) -> tuple[Any, Callable[[], None]]:
    """Make the call; returns its result, and a function that copies results back to where they are checked."""
    case = prepared.case
    arguments, bring_back = forms.handed_over(case.form, prepared.arguments)
    return spell(case, arguments)(), bring_back


def _assert_complete(case: Case, work: mcr_dl.Work | torch.distributed.Work) -> None:
    """On a device wait() blocks a stream and not the host, and a work that another thread is polling counts as running.
    So wait for the device, and retry for a while."""
    if case.device != "cpu":
        torch.cuda.synchronize()
        end = time.monotonic() + _COMPLETE_SECONDS
        while not work.is_completed() and time.monotonic() < end:
            time.sleep(1e-4)
    assert work.is_completed(), f"{case}: not complete"


def companion(case: Case, rank: int, size: int) -> tuple[Prepared, mcr_dl.Work, Callable[[], None]] | None:
    """The other half of a point-to-point call, started first: a receive for a send, a send for a receive."""
    if not OPS[case.op]["peer"]:
        return None
    other = next(name for name, row in SIGNATURES.items() if row["starts"] and {row["op"], case.op} == {"send", "recv"})
    half = Case(**{**case.__dict__, "function": other, "asynchronous": False, "style": "keywords"})
    prepared = prepare(half, rank, size)
    return prepared, *_start(prepared)
