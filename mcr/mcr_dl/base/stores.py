# SPDX-License-Identifier: Apache-2.0
"""Values that the ranks leave for each other at a store, of JSON's types and of any length; connections to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import torch.distributed as torch_dist

from mcr_dl.base import documents
from mcr_dl.base.errors import InvalidArgumentError

_LARGEST = 64 * documents.MIB  # bytes of one rank's value; a log's records, for stragglers, are the largest
_PIECE = 4 * documents.MIB  # torch's TCPStore closes the connection of a rank that sends more than 8 MiB at once
_LONG = b"bytes "  # begins the value of a key whose text is in pieces; no JSON begins so
STORE_ERRORS = (RuntimeError, ValueError, OSError)
"""The errors of an action on a store: the store's own errors, those of a value, and those of the connection."""


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
    """Indices of the keys without a value, counted from ``first``; few requests, as most ranks have usually come."""
    if not keys or store.check(list(keys)):
        return
    if len(keys) == 1:
        yield first
        return
    middle = len(keys) // 2
    yield from absent(store, keys[:middle], first)
    yield from absent(store, keys[middle:], first + middle)


def own_connection(store: torch_dist.Store) -> torch_dist.Store:
    """Open another connection to the store, if possible, so that a wait on it does not block the store for others."""
    clone: Callable[[], torch_dist.Store] | None = getattr(store, "clone", None)
    with contextlib.suppress(NotImplementedError, RuntimeError):
        if clone is not None:
            return clone()
    return store
