# SPDX-License-Identifier: Apache-2.0
"""Refuses measurements whose tensors do not fit into the memory of this host, before anything starts."""

from __future__ import annotations

from collections.abc import Iterable

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.commands.sizes import short_size_text
from mcr_dl.measure.cases import tensor_bytes


def needed(operation: str, sizes: Iterable[int], dtype: str, ranks: int, here: int, *, in_place: bool = False) -> int:
    """Bytes of the tensors of messages of all these sizes on a host with ``here`` of the ranks."""
    whole = 0
    for nbytes in sizes:
        # Ranks differ if they are the root, or one of the two ranks of a message; all others are equal.
        first = range(min(here, ranks, 3))
        parts = [tensor_bytes(operation, nbytes, dtype, rank, ranks, in_place=in_place) for rank in first]
        whole += sum(parts) + (here - len(parts)) * parts[-1]
    return whole


def available() -> int:
    """Bytes that this process can still take without swap, whose speed would be measured instead.

    The largest 64-bit number if the system does not say.
    """
    return _C._free_memory(swaps=False)


def require(argument: str, wanted: int, what: str) -> None:
    """Raise InvalidArgumentError, which names the argument of the command, if so many bytes do not fit."""
    left = available()
    if wanted > left:
        message = (
            f"argument {argument}: expected tensors that fit into the {short_size_text(left)} of memory that this "
            f"host has left, got {short_size_text(wanted)} for {what}"
        )
        raise InvalidArgumentError(message)
