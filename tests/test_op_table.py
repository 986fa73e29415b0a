# SPDX-License-Identifier: Apache-2.0
"""The op table is the only list of operations: other code distinguishes them by their traits."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import mcr_dl
from mcr_dl import _C
from mcr_dl.base import operations
from mcr_dl.measure import cases
from mcr_dl.passes import compress
from mcr_dl.tables import codecs

ROOT = Path(__file__).resolve().parent.parent
NAMES = {row["name"] for row in _C.ops()}
MANY = 3  # operations in one list or condition

# Files with other programs' names for operations.
VOCABULARIES = {"trace/_param.py"}


def _literals(tree: ast.AST) -> list[list[object]]:
    """The constants in each tuple, list, set and dict."""
    found: list[list[object]] = []
    for node in ast.walk(tree):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            parts = [*node.elts]
        elif isinstance(node, ast.Dict):
            parts = node.keys
        found.append([part.value for part in parts if isinstance(part, ast.Constant)])
    return found


def _second_lists(folder: Path, suffix: str, listed: Callable[[str], list[set[str]]]) -> dict[str, list[set[str]]]:
    """The lists of several operations in the folder's files that have some."""
    files = {str(path.relative_to(folder)): listed(path.read_text()) for path in folder.rglob(f"*{suffix}")}
    assert files
    return {file: found for file, lists in files.items() if (found := [each for each in lists if len(each) >= MANY])}


def test_no_second_list_in_python() -> None:
    """No literal names several operations, but for those of other programs and of the examples."""

    def listed(text: str) -> list[set[str]]:
        return [NAMES & set(texts) for texts in _literals(ast.parse(text))]

    found = _second_lists(Path(mcr_dl.__file__).parent, ".py", listed)
    assert {file for file in found if not file.startswith("examples/")} == VOCABULARIES, found


def test_no_second_list_in_cpp() -> None:
    """No condition and no shared case of a switch names several operations."""

    def listed(text: str) -> list[set[str]]:
        statements = re.split(r"[;{}]", re.sub(r"//.*", "", text))
        return [set(re.findall(r"(?<!\w)Op::(\w+)", statement)) for statement in statements]

    assert _second_lists(ROOT / "src", ".cc", listed) == {}


def test_the_lists_that_users_see() -> None:
    """They are not empty, and in the table's order."""
    order = [row["name"] for row in _C.ops()]
    for names in (compress.OPERATIONS, codecs.OPERATIONS):
        assert names
        assert list(names) == [name for name in order if name in names]
    assert set(codecs.OPERATIONS) < set(compress.OPERATIONS) < NAMES


def test_every_operation_can_be_measured() -> None:
    """mcr-bench and mcr-tune know the input and output of each rank for each operation."""
    for name in operations.operations():
        operation = operations.operation_of(name)
        parts = [cases.layout(operation.op, 12, rank, 3, 0) for rank in range(3)]
        known = [sum(segment.length for segment in part.expected) for part in parts]
        assert all(length in (0, part.output) for length, part in zip(known, parts, strict=True)), name
        assert any(known) == (operation.bus != "none"), name  # there are outputs if it moves data
