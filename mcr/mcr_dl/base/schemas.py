# SPDX-License-Identifier: Apache-2.0
"""Faults that a JSON schema finds, in the words of MCR-DL's errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema import ValidationError

_TYPES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "object": "an object",
    "string": "a text",
}
_LONGEST = 60  # characters of a value


def path_text(path: Iterable[str | int]) -> str:
    """``scales[0].curves[2].dtype`` for the keys and indices that lead to a value."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "the document"


def _expectation(rule: str, value: Any, instance: Any) -> tuple[str, str]:
    """The expectation of a schema rule, and the value found."""
    found = json.dumps(instance, default=repr)
    found = found if len(found) <= _LONGEST else f"{found[: _LONGEST - 3]}..."
    if rule == "type":
        return " or ".join(_TYPES[name] for name in ([value] if isinstance(value, str) else value)), found
    if rule == "required":
        return f"the key {next(key for key in value if key not in instance)!r}", "none"
    if rule == "minItems":
        return f"at least {value} entry", "an empty list"
    if rule == "maxItems":
        return f"at most {value} entries", f"{len(instance)}"
    texts = {
        "const": f"{value!r}",
        "enum": f"one of {value}",
        "pattern": f"a text like {value}",
        "maxLength": f"a text of at most {value} characters",
        "minimum": f"a number of at least {value}",
        "maximum": f"a number of at most {value}",
        "exclusiveMinimum": f"a number above {value}",
    }
    return texts.get(rule, f"{rule} {value}"), found


def _explain(error: ValidationError, meaning: str) -> str:
    where = path_text(error.absolute_path)
    if error.validator == "additionalProperties":
        part: Any = error.schema
        found: Any = error.instance
        known = list(part["properties"])
        unknown = [key for key in found if key not in known]
        return f"{where}: expected only the keys {', '.join(known)}, got {', '.join(map(repr, unknown))}"
    expected, got = _expectation(str(error.validator), error.validator_value, error.instance)
    return f"{where}: expected {expected}{f' ({meaning})' if meaning else ''}, got {got}"


def violation(
    document: Any, schema: dict[str, Any], meaning: Callable[[Sequence[str | int]], str] = lambda _: ""
) -> str | None:
    """The first violation of a schema, as ``path: expected ..., got ...``; None if there is none.

    ``meaning``: of the expected value, by the path through the schema to the rule. Raises ModuleNotFoundError if
    jsonschema is not installed.
    """
    from jsonschema import Draft202012Validator  # takes 0.1 s, which programs without such files need not pay
    from jsonschema.exceptions import best_match

    fault = best_match(Draft202012Validator(schema).iter_errors(document))
    return None if fault is None else _explain(fault, meaning(fault.absolute_schema_path))
