# SPDX-License-Identifier: Apache-2.0
"""Functions of the fuzz tests on ranks: starts with any environment, and calls drawn by the controller."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import torch

import mcr_dl
from mcr_dl import InvalidArgumentError, InvalidTypeError, UnsupportedError
from mcr_dl.testing import reference
from mcr_dl.testing.expect import expect
from mcr_dl.testing.position import note
from ranks import errors, session

DOCUMENTED = (InvalidArgumentError, InvalidTypeError, UnsupportedError)


def start_with(environment: dict[str, str], backends: list[str]) -> str:
    """Start with these variables, make a call, and end; returns "started", or the class of the error."""
    session.stop()
    safe = {
        name: os.fsencode(text.replace("\x00", "").encode("utf-8", "replace")).decode()
        for name, text in environment.items()
    }
    os.environ.update(safe)
    note(f"start_with {safe}")
    try:
        mcr_dl.init_process_group(backends)
        mcr_dl.all_reduce(torch.ones(3), backend=backends[0])
        mcr_dl.all_reduce(torch.ones(3))
        return "started"
    except InvalidArgumentError as error:
        return type(error).__name__
    finally:
        for name in environment:
            del os.environ[name]
        session.stop()


@dataclass(frozen=True)
class Blocks:
    """One side of a rank's vectored call: extent of the tensor, counts and displacements (None: left out)."""

    extent: int
    counts: tuple[int, ...] | None = None
    displs: tuple[int, ...] | None = None

    def starts(self) -> list[int]:
        assert self.counts is not None
        return list(self.displs) if self.displs is not None else [sum(self.counts[:i]) for i in range(len(self.counts))]

    def fits(self, size: int, *, disjoint: bool) -> bool:
        """Whether a rank can verify its blocks: one per rank, inside, and disjoint where they are written."""
        if self.counts is None or len(self.counts) != size or min(self.counts, default=0) < 0:
            return False
        # An empty list of displacements counts as none.
        starts = [sum(self.counts[:i]) for i in range(size)] if not self.displs else list(self.displs)
        if len(starts) != size or any(s < 0 or s + c > self.extent for s, c in zip(starts, self.counts, strict=True)):
            return False
        places = sorted((s, s + c) for s, c in zip(starts, self.counts, strict=True) if c)
        return not disjoint or all(a[1] <= b[0] for a, b in pairwise(places))

    def block(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        assert self.counts is not None
        start = sum(self.counts[:index]) if not self.displs else self.displs[index]
        return tensor[start : start + self.counts[index]]


@dataclass(frozen=True)
class Vectored:
    """A vectored call of all ranks: each rank's input and output, and their common parameters."""

    function: str
    dtype: str
    red: str
    root: int
    inputs: tuple[Blocks, ...]
    outputs: tuple[Blocks, ...]
    backend: str | None
    asynchronous: bool
    seed: int

    @property
    def size(self) -> int:
        return len(self.inputs)

    def valid(self, rank: int) -> bool:
        """Whether this rank's arguments are right as far as it can check them."""
        source, target, size = self.inputs[rank], self.outputs[rank], self.size
        if not 0 <= self.root < size:
            return False
        if self.function == "all_to_allv":
            return source.fits(size, disjoint=False) and target.fits(size, disjoint=True)
        here = self.function not in ("gatherv", "scatterv") or rank == self.root
        if self.function in ("all_gatherv", "gatherv"):
            return not here or (target.fits(size, disjoint=True) and (target.counts or ())[rank] == source.extent)
        return not here or (source.fits(size, disjoint=False) and (source.counts or ())[rank] == target.extent)

    def matched(self) -> bool:
        """Whether the ranks' counts for each other agree: no rank can check that by itself."""
        for a in range(self.size):
            for b in range(self.size):
                if self.function == "all_to_allv":
                    if (self.inputs[a].counts or ())[b] != (self.outputs[b].counts or ())[a]:
                        return False
                elif self.function in ("all_gatherv", "gatherv"):
                    tells = self.function == "all_gatherv" or b == self.root
                    if tells and (self.outputs[b].counts or ())[a] != self.inputs[a].extent:
                        return False
                elif (self.function == "reduce_scatterv" or b == self.root) and (self.inputs[b].counts or ())[
                    a
                ] != self.outputs[a].extent:
                    return False
        return True

    def expected(self, inputs: list[torch.Tensor], output: torch.Tensor, rank: int) -> torch.Tensor | None:
        """The expected output of this rank; None: it has none."""
        result = output.clone()
        target = self.outputs[rank]
        if self.function in ("all_gatherv", "gatherv"):
            if self.function == "gatherv" and rank != self.root:
                return None
            for index, each in enumerate(inputs):
                target.block(result, index).copy_(each)
        elif self.function == "all_to_allv":
            for index, each in enumerate(inputs):
                target.block(result, index).copy_(self.inputs[index].block(each, rank))
        elif self.function == "scatterv":
            result.copy_(self.inputs[self.root].block(inputs[self.root], rank))
        else:
            blocks = [self.inputs[index].block(each, rank) for index, each in enumerate(inputs)]
            if result.numel():
                result.copy_(reference.reduced(blocks, self.red))
        return result


def _call(case: Vectored, source: torch.Tensor, target: torch.Tensor, rank: int) -> Any:
    mine, theirs = case.inputs[rank], case.outputs[rank]
    lists = {
        name: None if values is None else list(values)
        for name, values in (
            ("scounts", mine.counts),
            ("sdispls", mine.displs),
            ("rcounts", theirs.counts),
            ("rdispls", theirs.displs),
        )
    }
    how = {"backend": case.backend, "async_op": case.asynchronous}
    if case.function == "all_to_allv":
        return mcr_dl.all_to_allv(
            target, source, lists["scounts"], lists["rcounts"], lists["sdispls"], lists["rdispls"], **how
        )
    if case.function == "all_gatherv":
        return mcr_dl.all_gatherv(target, source, lists["rcounts"], lists["rdispls"], **how)
    if case.function == "gatherv":
        root = rank == case.root or case.seed % 2 == 1  # arguments that only the root needs may be given elsewhere
        return mcr_dl.gatherv(
            target if root else None,
            source,
            case.root,
            lists["rcounts"] if root else None,
            lists["rdispls"] if root else None,
            **how,
        )
    if case.function == "scatterv":
        root = rank == case.root or case.seed % 2 == 1  # arguments that only the root needs may be given elsewhere
        return mcr_dl.scatterv(
            target,
            source if root else None,
            case.root,
            lists["scounts"] if root else None,
            lists["sdispls"] if root else None,
            **how,
        )
    return mcr_dl.reduce_scatterv(target, source, lists["scounts"], op=getattr(mcr_dl.ReduceOp, case.red), **how)


def vectored(case: Vectored) -> str:
    """Make the call if all ranks can, or on those that cannot; compare. "right", "refused", or "not called"."""
    session.start()
    rank = mcr_dl.get_rank()
    note(str(case))
    dtype = reference.dtype_of(case.dtype)
    inputs = [reference.values(dtype, side.extent, case.seed * 64 + i, case.red) for i, side in enumerate(case.inputs)]
    output = reference.values(dtype, case.outputs[rank].extent, case.seed * 64 + 32 + rank)
    good = [case.valid(each) for each in range(case.size)]
    if not good[rank]:
        return _refused(lambda: _call(case, inputs[rank], output, rank), output)
    if not all(good) or not case.matched():
        return "not called"
    want = case.expected(inputs, output, rank)
    work = _call(case, inputs[rank], output, rank)
    if case.asynchronous:
        work.wait()
    if want is not None:
        reference.assert_same(output, want, str(case))
    return "right"


def _refused(call: Any, untouched: torch.Tensor) -> str:
    before = untouched.clone()
    try:
        result = call()
    except DOCUMENTED:
        assert torch.equal(reference.wide(before), reference.wide(untouched))
        return "refused"
    raise AssertionError(f"expected an error, returned {result!r}")


def usable(backend: str) -> None:
    """A correct call after the previous one."""
    session.start()
    errors.good_call(backend)


# ---- arguments of any kind, on one rank alone


class _Hostile:
    """An object whose methods raise, or return useless values."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __repr__(self) -> str:
        if self._kind == "repr":
            raise RuntimeError("no text")
        return "\udc80" if self._kind == "surrogate" else "hostile"

    def __index__(self) -> Any:
        if self._kind == "index":
            raise OverflowError("no number")
        return 2**70 if self._kind == "large" else "x"  # noqa: PLE0305

    def __len__(self) -> int:
        return -1 if self._kind == "length" else 3

    def __getitem__(self, index: int) -> Any:
        raise MemoryError("no items") if self._kind == "items" else IndexError

    def total_seconds(self) -> Any:
        return float("inf") if self._kind == "seconds" else "x"

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("no memory") if self._kind == "memory" else ValueError

    def __dlpack_device__(self) -> Any:
        return "x"


def _arrays() -> dict[str, Any]:
    array = np.arange(6.0, dtype=np.float32)
    locked = np.arange(3.0)
    locked.flags.writeable = False
    return {
        "array": array, "array backwards": array[::-1], "array of objects": np.array([None, 1]), "array locked": locked,
        "array big-endian": array.astype(">f4"), "array of times": np.array(["2026-01-01"], dtype="datetime64[s]"),
        "array of long doubles": np.zeros(2, np.longdouble), "array of none": np.zeros(0, np.int8), "array 0-d":
        np.array(1.5),
    }  # fmt: skip


def _tensors() -> dict[str, Any]:
    return {
        "ones": torch.ones(6), "int64": torch.arange(6), "bool": torch.ones(3, dtype=torch.bool), "empty":
        torch.empty(0),
        "scalar": torch.tensor(2.0), "rows": torch.ones(2, 3), "transposed": torch.ones(2, 3).t(), "step":
        torch.ones(6)[::2],
        "expanded": torch.ones(1).expand(4), "sparse": torch.ones(3).to_sparse(), "meta": torch.empty(3, device="meta"),
        "conjugate": torch.ones(3, dtype=torch.complex64).conj(), "negative": torch.ones(3,
        dtype=torch.complex64).conj().imag,
        "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "half complex": torch.ones(2,
        dtype=torch.complex32),
        "fnuz": torch.ones(3).to(torch.float8_e4m3fnuz), "grad": torch.ones(3, requires_grad=True), "uint16":
        torch.ones(3, dtype=torch.uint16),
        "parameter": torch.nn.Parameter(torch.ones(2)), "view": torch.ones(8)[3:6], "uninitialised":
        torch.nn.parameter.UninitializedParameter(),
        "no dimension": torch.empty((0, 5)), "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    }  # fmt: skip


def values() -> dict[str, Any]:
    """Arguments by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about experimental types
        return _values()


def _values() -> dict[str, Any]:
    plain = {
        "None": None, "True": True, "0": 0, "1": 1, "-1": -1, "2**31": 2**31, "2**63": 2**63, "-2**63": -(2**63),
        "10**5000": 10**5000,
        "0.5": 0.5, "nan": float("nan"), "inf": float("inf"), "1e300": 1e300, "text": "x", "no text": "", "surrogate":
        "\udc80", "null": "a\x00b",
        "bytes": b"x", "gloo": "gloo", "auto": "auto", "bf16": "bf16", "list": [], "ones list": [1], "deep list":
        [[1]], "large list": [2**62] * 3,
        "sums to one": [2**62, 2**62, 1 - 2**63], "long list": [0] * 10_000, "tuple": (1,), "dict": {}, "set": {1},
        "range": range(1), "iterator": iter([1]),
        "SUM": mcr_dl.ReduceOp.SUM, "premul": mcr_dl.ReduceOp.PREMUL_SUM, "type": int, "world": mcr_dl.group.WORLD,
        "second": timedelta(seconds=1),
        "no time": timedelta(0), "all time": timedelta.max, "tensors": [torch.ones(6)], "mixed": [torch.ones(2),
        torch.ones(2, dtype=torch.int8)],
        "no tensors": [None], "arrays": [np.ones(2, np.float32)], "device": torch.device("cpu"), "object": object(),
        "shrinking list": _shrinking(),
    }  # fmt: skip
    hostile = {
        f"hostile {kind}": _Hostile(kind)
        for kind in ("repr", "surrogate", "index", "large", "length", "items", "seconds", "memory", "")
    }
    return {**plain, **hostile, **_arrays(), **_tensors()}


class _Shrinking:
    """A member of a list that empties the list while it is read."""

    def __init__(self, members: list[Any]) -> None:
        self._members = members

    def _shrink(self) -> None:
        del self._members[:]

    def __index__(self) -> int:
        self._shrink()
        return 1

    def __dlpack__(self, **_: Any) -> Any:
        self._shrink()
        raise BufferError("\udc80")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def _shrinking() -> list[Any]:
    members: list[Any] = []
    members.append(_Shrinking(members))
    return members


def any_keyword(function: str, keyword: str) -> None:
    """Call a function with an argument that it does not have."""
    session.start("gloo", "null")
    note(f"{function} {keyword!a}")
    expect(TypeError, lambda: getattr(mcr_dl, function)(**{keyword: None}), f"{function}() ", "argument")


def any_call(function: str, arguments: dict[str, str], backend: str | None) -> str:
    """Call a function with these arguments on a group of one rank; the class of the error, or "returned"."""
    session.start("gloo", "null")
    note(f"{function} {arguments} {backend}")
    known = values()
    given = {name: known[value] for name, value in arguments.items()}
    if backend is not None:
        given["backend"] = backend
    try:
        result = getattr(mcr_dl, function)(**given)
        if isinstance(result, mcr_dl.Work):
            result.wait(timedelta(seconds=10))
    except mcr_dl.McrError as error:
        return type(error).__name__
    return "returned"


def alone(backend: str) -> None:
    """A correct call of the one rank."""
    session.start("gloo", "null")
    tensor = torch.arange(5.0)
    mcr_dl.all_reduce(tensor, backend=backend)
    if backend != "null":
        assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
