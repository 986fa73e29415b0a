# SPDX-License-Identifier: Apache-2.0
"""Agreement of the ranks through the store, mostly while they start. ``runtime/changes.py`` handles later changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, cast

import torch.distributed as torch_dist

from mcr_dl.base.errors import CollectiveTimeoutError, InvalidArgumentError, McrError
from mcr_dl.base.stores import absent, encode, leave, value_of

_PATIENCE = timedelta(seconds=15)  # for the rank that says who is missing, which may ask the others where they are
_NAMED = 8  # missing ranks, at most

_locate: Callable[[str, list[int]], str] | None = None


def set_locator(locate: Callable[[str, list[int]], str]) -> None:
    """Let errors say where ranks are that have not come: ``locate`` gets the error so far, and the ranks."""
    global _locate
    _locate = locate


def agree(
    store: torch_dist.Store,
    rank: int,
    size: int,
    key: str,
    value: Any,
    decide: Callable[[list[Any]], Any],
    *,
    function: str = "init_process_group",
) -> Any:
    """Run ``decide`` on rank 0 over all ranks' values (JSON's types, in rank order) and give every rank the result.

    If ``decide`` raises, every rank raises InvalidArgumentError with the text of that error. Raises
    CollectiveTimeoutError, which names the missing ranks, after the store's timeout. ``function``: the one that
    the program called.
    """
    leave(store, f"{key}/{rank}", encode(value))
    try:
        return _agreed(store, rank, size, key, decide)
    except RuntimeError as error:
        if not _is_timeout(error):
            raise
        raise CollectiveTimeoutError(_late(store, rank, size, key, function)) from error


def _is_timeout(error: RuntimeError) -> bool:
    """Whether a wait at the store has lasted too long. A FileStore raises a plain RuntimeError for that."""
    return isinstance(error, torch_dist.DistStoreError) or (type(error) is RuntimeError and "imeout" in str(error))


def _late(store: torch_dist.Store, rank: int, size: int, key: str, function: str) -> str:
    """Name the ranks that have not come. The first rank whose time is over looks; the others repeat its text."""
    limit: timedelta = cast(Any, store).timeout  # torch's types lack it
    seconds = limit / timedelta(seconds=1)
    text = f"{function}: timed out: the ranks have not agreed on {key!r} within {seconds:g} s"
    try:
        if store.add(f"{key}/looks", 1) == 1:
            store.set(f"{key}/late", _who_is_late(store, rank, size, key, text))
        elif not _comes(store, f"{key}/late"):
            return f"{text}. The rank that looks for the missing ones has not answered."
        return store.get(f"{key}/late").decode()
    except McrError:  # such as the loss of a rank, which says more
        raise
    except torch_dist.DistError as error:
        return f"{text}, and the store cannot be reached any more: {error}"


def _comes(store: torch_dist.Store, key: str) -> bool:
    try:
        store.wait([key], _PATIENCE)
    except RuntimeError as error:
        if not _is_timeout(error):
            raise
        return False
    return True


def _who_is_late(store: torch_dist.Store, rank: int, size: int, key: str, text: str) -> str:
    keys = [f"{key}/{other}" for other in range(size)]
    missing = list(islice(absent(store, keys), _NAMED + 1)) or ([0] if rank else [])
    if not missing:
        return f"{text}, although all have come"
    names = ", ".join(f"rank {other}" for other in missing[:_NAMED]) + (", ..." if len(missing) > _NAMED else "")
    told = "" if _locate is None else _locate(text, missing[:_NAMED])
    return f"{text}. Not arrived: {told or names}."


def _agreed(store: torch_dist.Store, rank: int, size: int, key: str, decide: Callable[[list[Any]], Any]) -> Any:
    if rank == 0:
        keys = [f"{key}/{other}" for other in range(size)]
        texts = store.multi_get(keys)
        titles = [f"the value of rank {other} for {key!r}" for other in range(size)]
        try:
            answer = {"value": decide([value_of(store, *each) for each in zip(keys, texts, titles, strict=True)])}
        except InvalidArgumentError as error:
            answer = {"error": str(error)}
        except Exception as error:  # the others wait for an answer, whatever happens here
            answer = {"error": f"rank 0: {type(error).__name__}: {error}"}
        leave(store, f"{key}/answer", encode(answer))
    answer = value_of(store, f"{key}/answer", store.get(f"{key}/answer"), f"the answer of rank 0 for {key!r}")
    if "error" in answer:
        raise InvalidArgumentError(answer["error"])
    return answer["value"]


def require_equal(name: str, values: list[Any], ranks: Sequence[int] | None = None) -> None:
    """Raise InvalidArgumentError that names the first rank whose value differs from the first rank's.

    ``ranks``: the global ranks, in the order of the values; by default these are all ranks of the job.
    """
    for rank, value in zip(ranks or range(len(values)), values, strict=True):
        if value != values[0]:
            first = f"{values[0]} on rank {ranks[0] if ranks else 0}"
            message = f"{name}: expected the same on all ranks, got {first} and {value} on rank {rank}"
            raise InvalidArgumentError(message)
