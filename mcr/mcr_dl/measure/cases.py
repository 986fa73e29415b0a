# SPDX-License-Identifier: Apache-2.0
"""One prepared call: tensors, arguments, the call itself, and a check of its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.distributed import ReduceOp

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError, UnsupportedError
from mcr_dl.base.operations import Operation, operation_of
from mcr_dl.base.signature import DEFAULTS
from mcr_dl.libraries import registry
from mcr_dl.measure import _coded, _values, devices
from mcr_dl.measure._layout import Layout, layout

_LISTS = {"inputs", "outputs"}
_COUNTS = {"scounts", "rcounts"}


@dataclass(frozen=True)
class Case:
    """A call, equal on all ranks. `nbytes` is the message's size as nccl-tests counts it; `root` is a group rank:
    of a message, that with which rank 0 exchanges it, or rank 1 if it is 0.

    `codec` names the compression, for which the group needs the pass "compress"; empty: no compression.
    """

    operation: str
    nbytes: int
    dtype: str = "float32"
    red: str = "SUM"
    root: int = 0
    asynchronous: bool = False
    in_place: bool = False
    device: str = "cpu"
    codec: str = ""


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of one of ``_C.dtypes()``; InvalidTypeError lists them if there is none of that name."""
    if name not in _C.dtypes():
        message = f"dtype: expected one of {', '.join(_C.dtypes())}, got {name!r}"
        raise InvalidTypeError(message)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def message_size(operation: str, nbytes: int, dtype: str, ranks: int) -> tuple[int, int]:
    """Elements and bytes of the message after rounding up to whole elements and, where blocks are equal, whole blocks.

    The message is the tensor (broadcast, all_reduce, reduce, send), the gathered total (all_gather, gather), the total
    input (reduce_scatter, scatter), or one rank's whole input (all_to_all). A barrier has none.
    """
    row = operation_of(operation)
    if row.op == "barrier":
        return 0, 0
    if nbytes < 1:
        message = f"size: expected at least 1 byte, got {nbytes}"
        raise InvalidArgumentError(message)
    width = dtype_of(dtype).itemsize
    count = -(-nbytes // width)
    if row.blocks and not row.vectored:
        count = -(-count // ranks) * ranks
    return count, count * width


def tensor_bytes(operation: str, nbytes: int, dtype: str, rank: int, ranks: int, *, in_place: bool = False) -> int:
    """Bytes of the tensors of one rank for a message of this size; rank 0 is the root."""
    count, _ = message_size(operation, nbytes, dtype, ranks)
    part = layout(operation_of(operation).op, count, rank, ranks, 0)
    both = (part.input or 0, part.output or 0)
    return (max(both) if in_place and part.offset is not None else sum(both)) * dtype_of(dtype).itemsize


def candidates(group: _C.Group) -> list[str]:
    """The candidates for a call on this group: its backends and their variants, without variants that do nothing."""
    return [name for name in group.candidates if registry.describe(_C.CandidateName(name).backend).measured]


def differs(group: _C.Group, candidate: str, operation: str, dtype: str, device: str = "cpu") -> bool:
    """Whether the candidate has its own way to do this: a backend has, a variant may do the same as its backend."""
    if not _C.CandidateName(candidate).variant or candidate not in group.candidates:
        return True
    found = group._explain(operation, 0, dtype, "SUM", device)
    return candidate in found["candidates"] or candidate in found["excluded"]


def require_support(case: Case, candidate: str, group: _C.Group) -> None:
    """Raise if the candidate cannot run the case ("auto": if any candidate cannot); equal on all ranks.

    Raises InvalidArgumentError for an unknown operation, candidate or root, InvalidTypeError for an unknown dtype or an
    undefined reduction, UnsupportedError if the candidate cannot do it.
    """
    row = operation_of(case.operation)
    dtype_of(case.dtype)
    known = group.candidates
    if candidate != "auto" and not group._has(candidate):
        message = f"backend: expected one of {', '.join(known)}, auto, got {candidate!r}"
        raise InvalidArgumentError(message)
    if not 0 <= case.root < group.size():
        message = f"root: expected a rank of the group (0 to {group.size() - 1}), got {case.root}"
        raise InvalidArgumentError(message)
    if row.reduces and (case.red not in _C.reductions() or not _C.reduction_defined(case.dtype, case.red)):
        defined = ", ".join(red for red in _C.reductions() if _C.reduction_defined(case.dtype, red))
        message = f"redop: expected one of {defined} for dtype {case.dtype}, got {case.red}"
        raise InvalidTypeError(message)
    if row.peer and group.size() < 2:
        message = f"{case.operation}: expected a group of at least 2 ranks, got {group.size()}"
        raise UnsupportedError(message)
    red = case.red if row.reduces else "SUM"
    names = known if candidate == "auto" else [candidate]
    device = torch.device(case.device).type
    if all(group._support(name, row.op, case.dtype, red, row.vectored, device) == "-" for name in names):
        what = f"{case.dtype}, {red}" if row.reduces else case.dtype
        message = f"{candidate}: {case.operation}({what}) is not supported" + (
            f" on {device}" if device != "cpu" else ""
        )
        raise UnsupportedError(message)


def _kinds(function: dict[str, Any]) -> set[str]:
    return {kind for _, kind, _, _ in function["params"]}


def _function(row: Operation, op: str) -> dict[str, Any]:
    """The public function for it: the vectored or the plain one, on whole tensors rather than lists."""
    rows = [each for each in _C.signatures() if each["op"] == op and not each["starts"]]
    rows = [each for each in rows if bool(_kinds(each) & _COUNTS) == row.vectored]
    return min(rows, key=lambda each: len(_kinds(each) & _LISTS))


@dataclass(frozen=True)
class Tensors:
    """A rank's memory for a case. Candidates that are measured side by side may share it."""

    input: torch.Tensor | None
    output: torch.Tensor | None


def _allocate(case: Case, part: Layout) -> Tensors:
    """Input and output; one lies in the other if the case is in place and the operation has both here."""
    dtype, device = dtype_of(case.dtype), torch.device(case.device)
    make = partial(torch.ones, dtype=dtype, device=device)  # written to, so that the memory is mapped
    if part.input is None or part.output is None or part.offset is None or not case.in_place:
        return Tensors(
            None if part.input is None else make(part.input), None if part.output is None else make(part.output)
        )
    large = make(max(part.input, part.output))
    small = large[part.offset : part.offset + min(part.input, part.output)]
    return Tensors(large, small) if part.input >= part.output else Tensors(small, large)


class Prepared:
    """A call on this rank that can be made again and again.

    ``call()`` makes one and returns when it has ended on the CPU; on a device it may still be running, until
    ``synchronize()`` (None on the CPU) returns. ``messages`` is how many messages it passes in sequence (2 in a
    ping-pong); ``meet`` is a barrier of the same candidate for calls that ranks may leave before others enter, else
    None.

    Args:
        candidate: one of ``candidates(group)``, or "auto".
        tensors: another candidate's for the same case, to be shared if the calls do not overlap.

    Raises as `require_support` does.
    """

    def __init__(self, case: Case, candidate: str, group: _C.Group, tensors: Tensors | None = None) -> None:
        require_support(case, candidate, group)
        self.case, self.candidate, self.group = case, candidate, group
        self.row = operation_of(case.operation)
        self.count, self.nbytes = message_size(case.operation, case.nbytes, case.dtype, group.size())
        self.part = layout(self.row.op, self.count, group.rank(), group.size(), case.root)
        self.tensors = tensors or _allocate(case, self.part)
        self.messages = 2 if self.row.peer else 1
        self.meet: Callable[[], object] | None = partial(_C.barrier, candidate, group) if self.row.rooted else None
        self.synchronize = devices.synchronize(torch.device(case.device).type)
        self._starters: list[Callable[[], _C.Work]] = []
        self.call: Callable[[], object] = self._bind_peer() if self.row.peer else self._bind_collective()
        self._salt = 0

    @property
    def _red(self) -> str | None:
        return self.case.red if self.row.reduces else None

    def _arguments(self) -> dict[str, Any]:
        """Values by the kinds of the parameters."""
        root = self.case.root if self.part.peer is None else self.part.peer
        source, target = self.tensors.input, self.tensors.output
        return {
            "tensor": target,
            "input": source,
            "inputs": source,
            "output": target,
            "outputs": target,
            "op": getattr(ReduceOp, self.case.red),
            "src": self.group.ranks[root],
            "scounts": self.part.input_counts,
            "rcounts": self.part.output_counts,
            "group": self.group,
        }

    def _partial(self, op: str, asynchronous: bool, **changed: Any) -> partial[Any]:
        """The public function with all arguments bound: by position, which costs least."""
        row = _function(self.row, op)
        values = {**self._arguments(), "async_op": asynchronous, **changed}
        params = row["params"]
        places = [
            values.get(kind, DEFAULTS[default] if default else None)
            for _, kind, default, keyword in params
            if not keyword
        ]
        names: dict[str, Any] = {
            name: True for name, kind, _, keyword in params if keyword and kind == "async_op" and asynchronous
        }
        if self.case.codec:
            names["codec"] = self.case.codec
        named = () if self.candidate == "auto" else (self.candidate,)
        return partial(getattr(_C, row["name"]), *named, *places, **names)

    def _bind_collective(self) -> Callable[[], object]:
        start = self._partial(self.row.op, True)
        self._starters = [start]
        return (lambda: start().wait()) if self.case.asynchronous else self._partial(self.row.op, False)

    def _bind_peer(self) -> Callable[[], object]:
        """Rank 0 sends and the other rank sends back; ranks without a peer do nothing."""
        if self.part.peer is None:
            return lambda: None
        names = [self.row.op, next(row["name"] for row in _C.ops() if row["peer"] and row["name"] != self.row.op)]
        tensors = (self.tensors.input, self.tensors.output)
        self._starters = [self._partial(name, True, tensor=t) for name, t in zip(names, tensors, strict=True)]
        halves = [self._partial(name, False, tensor=t) for name, t in zip(names, tensors, strict=True)]
        if self.case.asynchronous:
            halves = [partial(_finish, start) for start in self._starters]
        first, second = halves if self.group.rank() < self.part.peer else reversed(halves)

        def ping_pong() -> None:
            first()
            second()

        return ping_pong

    def start(self) -> list[_C.Work]:
        """Start the call without waiting; a send becomes an exchange, in which both ranks send and receive at once."""
        return [starter() for starter in self._starters]

    def fill(self) -> None:
        """Write new, different values into the inputs, and clear expected values from the outputs."""
        self._salt += 1
        dtype, ranks, rank = dtype_of(self.case.dtype), self.group.size(), self.group.rank()
        one_tensor = not (self.row.blocks or self.row.peer)
        message, target = self.tensors.input, self.tensors.output
        if one_tensor:
            message = target
        elif target is not None:
            _values.fill(target, _values.pattern(dtype, self._red, ranks, ranks, self._salt))
        if message is not None:
            _values.fill(message, _values.pattern(dtype, self._red, rank, ranks, self._salt))

    def wrong(self) -> int:
        """How many elements of this rank's output are wrong after `fill` and one call."""
        dtype, ranks, done, count = dtype_of(self.case.dtype), self.group.size(), 0, 0
        for segment in self.part.expected:
            source, start, length, last = segment
            if self.case.codec:
                values = _coded.expected(segment, self.row.op, self.case.codec, dtype, self._red, ranks, self._salt)
            elif source is None:
                values = _values.reduced(dtype, self.case.red, ranks, self._salt, last)
            else:
                values = _values.pattern(dtype, self._red, source, ranks, self._salt)
            assert self.tensors.output is not None
            part = self.tensors.output[done : done + length]
            if self.case.codec:
                count += int((part != values).sum())
            else:
                count += _values.wrong(part, values, start, self._red)
            done += length
        return count

    def check(self) -> int:
        """Refill, make one call, and return the number of wrong elements on this rank. Collective."""
        self.fill()
        self.call()
        return self.wrong()


def _finish(start: Callable[[], _C.Work]) -> None:
    start().wait()
