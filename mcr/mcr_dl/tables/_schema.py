# SPDX-License-Identifier: Apache-2.0
"""Checks a tuning table's JSON document: against ``tuning/schema.json``, and for rules that a schema cannot express."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mcr_dl import _C
from mcr_dl.base import documents, schemas
from mcr_dl.base.errors import InvalidArgumentError


@cache
def schema() -> dict[str, Any]:
    """The schema as a JSON document, from the checkout's ``tuning/``, which is installed next to the compiled modules.

    FileNotFoundError if the installation lacks it.
    """
    path = Path(_C.__file__).parent / "tuning" / "schema.json"
    if not path.exists():
        raise FileNotFoundError(f"mcr_dl is not installed completely: no {path}")
    document: dict[str, Any] = documents.read(path, "tuning/schema.json", limit=documents.MIB)
    return document


def _meaning(path: Sequence[str | int]) -> str:
    """The nearest description on the path through the schema to a rule."""
    node: Any = schema()
    text = ""
    for step in (step for step in path if step != "$ref"):  # some versions of jsonschema omit references
        node = node[step]
        text = node.get("description", text) if isinstance(node, dict) else text
        if isinstance(node, dict) and "$ref" in node:
            node = schema()["$defs"][node["$ref"].rpartition("/")[2]]
            text = node.get("description", text)
    return text


def violation(document: Any) -> str | None:
    """The first violation of the schema, as ``path: expected ..., got ...``; None if there is none.

    Raises InvalidArgumentError if jsonschema is not installed.
    """
    try:
        return schemas.violation(document, schema(), _meaning)
    except ModuleNotFoundError as error:
        raise InvalidArgumentError("tuning tables are checked with jsonschema: pip install jsonschema") from error


def _not_ascending(numbers: list[int], where: str, key: str) -> str | None:
    for index in range(1, len(numbers)):
        if numbers[index] <= numbers[index - 1]:
            return f"{where}[{index}].{key}: expected more than {numbers[index - 1]} (ascending), got {numbers[index]}"
    return None


def _twice(rows: list[dict[str, Any]], keys: tuple[str, ...], where: str) -> str | None:
    seen: dict[tuple[Any, ...], int] = {}
    for index, row in enumerate(rows):
        first = seen.setdefault(tuple(row.get(key) for key in keys), index)
        if first != index:
            names = ", ".join(str(row[key]) for key in keys if key in row)
            return f"{where}[{index}]: expected one entry for {names}, got a second one in addition to {where}[{first}]"
    return None


def _misspelt(rows: list[dict[str, Any]], where: str) -> str | None:
    for index, row in enumerate(rows):
        try:
            _C.CandidateName(row["candidate"])
        except InvalidArgumentError as error:
            return f"{where}[{index}].candidate: {error}"
    return None


def _unknown_type(rows: list[dict[str, Any]], where: str) -> str | None:
    known = _C.dtypes()
    for index, row in enumerate(rows):
        if row["dtype"] not in known:
            return f"{where}[{index}].dtype: expected one of {', '.join(known)}, got {row['dtype']!r}"
    return None


def _scale_faults(scale: dict[str, Any], where: str) -> Iterable[str | None]:
    for kind in ("curves", "excluded", "trials"):
        yield _misspelt(scale.get(kind, []), f"{where}.{kind}")
    yield _unknown_type(scale.get("trials", []), f"{where}.trials")  # the types of curves are only shown
    for index, winner in enumerate(scale["winners"]):
        yield _misspelt(winner["ranges"], f"{where}.winners[{index}].ranges")
    for kind in ("curves", "trials"):
        curves = [{**row, "candidate": _C.canonical(row["candidate"])} for row in scale.get(kind, [])]
        types = ("dtype_class",) if kind == "curves" else ("dtype_class", "dtype")
        yield _twice(curves, ("operation", *types, "candidate", "codec", "async_op"), f"{where}.{kind}")
        for index, curve in enumerate(curves):
            numbers = [sample["bytes"] for sample in curve["samples"]]
            yield _not_ascending(numbers, f"{where}.{kind}[{index}].samples", "bytes")
    yield _twice(scale["winners"], ("operation", "dtype_class", "async_op"), f"{where}.winners")
    for index, winner in enumerate(scale["winners"]):
        starts = [each["from"] for each in winner["ranges"]]
        path = f"{where}.winners[{index}].ranges"
        yield None if starts[0] == 0 else f"{path}[0].from: expected 0, got {starts[0]}"
        yield _not_ascending(starts, path, "from")


def contradiction(document: dict[str, Any]) -> str | None:
    """An error in a document that the schema accepts, in order or repetitions; None if there is none."""
    scales = document["scales"]
    faults = [_twice(scales, ("device", "ranks", "nodes", "ranks_per_node"), "scales")]
    faults += [fault for index, scale in enumerate(scales) for fault in _scale_faults(scale, f"scales[{index}]")]
    return next((fault for fault in faults if fault is not None), None)
