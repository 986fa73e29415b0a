# SPDX-License-Identifier: Apache-2.0
"""Signatures and docstrings of the operations, generated from the op table instead of kept in a list by hand."""

from __future__ import annotations

import inspect
import textwrap
from functools import cache
from typing import Any

import torch.distributed as torch_dist

from mcr_dl import _C

_STRIDES = "elements are sent in memory order, so all ranks must use the same strides"
_PARAMETERS = {
    "tensor": f"dense tensor of any shape, read and written in place; {_STRIDES}",
    "input": "dense tensor that is sent",
    "output": "dense tensor that receives the result; same dtype and device as the input",
    "inputs": "list of one dense tensor per rank, or one tensor that holds the blocks in rank order",
    "outputs": "list of one dense tensor per rank, or one tensor that holds the blocks in rank order",
    "op": "torch.distributed.ReduceOp: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, or PREMUL_SUM with its factor. "
    "AVG of integers rounds towards zero. MIN and MAX yield NaN where one rank has a NaN, except on nccl",
    "group": "group to work in; None: the default group",
    "async_op": "True: return a Work at once. All ranks give the same value",
    "group_src": "the same rank, given by its index in the group; give one of the two",
    "tag": "number, 0 or more, that matches a send with its receive",
    "input_split_sizes": "rows of the input's first dimension for each rank; None: equal parts",
    "output_split_sizes": "rows of the output's first dimension from each rank; None: equal parts",
    "scounts": "elements of the block for each rank",
    "rcounts": "elements of the block from each rank",
    "sdispls": "offset of each rank's block in the input, in elements; None: the blocks are packed",
    "rdispls": "offset of each rank's block in the output, in elements; None: the blocks are packed",
    "timeout": "datetime.timedelta, or seconds, after which the call fails; None: the group's",
    "backend": "name of one of the group's backends or other candidates, such as 'mpi:p2p', 'stripe(gloo,mpi)' or "
    "'mpi|bf16', or 'auto'; None: the group's choice. May also lead the positional arguments",
    "size_hint": "size in bytes, equal on all ranks, by which 'auto' chooses where the counts differ between ranks",
    "codec": "codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the group needs "
    "the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning table. None: the pass's own "
    "(docs/compression.md)",
    "priority": "32-bit integer, equal on all ranks. A pass that holds several calls issues those with the lowest "
    "priority value first",
    "key": "name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536 distinct keys "
    "until it ends; calls with further keys have none in the log",
    "device_ids": "accepted for compatibility with torch, and ignored",
}

_SENT = f"dense tensor of any shape that is sent; {_STRIDES}"
_RECEIVED = f"dense tensor of any shape that receives the message; {_STRIDES}"
_AT_ONCE = "True: return a Work at once"  # the peer may give another value


def _of_the_root(*kinds: str) -> dict[str, str]:
    return {kind: f"{_PARAMETERS[kind]}; only the root needs it" for kind in kinds}


# Instead of those above, by operation of the op table.
_OF_PEERS = {
    "send": {"tensor": _SENT, "async_op": _AT_ONCE},
    "recv": {"tensor": _RECEIVED, "async_op": _AT_ONCE},
}
_OF_ROOTS = {  # which is rank 0 if it is not given
    "gather": _of_the_root("outputs", "output", "rcounts"),
    "scatter": _of_the_root("inputs", "input", "scounts"),
}
_OWN_PARAMETERS = _OF_PEERS | _OF_ROOTS
# The functions that torch does not have.
_MPI = {
    "bcast": "MPI_Bcast",
    "gatherv": "MPI_Gatherv",
    "scatterv": "MPI_Scatterv",
    "all_gatherv": "MPI_Allgatherv",
    "all_to_allv": "MPI_Alltoallv",
    "reduce_scatterv": "MPI_Reduce_scatter",
}

