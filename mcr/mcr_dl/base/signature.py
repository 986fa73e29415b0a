# SPDX-License-Identifier: Apache-2.0
"""Signatures and docstrings of the operations, generated from the op table instead of kept in a list by hand."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

from torch.distributed import ReduceOp

from mcr_dl import _C

_PARAMETERS = {
    "tensor": "dense tensor of any shape, read and written in place; its memory counts, so ranks use the same strides",
    "input": "dense tensor that is sent",
    "output": "dense tensor that receives the result; same dtype and device as the input",
    "inputs": "list of one dense tensor per rank, or one tensor that holds the blocks in rank order",
    "outputs": "list of one dense tensor per rank, or one tensor that holds the blocks in rank order",
    "op": "torch.distributed.ReduceOp: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, or PREMUL_SUM with its factor. "
    "AVG of integers rounds towards zero. MIN and MAX yield NaN where one rank has a NaN, except on nccl",
    "group": "group to work in; None: the default group",
    "async_op": "True: return a Work at once; the same on all ranks",
    "src": "global rank of the root (of the peer, for send and recv)",
    "group_src": "the same as a rank of the group; give one of the two",
    "tag": "number, 0 or more, that matches a send with its receive",
    "input_split_sizes": "rows of the input's first dimension for each rank; None: equal parts",
    "output_split_sizes": "rows of the output's first dimension from each rank; None: equal parts",
    "scounts": "elements of the block for each rank",
    "rcounts": "elements of the block from each rank",
    "sdispls": "where each rank's block starts in the input, in elements; None: packed",
    "rdispls": "where each rank's block starts in the output, in elements; None: packed",
    "timeout": "datetime.timedelta, or seconds, after which the call fails; None: the group's",
    "backend": "name of one of the group's backends, or 'auto'; None: the group's choice. May also lead the "
    "positional arguments",
    "size_hint": "bytes, equal on all ranks, that 'auto' may choose by where counts differ between ranks",
    "codec": "how the data travels compressed, such as 'bf16' or 'int8:block=64'; 'none' for as it is; 'auto' as the "
    "tuning table says; None: as the group's pass says (docs/compression.md)",
    "priority": "integer of 32 bits, equal on all ranks: of calls that a pass holds, those with the least one go first",
    "key": "string that names the data, such as a parameter, in the log and its traces; of few, as all are kept",
    "device_ids": "accepted as in torch; a host barrier has no use for it",
}

_RAISES = (
    ("InvalidArgumentError, InvalidTypeError", "an argument is wrong; nothing has been sent"),
    ("NotInitializedError", "before init, after finalize, or for a backend that the group does not have"),
    ("UnsupportedError", "the backend cannot do this and no fallback is allowed"),
    ("BackendError", "the communication library failed"),
    ("CollectiveTimeoutError", "the operation took longer than the group's timeout"),
)


def _default(text: str) -> Any:
    if not text:
        return inspect.Parameter.empty
    return {"SUM": ReduceOp.SUM, "None": None, "False": False, "0": 0}[text]


def signature_of(row: dict[str, Any]) -> inspect.Signature:
    """The Python signature of one row of ``_C.signatures()``."""
    kinds = inspect.Parameter
    return inspect.Signature(
        [
            kinds(name, kinds.KEYWORD_ONLY if only else kinds.POSITIONAL_OR_KEYWORD, default=_default(default))
            for name, _, default, only in row["params"]
        ]
    )


def _source(row: dict[str, Any]) -> str:
    import torch.distributed as torch_dist

    if hasattr(torch_dist, row["name"]):
        return f"torch.distributed.{row['name']}; MCR-DL paper (IPDPS 2023), Listing 1"
    return f"MPI's {row['op']} in this form; MCR-DL paper (IPDPS 2023), Listing 1"


def docstring_of(row: dict[str, Any]) -> str:
    """Summary, parameters with shapes and units, result, errors and source of one operation."""
    wrap = textwrap.TextWrapper(width=100, initial_indent="    ", subsequent_indent="        ")
    lines = [row["summary"], "", "Args:"]
    lines += [line for name, kind, _, _ in row["params"] for line in wrap.wrap(f"{name}: {_PARAMETERS[kind]}.")]
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
