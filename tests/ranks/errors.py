# SPDX-License-Identifier: Apache-2.0
"""Wrong calls, each with the error that it must raise; made on one rank alone, so that anything sent would show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed import DistBackendError

import mcr_dl
from mcr_dl import InvalidArgumentError, InvalidTypeError, McrError, NotInitializedError
from mcr_dl.testing.expect import expect
from ranks import session

Op = mcr_dl.ReduceOp


class At(NamedTuple):
    """The setting of a wrong call: the backend, and the size of the group."""

    backend: str
    size: int


@dataclass(frozen=True)
class Bad:
    """A wrong call: its exception, and what the text names in addition to the backend and the group."""

    error: type[McrError]
    op: str
    argument: str
    call: Callable[[At], Any]
    also: type[Exception] = ValueError


def _ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype)


def _freed() -> torch.Tensor:
    tensor = _ones(6)
    tensor.untyped_storage().resize_(8)
    return tensor


def _bad(op: str, argument: str, call: Callable[[At], Any]) -> Bad:
    return Bad(InvalidArgumentError, op, argument, call)


def _type(op: str, argument: str, call: Callable[[At], Any]) -> Bad:
    return Bad(InvalidTypeError, op, argument, call, TypeError)


_VALUES: dict[str, Bad] = {
    "gaps in memory": _bad("all_reduce", "tensor", lambda c: mcr_dl.all_reduce(_ones(6)[::2], backend=c.backend)),
    "sparse": _bad("all_reduce", "tensor", lambda c: mcr_dl.all_reduce(_ones(3).to_sparse(), backend=c.backend)),
    "memory was freed": _bad("all_reduce", "tensor", lambda c: mcr_dl.all_reduce(_freed(), backend=c.backend)),
    "meta": _bad(
        "broadcast", "tensor", lambda c: mcr_dl.broadcast(torch.empty(3, device="meta"), 0, backend=c.backend)
    ),
    "two devices": _bad(
        "all_gather_single",
        "input",
        lambda c: mcr_dl.all_gather_single(_ones(3 * c.size), torch.empty(3, device="meta"), backend=c.backend),
    ),
    "lazy conjugate": _bad(
        "all_reduce",
        "tensor",
        lambda c: mcr_dl.all_reduce(_ones(3, dtype=torch.complex64).conj(), backend=c.backend),
    ),
    "gathered size": _bad(
        "all_gather_single",
        "output",
        lambda c: mcr_dl.all_gather_single(_ones(3 * c.size + 1), _ones(3), backend=c.backend),
    ),
    "scattered size": _bad(
        "reduce_scatter_single",
        "input",
        lambda c: mcr_dl.reduce_scatter_single(_ones(3), _ones(3 * c.size - 1), backend=c.backend),
    ),
    "exchanged size": _bad(
        "all_to_all_single",
        "output",
        lambda c: mcr_dl.all_to_all_single(_ones(c.size), _ones(2 * c.size), backend=c.backend),
    ),
    "exchanged blocks": _bad(
        "all_to_all_single",
        "input",
        lambda c: mcr_dl.all_to_all_single(_ones(2 * c.size + 1), _ones(2 * c.size + 1), backend=c.backend),
    ),
    "gathered list's size": _bad(
        "all_gather",
        "tensor_list",
        lambda c: mcr_dl.all_gather([_ones(2) for _ in range(c.size)], _ones(3), backend=c.backend),
    ),
    "list too short": _bad(
        "all_gather", "tensor_list", lambda c: mcr_dl.all_gather([_ones(2)] * (c.size - 1), _ones(2), backend=c.backend)
    ),
    "negative size_hint": _bad(
        "all_gatherv",
        "size_hint",
        lambda c: mcr_dl.all_gatherv(_ones(c.size), _ones(1), [1] * c.size, size_hint=-5, backend=c.backend),
    ),
    "splits' sum": _bad(
        "all_to_all_single",
        "input_split_sizes",
        lambda c: mcr_dl.all_to_all_single(_ones(c.size), _ones(c.size), [1] * c.size, [2] * c.size, backend=c.backend),
    ),
    "splits' number": _bad(
        "all_to_all_single",
        "output_split_sizes",
        lambda c: mcr_dl.all_to_all_single(_ones(c.size), _ones(c.size), [c.size], None, backend=c.backend),
    ),
    "no splits": _bad(
        "all_to_all_single",
        "output_split_sizes",
        lambda c: mcr_dl.all_to_all_single(_ones(c.size + 1), _ones(c.size), None, [1] * c.size, backend=c.backend),
    ),
}

_VECTORS: dict[str, Bad] = {
    "overlap": _bad(
        "all_gatherv",
        "displs",
        lambda c: mcr_dl.all_gatherv(
            _ones(9 * c.size), _ones(2), [2] * c.size, [0, *range(1, c.size)], backend=c.backend
        ),
    ),
    "overlap in exchange": _bad(
        "all_to_allv",
        "rdispls",
        lambda c: mcr_dl.all_to_allv(
            _ones(9 * c.size), _ones(9 * c.size), [2] * c.size, [2] * c.size, None, [0] * c.size, backend=c.backend
        ),
    ),
    "beyond the output": _bad(
        "all_gatherv",
        "output",
        lambda c: mcr_dl.all_gatherv(_ones(2 * c.size - 1), _ones(2), [2] * c.size, backend=c.backend),
    ),
    "beyond the input": _bad(
        "all_to_allv",
        "input",
        lambda c: mcr_dl.all_to_allv(
            _ones(9 * c.size), _ones(2 * c.size - 1), [2] * c.size, [2] * c.size, backend=c.backend
        ),
    ),
    "far displacement": _bad(
        "all_gatherv",
        "displs",
        lambda c: mcr_dl.all_gatherv(_ones(9), _ones(0), [0] * c.size, [2**62] * c.size, backend=c.backend),
    ),
    "huge count": _bad(
        "all_gatherv", "output", lambda c: mcr_dl.all_gatherv(_ones(9), _ones(1), [2**62] * c.size, backend=c.backend)
    ),
    "negative displacement": _bad(
        "all_gatherv",
        "displs",
        lambda c: mcr_dl.all_gatherv(
            _ones(9 * c.size), _ones(1), [1] * c.size, [-1, *range(1, c.size)], backend=c.backend
        ),
    ),
    "negative count": _bad(
        "all_gatherv",
        "rcounts",
        lambda c: mcr_dl.all_gatherv(_ones(9 * c.size), _ones(1), [-1] * c.size, backend=c.backend),
    ),
    "counts' number": _bad(
        "all_gatherv",
        "rcounts",
        lambda c: mcr_dl.all_gatherv(_ones(9), _ones(1), [1] * (c.size + 1), backend=c.backend),
    ),
    "displacements' number": _bad(
        "all_gatherv",
        "displs",
        lambda c: mcr_dl.all_gatherv(_ones(9), _ones(1), [1] * c.size, [0], backend=c.backend),
    ),
    "own count": _bad(
        "all_gatherv",
        "input",
        lambda c: mcr_dl.all_gatherv(_ones(9 * c.size), _ones(3), [2] * c.size, backend=c.backend),
    ),
    "own count in scatter": _bad(
        "reduce_scatterv",
        "output",
        lambda c: mcr_dl.reduce_scatterv(_ones(3), _ones(2 * c.size), [2] * c.size, backend=c.backend),
    ),
    "own count in exchange": _bad(
        "all_to_allv",
        "rcounts",
        lambda c: mcr_dl.all_to_allv(
            _ones(9 * c.size), _ones(9 * c.size), [1] * c.size, [2] * c.size, backend=c.backend
        ),
    ),
    "counts no list": _type(
        "all_gatherv", "rcounts", lambda c: mcr_dl.all_gatherv(_ones(c.size), _ones(1), 1, backend=c.backend)
    ),
    "counts no integers": _type(
        "all_gatherv",
        "rcounts",
        lambda c: mcr_dl.all_gatherv(_ones(c.size), _ones(1), [1.5] * c.size, backend=c.backend),
    ),
}

_RANKS: dict[str, Bad] = {
    "root too large": _bad("broadcast", "src", lambda c: mcr_dl.broadcast(_ones(1), c.size, backend=c.backend)),
    "root negative": _bad("reduce", "dst", lambda c: mcr_dl.reduce(_ones(1), -1, backend=c.backend)),
    "group root too large": _bad(
        "broadcast", "group_src", lambda c: mcr_dl.broadcast(_ones(1), group_src=c.size, backend=c.backend)
    ),
    "two roots": _bad(
        "broadcast", "src and group_src", lambda c: mcr_dl.broadcast(_ones(1), 0, group_src=0, backend=c.backend)
    ),
    "no root": _bad("broadcast", "src", lambda c: mcr_dl.broadcast(_ones(1), backend=c.backend)),
    "gatherv's root": _bad(
        "gatherv", "root", lambda c: mcr_dl.gatherv(_ones(c.size), _ones(1), c.size, [1] * c.size, backend=c.backend)
    ),
    "peer too large": _bad("send", "dst", lambda c: mcr_dl.send(_ones(1), c.size, backend=c.backend)),
    "peer is me": _bad("send", "dst", lambda c: mcr_dl.send(_ones(1), mcr_dl.get_rank(), backend=c.backend)),
    "source is me": _bad("irecv", "src", lambda c: mcr_dl.irecv(_ones(1), mcr_dl.get_rank(), backend=c.backend)),
    "tag": _bad(
        "isend", "tag", lambda c: mcr_dl.isend(_ones(1), (mcr_dl.get_rank() + 1) % c.size, tag=-1, backend=c.backend)
    ),
    "tag from any rank": _bad("irecv", "tag", lambda c: mcr_dl.irecv(_ones(1), tag=-1, backend=c.backend)),
    "tag too large": _bad(
        "isend", "tag", lambda c: mcr_dl.isend(_ones(1), (mcr_dl.get_rank() + 1) % c.size, tag=2**32, backend=c.backend)
    ),
    "root no integer": _type("broadcast", "src", lambda c: mcr_dl.broadcast(_ones(1), "x", backend=c.backend)),
    "list on no root": _bad(
        "scatter",
        "scatter_list",
        lambda c: mcr_dl.scatter(_ones(1), [_ones(1)] * c.size, (mcr_dl.get_rank() + 1) % c.size, backend=c.backend),
    ),
    "no list on the root": Bad(
        InvalidTypeError,
        "scatter",
        "scatter_list",
        lambda c: mcr_dl.scatter(_ones(1), None, mcr_dl.get_rank(), backend=c.backend),
        TypeError,
    ),
}

_TYPES: dict[str, Bad] = {
    "reduction of dtype": _type("all_reduce", "op", lambda c: mcr_dl.all_reduce(_ones(2), Op.BAND, backend=c.backend)),
    "PREMUL_SUM": _type("all_reduce", "op", lambda c: mcr_dl.all_reduce(_ones(2), Op.PREMUL_SUM, backend=c.backend)),
    "MAX of complex": _type(
        "reduce", "op", lambda c: mcr_dl.reduce(_ones(2, dtype=torch.complex64), 0, Op.MAX, backend=c.backend)
    ),
    "no reduction": _type("all_reduce", "op", lambda c: mcr_dl.all_reduce(_ones(2), 3.5, backend=c.backend)),
    "unknown dtype": _type(
        "all_reduce", "tensor", lambda c: mcr_dl.all_reduce(_ones(2).to(torch.float8_e4m3fnuz), backend=c.backend)
    ),
    "two dtypes": _type(
        "all_gather_single",
        "input",
        lambda c: mcr_dl.all_gather_single(_ones(2 * c.size), _ones(2, dtype=torch.float64), backend=c.backend),
    ),
    "two dtypes in a list": _type(
        "all_to_all",
        "output_tensor_list",
        lambda c: mcr_dl.all_to_all(
            [_ones(1)] + [_ones(1, dtype=torch.int8)] * (c.size - 1), [_ones(1)] * c.size, backend=c.backend
        ),
    ),
    "no tensor": _type("all_reduce", "tensor", lambda c: mcr_dl.all_reduce(object(), backend=c.backend)),
    "no list": _type("all_gather", "tensor_list", lambda c: mcr_dl.all_gather(7, _ones(1), backend=c.backend)),
    "read-only array": _bad(
        "all_gather_single",
        "output",
        lambda c: mcr_dl.all_gather_single(
            np.frombuffer(bytes(4 * c.size), dtype=np.float32), np.ones(1, np.float32), backend=c.backend
        ),
    ),
    "timeout": _bad("barrier", "timeout", lambda c: mcr_dl.barrier(timeout=timedelta(seconds=-1), backend=c.backend)),
}

CALLS: dict[str, Bad] = {**_VALUES, **_VECTORS, **_RANKS, **_TYPES}


def good_call(backend: str, group: Any = None) -> None:
    """A correct call that all ranks make; it only works if a wrong call has sent nothing."""
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
        size = mcr_dl.get_world_size()
        error = expect(bad.error, lambda: bad.call(At(backend, size)))
        assert isinstance(error, DistBackendError)
        assert isinstance(error, bad.also)
        text = str(error)
        start = f"{backend}.{bad.op} (group 'default', rank {culprit} of {size}): "
        assert text.startswith(start), text
        rest = text[len(start) :]
        for word in (bad.argument, "expected ", "got "):
            assert word in rest, f"{word!r} is not in {rest!r}"
    good_call(backend)
    return text


def wrong_backend(culprit: int) -> None:
    """An unknown backend's name, a backend that was not initialized, and no name at all."""
    session.start("mpi")
    if mcr_dl.get_rank() == culprit:
        for call, error, words in (
            (lambda: mcr_dl.all_reduce(_ones(1), backend="nope"), InvalidArgumentError, ("nope", "mpi")),
            (lambda: mcr_dl.all_reduce("nope", _ones(1)), InvalidArgumentError, ("nope", "mpi")),
            (lambda: mcr_dl.all_reduce(_ones(1), backend="gloo"), NotInitializedError, ("gloo", "mpi")),
            (lambda: mcr_dl.all_reduce("gloo", _ones(1)), NotInitializedError, ("gloo", "mpi")),
            (lambda: mcr_dl.all_reduce(_ones(1), backend=3), InvalidTypeError, ("3", "name")),
        ):
            expect(error, call, *words, "all_reduce", "group 'default'", "backend", "expected")
    good_call("mpi")
    session.stop()
    session.start()


def root_outside_group() -> None:
    """A global rank that belongs to the job but not to the group."""
    session.start()
    for name, group in session.groups().items():
        members = session.members(name, mcr_dl.get_world_size())
        outside = [rank for rank in range(mcr_dl.get_world_size()) if rank not in members]
        if group is None or not outside:
            continue
        for backend in session.BACKENDS:

            def call(group: Any = group, backend: str = backend, root: int = outside[0]) -> None:
                mcr_dl.broadcast(_ones(1), root, group=group, backend=backend)

            expect(InvalidArgumentError, call, "src", f"got {outside[0]}", str(members[0]), backend, name)
            good_call(backend, group)


def no_group() -> None:
    """Objects that are not groups, and a destroyed group."""
    session.start()
    for wrong in ("world", 3.5, object()):
        call = partial(mcr_dl.all_reduce, _ones(1), group=wrong)
        expect(InvalidTypeError, call, "group", "all_reduce", "expected", "got")
    group = mcr_dl.new_group()
    good_call("gloo", group)
    mcr_dl.destroy_process_group(group)
    expect(NotInitializedError, lambda: mcr_dl.all_reduce(_ones(1), group=group), "all_reduce", "destroyed")
    good_call("mpi")
