# SPDX-License-Identifier: Apache-2.0
"""Agreement of the ranks through the store, mostly while they start. ``runtime/changes.py`` handles later changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import count, islice
from typing import Any, cast

import torch.distributed as torch_dist

from mcr_dl.base import documents
from mcr_dl.base.errors import CollectiveTimeoutError, InvalidArgumentError, McrError

_LARGEST = 64 * documents.MIB  # bytes of one rank's value; a log's records, for stragglers, are the largest
_PIECE = 4 * documents.MIB  # torch's TCPStore closes the connection of a rank that sends more than 8 MiB at once
_LONG = b"bytes "  # begins the value of a key whose text is in pieces; no JSON begins so
_PATIENCE = timedelta(seconds=15)  # for the rank that says who is missing, which may ask the others where they are
_NAMED = 8  # missing ranks, at most
STORE_ERRORS = (RuntimeError, ValueError, OSError)
"""The errors of an action on a store: the store's own errors, those of a value, and those of the connection."""

_locate: Callable[[str, list[int]], str] | None = None


def set_locator(locate: Callable[[str, list[int]], str]) -> None:
    """Let errors say where ranks are that have not come: ``locate`` gets the error so far, and the ranks."""
    global _locate
    _locate = locate


def encode(value: Any) -> str:
    """Encode a value of JSON's types for the store."""
    return documents.dumps(value)


def decode(text: bytes, what: str) -> Any:
    """Decode a text from the store. Raises InvalidArgumentError, whose text begins with ``what``."""
    return documents.parse(text, what, limit=_LARGEST)


def leave(store: torch_dist.Store, key: str, text: str) -> None:
    """Set a text, in pieces if it is long; its key comes last and says how long it is. A text that is too long to be
    read is not sent. ``whole`` or ``value_of`` reads it.
    """
    content = text.encode()
    if len(content) <= _PIECE:
        store.set(key, text)
        return
    if len(content) <= _LARGEST:
        for number, piece in enumerate(_pieces(key, len(content))):
            part = content[number * _PIECE : (number + 1) * _PIECE]
            store.set(piece, part)  # type: ignore[arg-type]  # it takes bytes too
    store.set(key, f"{_LONG.decode()}{len(content)}")


def remove(store: torch_dist.Store, key: str) -> None:
    """Delete a text that ``leave`` has set, with its pieces."""
    store.delete_key(key)
    for number in count():
        piece = f"{key}/{number}"
        if not store.check([piece]):  # as FileStore says of every key that it has deleted it
            return
        store.delete_key(piece)


def _pieces(key: str, length: int) -> list[str]:
    return [f"{key}/{number}" for number in range(-(-length // _PIECE))]


def whole(store: torch_dist.Store, key: str, text: bytes, what: str) -> bytes:
    """The text that was left under a key which has this one. Every rank that reads it gets the text or the error, as
    both follow from this one. Raises InvalidArgumentError, whose text begins with ``what``, if it is too long.
    """
    if text.startswith(_LONG):
        length = decode(text[len(_LONG) :], what)
        if type(length) is not int or not _PIECE < length <= _LARGEST:
            raise InvalidArgumentError(f"{what}: expected at most {_LARGEST} bytes, got {length!r:.40}")
        text = b"".join(store.multi_get(_pieces(key, length)))
    return text


def value_of(store: torch_dist.Store, key: str, text: bytes, what: str) -> Any:
    """The value of the text that was left under a key which has this one; errors as of ``whole`` and ``decode``."""
    return decode(whole(store, key, text, what), what)


def absent(store: torch_dist.Store, keys: Sequence[str], first: int = 0) -> Iterator[int]:
    """The places of the keys without a value, counted from ``first``; few requests, as most ranks usually have come."""
    if not keys or store.check(list(keys)):
        return
    if len(keys) == 1:
        yield first
        return
    middle = len(keys) // 2
    yield from absent(store, keys[:middle], first)
    yield from absent(store, keys[middle:], first + middle)


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
