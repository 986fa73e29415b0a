# SPDX-License-Identifier: Apache-2.0
"""Checks that the values of a JSON document have the types that a class of this package declares for its fields."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Union, get_args, get_origin, get_type_hints

_WORD = 1 << 63  # numbers are int64 wherever they come from


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _json_type(hint: Any) -> type:
    kind: type = get_origin(hint) or hint
    return list if kind is tuple else kind


def are(values: Sequence[Any], hint: Any) -> bool:
    """Whether all values have the type: int, str, bool, None, dict, tuple[X, ...] (a list in JSON), or a union."""
    options = _options(hint)
    if not set(map(type, values)) <= {_json_type(option) for option in options}:
        return False
    if int in options and any(not -_WORD <= value < _WORD for value in values if type(value) is int):
        return False
    nested = next((option for option in options if get_origin(option) is tuple), None)
    if nested is None:
        return True
    return are(list(chain.from_iterable(value for value in values if isinstance(value, list))), get_args(nested)[0])


def check_columns(cls: type, columns: Mapping[str, Sequence[Any]], where: str, skip: Iterable[str] = ()) -> None:
    """Compare columns of values with a class's fields: none missing, none extra, all of the declared types.

    Raises ValueError, whose text names the field.
    """
    hints = get_type_hints(cls)
    if set(columns) != set(hints):
        got = ", ".join(sorted(columns))
        raise ValueError(f"{where}: expected the fields {', '.join(sorted(hints))}, got {got[:200]}")
    for name, hint in hints.items():
        if name not in skip and not are(columns[name], hint):
            raise ValueError(f"{where}.{name}: expected values of the type {type_text(hint)}, got others")


def type_text(hint: Any) -> str:
    """The name of a type in errors."""
    return getattr(hint, "__name__", "") if isinstance(hint, type) and not get_args(hint) else str(hint)


def check(cls: type, value: Any, where: str) -> dict[str, Any]:
    """As ``check_columns``, for one object; returns it. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, got a {type(value).__name__}")
    check_columns(cls, {name: [each] for name, each in value.items()}, where)
    return value
