# SPDX-License-Identifier: Apache-2.0
"""Agreement of the ranks through the store while they start. ``_changes`` handles later changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as torch_dist

from mcr_dl.base import documents
from mcr_dl.base.errors import InvalidArgumentError

_LARGEST = 64 * documents.MIB  # bytes of one rank's value; a log's records, for stragglers, are the largest


def encode(value: Any) -> str:
    """Encode a value of JSON's types for the store."""
    return documents.dumps(value)


def decode(text: bytes, what: str) -> Any:
    """Decode a text from the store. Raises InvalidArgumentError, whose text begins with ``what``."""
    return documents.parse(text, what, limit=_LARGEST)


def _value(text: bytes, key: str, rank: int) -> Any:
    return decode(text, f"the value of rank {rank} for {key!r}")


def agree(
    store: torch_dist.Store, rank: int, size: int, key: str, value: Any, decide: Callable[[list[Any]], Any]
) -> Any:
    """Run ``decide`` on rank 0 over all ranks' values (JSON's types, in rank order) and give every rank the result.

    If ``decide`` raises, every rank raises InvalidArgumentError with the text of that error.
    """
    store.set(f"{key}/{rank}", encode(value))
    if rank == 0:
        texts = [store.get(f"{key}/{other}") for other in range(size)]
        try:
            answer = {"value": decide([_value(text, key, other) for other, text in enumerate(texts)])}
        except InvalidArgumentError as error:
            answer = {"error": str(error)}
        except Exception as error:  # the others wait for an answer, whatever happens here
            answer = {"error": f"rank 0: {type(error).__name__}: {error}"}
        store.set(f"{key}/answer", encode(answer))
    answer = _value(store.get(f"{key}/answer"), f"{key}/answer", 0)
    if "error" in answer:
        raise InvalidArgumentError(answer["error"])
    return answer["value"]


def require_equal(name: str, values: list[Any]) -> None:
    """Raise InvalidArgumentError that names the first rank whose value differs from rank 0's."""
    for rank, value in enumerate(values):
        if value != values[0]:
            message = f"{name}: expected the same on all ranks, got {values[0]} on rank 0 and {value} on rank {rank}"
            raise InvalidArgumentError(message)
