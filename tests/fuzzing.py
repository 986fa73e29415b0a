# SPDX-License-Identifier: Apache-2.0
"""Common parts of the fuzz tests: the number of examples, and texts and documents that are nearly valid.

``make test`` runs the same examples every time. ``HYPOTHESIS_PROFILE=long`` runs new ones, FACTOR times as many.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
FACTOR = int(os.environ.get("MCR_TEST_FUZZ_FACTOR", "50")) if LONG else 1

JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 4.0, 0.5, -0.0, 1e300, -1e300, 1e-320, 2**31, 2**53, 2**62, 2**63, 2**64, -(2**63),
    10**30, "", "x", "0", "all_reduce", "gloo", "inf", "\x00", "é", "\ud800", "a" * 300, [], [[]], {}, {"": None},
    [None], [1, [2]],
)  # fmt: skip


def encoded(document: Any) -> bytes:
    """A document as a file has it."""
    return json.dumps(document).encode()


def fuzz(examples: int) -> Callable[[Any], Any]:
    """Settings for a test with this many examples; a long run has many times as many, different each time."""
    phases = (Phase.explicit, Phase.generate, Phase.shrink)
    return settings(
        max_examples=examples * FACTOR,
        derandomize=not LONG,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        print_blob=LONG,
    )


@st.composite
def near(draw: st.DrawFn, valid: Sequence[str], pieces: Sequence[str]) -> str:
    """A valid text after some edits, or pieces in any order, or any text."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.text(max_size=40))
    if kind <= 2:
        return "".join(draw(st.lists(st.sampled_from(pieces), max_size=9)))
    text = draw(st.sampled_from(valid))
    for _ in range(draw(st.integers(0, 3))):
        begin = draw(st.integers(0, len(text)))
        end = min(len(text), begin + draw(st.integers(0, 4)))
        other = draw(st.one_of(st.just(""), st.sampled_from(pieces), st.characters()))
        text = text[:begin] + other + text[end:]
    return text


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in pairs:
        found += _places(each, (*path, key))
    return found


@st.composite
def edited(draw: st.DrawFn, document: Any, junk: Sequence[Any] = JUNK, most: int = 3) -> Any:
    """A copy of a JSON document in which some values are changed, removed, duplicated or new."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, most))):
        path = draw(st.sampled_from(_places(document)))
        value = copy.deepcopy(draw(st.sampled_from(junk)))
        if not path:
            if draw(st.integers(0, 5)) == 0:
                return value
            continue
        parent = document
        for step in path[:-1]:
            parent = parent[step]
        edit = draw(st.integers(0, 9))
        if edit <= 4:
            parent[path[-1]] = value
        elif edit == 5:
            del parent[path[-1]]
        elif isinstance(parent, list):
            parent.insert(path[-1], copy.deepcopy(parent[path[-1]]) if edit <= 7 else value)
        else:
            parent[draw(st.sampled_from(["", "x", "ranks", "format", str(path[-1])]))] = value
    return document


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes of a file after some are lost, changed or duplicated."""
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(data)))
        end = min(len(data), begin + draw(st.integers(0, 30)))
        other = draw(
            st.sampled_from(
                [
                    b"",
                    b"\xff",
                    b"\x00",
                    b"[",
                    b"{",
                    b"]",
                    b'"',
                    b"9" * 5000,
                    b"1e999",
                    b"NaN",
                    b"-",
                    data[begin:end] * 2,
                ]
            )
        )
        data = data[:begin] + other + data[end:]
    return data