_RAISES = (
    ("InvalidArgumentError, InvalidTypeError", "an argument is wrong; nothing has been sent"),
    ("NotInitializedError", "before init, after finalize, or for a backend that the group does not have"),
    ("UnsupportedError", "the backend cannot do this and no fallback is allowed"),
    ("BackendError", "the communication library failed"),
    ("PeerLostError", "a rank of the group has been lost"),
    ("CollectiveTimeoutError", "the operation took longer than its timeout: the call's, else the group's"),
    ("DesyncError", "the ranks have made different calls (only with MCR_DL_DEBUG=detail)"),
)

DEFAULTS: dict[str, Any] = {"None": None, "False": False, "0": 0, "SUM": torch_dist.ReduceOp.SUM}
"""The default values of parameters, by their texts in ``_C.signatures()``, which are empty where there is none."""


def signature_of(row: dict[str, Any]) -> inspect.Signature:
    """The Python signature of one row of ``_C.signatures()``."""
    kinds = inspect.Parameter
    return inspect.Signature(
        [
            kinds(
                name,
                kinds.KEYWORD_ONLY if only else kinds.POSITIONAL_OR_KEYWORD,
                default=DEFAULTS[default] if default else kinds.empty,
            )
            for name, _, default, only in row["params"]
        ]
    )


def _source(row: dict[str, Any]) -> str:
    known = f"torch.distributed.{row['name']}" if hasattr(torch_dist, row["name"]) else f"MPI's {row['op']}"
    return f"{_MPI.get(row['name'], known)}; MCR-DL paper (IPDPS 2023), Listing 1"


def _root_of(row: dict[str, Any]) -> str:
    return next((name for name, kind, _, _ in row["params"] if kind == "src"), "")


@cache
def _torchs_roots() -> dict[str, str]:
    """By operation of the op table that has a root: what torch's function calls it."""
    peers = {op["name"] for op in _C.ops() if op["peer"]}
    rows = [row for row in _C.signatures() if row["name"] == row["op"] not in peers]
    return {row["name"]: _root_of(row) for row in rows if _root_of(row)}


def root_names(row: dict[str, Any]) -> list[str]:
    """The keywords for the root of an operation that has one: its own, then torch's and the paper's, ``root``."""
    torchs = _torchs_roots().get(row["op"])
    return [] if torchs is None else list(dict.fromkeys([_root_of(row), torchs, "root"]))


@cache
def _compressible() -> set[str]:
    return {each["name"] for each in _C.ops() if each["compressible"]}


def _parameter_text(row: dict[str, Any], name: str, kind: str) -> str:
    if kind == "codec" and row["op"] not in _compressible():
        return f"{name}: None or 'none', as this operation has no compressed form."
    if kind != "src":
        return f"{name}: {_OWN_PARAMETERS.get(row['op'], {}).get(kind, _PARAMETERS[kind])}."
    others = root_names(row)[1:]
    if not others:
        return f"{name}: global rank of the peer{'; None: any rank' if row['op'] == 'recv' else ''}."
    default = "; None: rank 0" if row["op"] in _OF_ROOTS else ""
    return f"{name}: global rank of the root{default}. The keyword may also be {' or '.join(others)}."


def docstring_of(row: dict[str, Any]) -> str:
    """Summary, parameters with shapes and units, result, errors and source of one operation."""
    wrap = textwrap.TextWrapper(width=100, initial_indent="    ", subsequent_indent="        ")
    lines = [row["summary"], "", "Args:"]
    lines += [line for name, kind, _, _ in row["params"] for line in wrap.wrap(_parameter_text(row, name, kind))]
    returns = "A Work." if row["starts"] else "None, or a Work if async_op is set."
    if row["name"] == "recv":
        returns = "The sender's global rank, or a Work if async_op is set."
    lines += ["", f"Returns: {returns}", "", "Raises:"]
    lines += [line for error, when in _RAISES for line in wrap.wrap(f"{error}: {when}.")]
    lines += ["", f"Source: {_source(row)}."]
    return "\n".join(lines)


def attach() -> None:
    """Give every operation of ``_C`` its ``__signature__``, ``__doc__`` and ``__module__``."""
    for row in _C.signatures():
        operation = getattr(_C, row["name"])
        operation.__signature__ = signature_of(row)
        operation.__doc__ = docstring_of(row)
        operation.__module__ = "mcr_dl"
