# SPDX-License-Identifier: Apache-2.0
"""Wrong calls, each with the error that it must raise; made on one rank alone, so that anything sent would be noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import mcr_dl
import numpy as np
import torch
from mcr_dl import InvalidArgumentError, InvalidTypeError, McrError, NotInitializedError
from torch.distributed import DistBackendError

from ranks import session

Op = mcr_dl.ReduceOp


@dataclass(frozen=True)
class Bad:
    """A wrong call: what it raises, and what the text names beside the backend and the group."""

    error: type[McrError]
    op: str
    argument: str
    call: Callable[[str, int], Any]  # backend, size of the group
    also: type[Exception] = ValueError


def _ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype)


def _bad(op: str, argument: str, call: Callable[[str, int], Any]) -> Bad:
    return Bad(InvalidArgumentError, op, argument, call)


def _type(op: str, argument: str, call: Callable[[str, int], Any]) -> Bad:
    return Bad(InvalidTypeError, op, argument, call, TypeError)


_VALUES: dict[str, Bad] = {
    "not contiguous": _bad("all_reduce", "tensor", lambda b, n: mcr_dl.all_reduce(_ones(4, 3).t(), backend=b)),
    "sparse": _bad("all_reduce", "tensor", lambda b, n: mcr_dl.all_reduce(_ones(3).to_sparse(), backend=b)),
    "meta": _bad("broadcast", "tensor", lambda b, n: mcr_dl.broadcast(torch.empty(3, device="meta"), 0, backend=b)),
    "two devices": _bad(
        "all_gather",
        "input",
        lambda b, n: mcr_dl.all_gather_single(_ones(3 * n), torch.empty(3, device="meta"), backend=b),
    ),
    "lazy conjugate": _bad(
        "all_reduce",
        "tensor",
        lambda b, n: mcr_dl.all_reduce(_ones(3, dtype=torch.complex64).conj(), backend=b),
    ),
    "gathered size": _bad(
        "all_gather", "output", lambda b, n: mcr_dl.all_gather_single(_ones(3 * n + 1), _ones(3), backend=b)
    ),
    "scattered size": _bad(
        "reduce_scatter", "input", lambda b, n: mcr_dl.reduce_scatter_single(_ones(3), _ones(3 * n - 1), backend=b)
    ),
    "exchanged size": _bad(
        "all_to_all", "output", lambda b, n: mcr_dl.all_to_all_single(_ones(n), _ones(2 * n), backend=b)
    ),
    "exchanged blocks": _bad(
        "all_to_all", "input", lambda b, n: mcr_dl.all_to_all_single(_ones(2 * n + 1), _ones(2 * n + 1), backend=b)
    ),
    "gathered list's size": _bad(
        "all_gather", "output", lambda b, n: mcr_dl.all_gather([_ones(2) for _ in range(n)], _ones(3), backend=b)
    ),
    "list too short": _bad(
        "all_gather", "tensor_list", lambda b, n: mcr_dl.all_gather([_ones(2)] * (n - 1), _ones(2), backend=b)
    ),
    "splits' sum": _bad(
        "all_to_all",
        "input_split_sizes",
        lambda b, n: mcr_dl.all_to_all_single(_ones(n), _ones(n), [1] * n, [2] * n, backend=b),
    ),
    "splits' number": _bad(
        "all_to_all",
        "counts",
        lambda b, n: mcr_dl.all_to_all_single(_ones(n), _ones(n), [n], None, backend=b),
    ),
    "no splits": _bad(
        "all_to_all",
        "output_split_sizes",
        lambda b, n: mcr_dl.all_to_all_single(_ones(n + 1), _ones(n), None, [1] * n, backend=b),
    ),
}

_VECTORS: dict[str, Bad] = {
    "overlap": _bad(
        "all_gather",
        "output displacements",
        lambda b, n: mcr_dl.all_gatherv(_ones(9 * n), _ones(2), [2] * n, [0, *range(1, n)], backend=b),
    ),
    "overlap in exchange": _bad(
        "all_to_all",
        "output displacements",
        lambda b, n: mcr_dl.all_to_allv(_ones(9 * n), _ones(9 * n), [2] * n, [2] * n, None, [0] * n, backend=b),
    ),
    "beyond the output": _bad(
        "all_gather", "output", lambda b, n: mcr_dl.all_gatherv(_ones(2 * n - 1), _ones(2), [2] * n, backend=b)
    ),
    "beyond the input": _bad(
        "all_to_all",
        "input",
        lambda b, n: mcr_dl.all_to_allv(_ones(9 * n), _ones(2 * n - 1), [2] * n, [2] * n, backend=b),
    ),
    "far displacement": _bad(
        "all_gather",
        "output displacements",
        lambda b, n: mcr_dl.all_gatherv(_ones(9), _ones(0), [0] * n, [2**62] * n, backend=b),
    ),
    "huge count": _bad(
        "all_gather", "output", lambda b, n: mcr_dl.all_gatherv(_ones(9), _ones(1), [2**62] * n, backend=b)
    ),
    "negative displacement": _bad(
        "all_gather",
        "output displacements",
        lambda b, n: mcr_dl.all_gatherv(_ones(9 * n), _ones(1), [1] * n, [-1, *range(1, n)], backend=b),
    ),
    "negative count": _bad(
        "all_gather", "output counts", lambda b, n: mcr_dl.all_gatherv(_ones(9 * n), _ones(1), [-1] * n, backend=b)
    ),
    "counts' number": _bad(
        "all_gather", "output counts", lambda b, n: mcr_dl.all_gatherv(_ones(9), _ones(1), [1] * (n + 1), backend=b)
    ),
    "displacements' number": _bad(
        "all_gather",
        "output displacements",
        lambda b, n: mcr_dl.all_gatherv(_ones(9), _ones(1), [1] * n, [0], backend=b),
    ),
    "own count": _bad(
        "all_gather", "input", lambda b, n: mcr_dl.all_gatherv(_ones(9 * n), _ones(3), [2] * n, backend=b)
    ),
    "own count in scatter": _bad(
        "reduce_scatter", "output", lambda b, n: mcr_dl.reduce_scatterv(_ones(3), _ones(2 * n), [2] * n, backend=b)
    ),
    "counts no list": _type(
        "all_gather", "rcounts", lambda b, n: mcr_dl.all_gatherv(_ones(n), _ones(1), 1, backend=b)
    ),
    "counts no integers": _type(
        "all_gather", "rcounts", lambda b, n: mcr_dl.all_gatherv(_ones(n), _ones(1), [1.5] * n, backend=b)
    ),
}

_RANKS: dict[str, Bad] = {
    "root too large": _bad("broadcast", "src", lambda b, n: mcr_dl.broadcast(_ones(1), n, backend=b)),
    "root negative": _bad("reduce", "dst", lambda b, n: mcr_dl.reduce(_ones(1), -1, backend=b)),
    "group root too large": _bad(
        "broadcast", "group_src", lambda b, n: mcr_dl.broadcast(_ones(1), group_src=n, backend=b)
    ),
    "two roots": _bad("broadcast", "src and group_src", lambda b, n: mcr_dl.broadcast(_ones(1), 0, group_src=0, backend=b)),
    "no root": _bad("broadcast", "src", lambda b, n: mcr_dl.broadcast(_ones(1), backend=b)),
    "gatherv's root": _bad("gather", "root", lambda b, n: mcr_dl.gatherv(_ones(n), _ones(1), n, [1] * n, backend=b)),
    "peer too large": _bad("send", "dst", lambda b, n: mcr_dl.send(_ones(1), n, backend=b)),
    "peer is me": _bad("send", "peer", lambda b, n: mcr_dl.send(_ones(1), mcr_dl.get_rank(), backend=b)),
    "source is me": _bad("recv", "peer", lambda b, n: mcr_dl.irecv(_ones(1), mcr_dl.get_rank(), backend=b)),
    "tag": _bad("send", "tag", lambda b, n: mcr_dl.isend(_ones(1), (mcr_dl.get_rank() + 1) % n, tag=-1, backend=b)),
    "root no integer": _type("broadcast", "src", lambda b, n: mcr_dl.broadcast(_ones(1), "x", backend=b)),
    "list on no root": _bad(
        "scatter",
        "scatter_list",
        lambda b, n: mcr_dl.scatter(_ones(1), [_ones(1)] * n, (mcr_dl.get_rank() + 1) % n, backend=b),
    ),
    "no list on the root": Bad(
        InvalidTypeError,
        "scatter",
        "scatter_list",
        lambda b, n: mcr_dl.scatter(_ones(1), None, mcr_dl.get_rank(), backend=b),
        TypeError,
    ),
}

_TYPES: dict[str, Bad] = {
    "reduction of dtype": _type("all_reduce", "op", lambda b, n: mcr_dl.all_reduce(_ones(2), Op.BAND, backend=b)),
    "PREMUL_SUM": _type("all_reduce", "op", lambda b, n: mcr_dl.all_reduce(_ones(2), Op.PREMUL_SUM, backend=b)),
    "MAX of complex": _type(
        "reduce", "op", lambda b, n: mcr_dl.reduce(_ones(2, dtype=torch.complex64), 0, Op.MAX, backend=b)
    ),
    "no reduction": _type("all_reduce", "op", lambda b, n: mcr_dl.all_reduce(_ones(2), 3.5, backend=b)),
    "unknown dtype": _type(
        "all_reduce", "tensor", lambda b, n: mcr_dl.all_reduce(_ones(2).to(torch.float8_e4m3fn), backend=b)
    ),
    "two dtypes": _type(
        "all_gather",
        "input",
        lambda b, n: mcr_dl.all_gather_single(_ones(2 * n), _ones(2, dtype=torch.float64), backend=b),
    ),
    "two dtypes in a list": _type(
        "all_to_all",
        "output_tensor_list",
        lambda b, n: mcr_dl.all_to_all(
            [_ones(1)] + [_ones(1, dtype=torch.int8)] * (n - 1), [_ones(1)] * n, backend=b
        ),
    ),
    "no tensor": _type("all_reduce", "tensor", lambda b, n: mcr_dl.all_reduce(object(), backend=b)),
    "no list": _type("all_gather", "tensor_list", lambda b, n: mcr_dl.all_gather(7, _ones(1), backend=b)),
    "read-only array": _bad(
        "all_gather",
        "output",
        lambda b, n: mcr_dl.all_gather_single(
            np.frombuffer(bytes(4 * n), dtype=np.float32), np.ones(1, np.float32), backend=b
        ),
    ),
    "timeout": _bad("barrier", "timeout", lambda b, n: mcr_dl.barrier(timeout=timedelta(seconds=-1), backend=b)),
}

CALLS: dict[str, Bad] = {**_VALUES, **_VECTORS, **_RANKS, **_TYPES}


def _raised(bad: Bad, backend: str, size: int) -> McrError:
    try:
        result = bad.call(backend, size)
    except McrError as error:
        return error
    raise AssertionError(f"expected {bad.error.__name__}, returned {result!r}")


def good_call(backend: str, group: Any = None) -> None:
    """A correct call that all ranks make; it only works if nothing of a wrong one was sent."""
    size = mcr_dl.get_world_size(group)
    tensor = torch.full((5,), float(mcr_dl.get_rank(group) + 1))
    mcr_dl.all_reduce(tensor, group=group, backend=backend)
    assert tensor.tolist() == [size * (size + 1) / 2] * 5
    blocks = torch.empty(size)
    mcr_dl.all_gather_single(blocks, torch.tensor([float(mcr_dl.get_rank(group))]), group=group, backend=backend)
    assert blocks.tolist() == [float(rank) for rank in range(size)]


def wrong_on_one_rank(name: str, backend: str, culprit: int) -> str:
    """Make the wrong call on one rank, then correct ones on all."""
    session.start()
    text = ""
    if mcr_dl.get_rank() == culprit:
        bad = CALLS[name]
        error = _raised(bad, backend, mcr_dl.get_world_size())
        assert type(error) is bad.error, f"expected {bad.error.__name__}, got {error!r}"
        assert isinstance(error, DistBackendError)
        assert isinstance(error, bad.also)
        text = str(error)
        start = f"{backend}.{bad.op} (group 'default', rank {culprit} of {mcr_dl.get_world_size()}): "
        assert text.startswith(start), text
        rest = text[len(start) :]
        for word in (bad.argument, "expected ", "got "):
            assert word in rest, f"{word!r} is not in {rest!r}"
    good_call(backend)
    return text


def wrong_backend(culprit: int) -> None:
    """A name that no backend has, one that was not initialised, and no name at all."""
    session.start("mpi")
    if mcr_dl.get_rank() == culprit:
        for call, error, words in (
            (lambda: mcr_dl.all_reduce(_ones(1), backend="nope"), InvalidArgumentError, ("nope", "mpi")),
            (lambda: mcr_dl.all_reduce("nope", _ones(1)), InvalidArgumentError, ("nope", "mpi")),
            (lambda: mcr_dl.all_reduce(_ones(1), backend="gloo"), NotInitializedError, ("gloo", "mpi")),
            (lambda: mcr_dl.all_reduce("gloo", _ones(1)), NotInitializedError, ("gloo", "mpi")),
            (lambda: mcr_dl.all_reduce(_ones(1), backend=3), InvalidTypeError, ("3", "name")),
        ):
            try:
                call()
            except McrError as caught:
                text = str(caught)
                assert type(caught) is error, repr(caught)
                for word in (*words, "all_reduce", "group 'default'", "backend", "expected"):
                    assert word in text, text
            else:
                raise AssertionError(f"expected {error.__name__}")
    good_call("mpi")
    session.stop()
    session.start()


def root_outside_group() -> None:
    """A global rank that is a rank of the job, not of the group."""
    session.start()
    for name, group in session.groups().items():
        members = session.members(name, mcr_dl.get_world_size())
        outside = [rank for rank in range(mcr_dl.get_world_size()) if rank not in members]
        if group is None or not outside:
            continue
        for backend in session.BACKENDS:
            try:
                mcr_dl.broadcast(_ones(1), outside[0], group=group, backend=backend)
            except InvalidArgumentError as error:
                for word in ("src", f"got {outside[0]}", str(members[0]), backend, name):
                    assert word in str(error), str(error)
            else:
                raise AssertionError("expected InvalidArgumentError")
            good_call(backend, group)


def no_group() -> None:
    """Things that are not groups, a destroyed group, and a rank that is not a member."""
    session.start()
    for wrong in ("world", 3.5, object()):
        try:
            mcr_dl.all_reduce(_ones(1), group=wrong)
        except InvalidTypeError as error:
            assert "group" in str(error)
            assert "all_reduce" in str(error)
            assert "expected" in str(error)
        else:
            raise AssertionError(f"group={wrong!r} was accepted")
    group = mcr_dl.new_group()
    good_call("gloo", group)
    mcr_dl.destroy_process_group(group)
    try:
        mcr_dl.all_reduce(_ones(1), group=group)
    except NotInitializedError as error:
        assert "destroyed" in str(error)
    else:
        raise AssertionError("a destroyed group was used")
    good_call("mpi")
