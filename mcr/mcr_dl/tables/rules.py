# SPDX-License-Identifier: Apache-2.0
"""User overrides of the choices, ``MCR_DL_TUNE``: ``all_reduce:0-64k:mpi#all_to_all:*:gloo``.

Rules are joined by ``#``, with blanks around them or not; each is an operation, a range of message sizes and a
candidate. An operation is a public name or ``*``; one that has a vectored form means both forms, and a receive follows
its send's rule. A range is ``*`` or ``from-to``, in bytes with k, m or g (1024), excluding ``to``, which may be
``inf``. If several rules match a call, the last one applies. (The grammar is UCC's, without the parts that have no
meaning here.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.base.suggestions import did_you_mean

VARIABLE = "MCR_DL_TUNE"
NO_END = -1
_LARGEST = 2**63 - 1
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True)
class Rule:
    """One operation (as in ``_C.operations()``), bytes from and to (exclusive; NO_END: all), candidate, its text."""

    operation: str
    start: int
    end: int
    candidate: str
    text: str
    place: int  # index of the candidate in the whole text, from 0


def _pointed(whole: str, place: int, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{VARIABLE}: character {place + 1}: {what}\n  {whole}\n  {' ' * place}^")


def wrong(whole: str, place: int, expected: str, got: str, known: Iterable[str] = ()) -> InvalidArgumentError:
    """An error that points at a character of the rules, and names the nearest of the ``known`` names."""
    near = did_you_mean(got, {name: name for name in known})
    return _pointed(whole, place, f"expected {expected}, got {got!r}{near}")


def operation_of(word: str) -> str | None:
    """The name in ``_C.operations()`` of a public function; None if there is none of that name."""
    if word in _C.operations():
        return word
    op = next((str(row["op"]) for row in _C.signatures() if row["name"] == word), None)
    return "send" if op == "recv" else op


def _operations(whole: str, place: int, word: str) -> list[str]:
    known: list[str] = _C.operations()
    if word == "*":
        return known
    name = operation_of(word)
    if name is None:
        raise wrong(whole, place, f"an operation ({', '.join(known)}) or *", word, known)
    return [each for each in known if each in (name, f"{name}v")]


def _size(whole: str, place: int, word: str, *, end: bool) -> int:
    if end and word.lower() == "inf":
        return NO_END
    match = re.fullmatch(r"([0-9]{1,19})([kmg]?)", word.lower())
    size = _LARGEST + 1 if match is None else int(match[1]) * _UNITS[match[2]]
    if size > _LARGEST:
        raise wrong(whole, place, "bytes, as 0, 64k, 1m" + (" or inf" if end else ""), word)
    return size


def _range(whole: str, place: int, word: str) -> tuple[int, int]:
    if word == "*":
        return 0, NO_END
    first, dash, last = word.partition("-")
    if not dash:
        raise wrong(whole, place, "a range of sizes, as * or 0-64k", word)
    start = _size(whole, place, first, end=False)
    end = _size(whole, place + len(first) + 1, last, end=True)
    if end != NO_END and end <= start:
        raise wrong(whole, place + len(first) + 1, f"more than {first}", last)
    return start, end


def _candidate(whole: str, place: int, word: str, backends: list[str] | None) -> str:
    try:
        found = _C.CandidateName(word)
    except InvalidArgumentError as error:
        raise _pointed(whole, place, str(error)) from None
    if backends is not None and found.backend not in backends:
        raise wrong(whole, place, f"one of the backends in use ({', '.join(backends)})", word, backends)
    if found.codec:
        raise wrong(whole, place, "a candidate without a codec", word)
    return found.name


def parse(whole: str, backends: list[str] | None) -> list[Rule]:
    """Parse the rules. Raises InvalidArgumentError that points at the error.

    ``backends``: those in use; None: any may be.
    """
    rules: list[Rule] = []
    place = 0
    for part in whole.split("#") if whole.strip() else []:
        text, begin = part.strip(), place + len(part) - len(part.lstrip())
        words = text.split(":", 2)
        if len(words) < 3 or not all(words):
            raise wrong(whole, begin, "operation:range:candidate", text)
        starts = [begin, begin + len(words[0]) + 1, begin + len(words[0]) + len(words[1]) + 2]
        operations = _operations(whole, starts[0], words[0])
        start, end = _range(whole, starts[1], words[1])
        candidate = _candidate(whole, starts[2], words[2], backends)
        rules += [Rule(operation, start, end, candidate, text, starts[2]) for operation in operations]
        place += len(part) + 1
    return rules
