# SPDX-License-Identifier: Apache-2.0
"""What the ranks agree on through the store before the first collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as torch_dist

from mcr_dl import _documents
from mcr_dl._errors import InvalidArgumentError

_LARGEST = 64 * _documents.MIB  # bytes of one rank's value: its log's records, when stragglers are looked for


def _value(text: bytes, key: str, rank: int) -> Any:
    return _documents.parse(text, f"the value of rank {rank} for {key!r}", limit=_LARGEST)


def settle(
    store: torch_dist.Store, rank: int, size: int, key: str, value: Any, decide: Callable[[list[Any]], Any]
) -> Any:
    """Give every rank what ``decide`` makes of all ranks' values (JSON's types, in rank order) on rank 0.

    Raises InvalidArgumentError with the text of the one that ``decide`` raises, on every rank.
    """
    store.set(f"{key}/{rank}", _documents.dumps(value))
    if rank == 0:
        texts = [store.get(f"{key}/{other}") for other in range(size)]
        try:
            answer = {"value": decide([_value(text, key, other) for other, text in enumerate(texts)])}
        except InvalidArgumentError as error:
            answer = {"error": str(error)}
        except Exception as error:  # the others wait for an answer, whatever happens here
            answer = {"error": f"rank 0: {type(error).__name__}: {error}"}
        store.set(f"{key}/answer", _documents.dumps(answer))
    answer = _value(store.get(f"{key}/answer"), f"{key}/answer", 0)
    if "error" in answer:
        raise InvalidArgumentError(answer["error"])
    return answer["value"]


def require_equal(name: str, values: list[Any]) -> None:
    """Raise InvalidArgumentError naming the first rank whose value is not rank 0's."""
    for rank, value in enumerate(values):
        if value != values[0]:
            message = f"{name}: expected the same on all ranks, got {values[0]} on rank 0 and {value} on rank {rank}"
            raise InvalidArgumentError(message)
