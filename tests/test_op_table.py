# SPDX-License-Identifier: Apache-2.0
"""The op table is the only list of operations: other code distinguishes them by their traits."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

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
VOCABULARIES = {"_param.py", "upstream.py", "backend.py"}
# MPICH's switches.
SWITCHES = {"mpi_algorithms.cc"}


def _literals(tree: ast.AST) -> list[tuple[int, list[str]]]:
    """Lines of tuples, lists, sets and dicts, and the constant texts in them."""
    found = []
    for node in ast.walk(tree):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            parts = [*node.elts]
        elif isinstance(node, ast.Dict):
            parts = node.keys
        found.append((getattr(node, "lineno", 0), [part.value for part in parts if isinstance(part, ast.Constant)]))
    return found


@pytest.mark.parametrize("file", sorted(Path(mcr_dl.__file__).parent.rglob("*.py")), ids=lambda file: file.name)
def test_no_second_list_in_python(file: Path) -> None:
    """No literal names several operations."""
    if file.name in VOCABULARIES or "examples" in file.parts:
        return
    lists = [(line, sorted(NAMES & set(texts))) for line, texts in _literals(ast.parse(file.read_text()))]
    assert [entry for entry in lists if len(entry[1]) >= MANY] == []


@pytest.mark.parametrize("file", sorted((ROOT / "src").rglob("*.cc")), ids=lambda file: file.name)
def test_no_second_list_in_cpp(file: Path) -> None:
    """No condition and no shared case of a switch names several operations."""
    if file.name in SWITCHES:
        return
    statements = re.split(r"[;{}]", re.sub(r"//.*", "", file.read_text()))
    named = [sorted(set(re.findall(r"(?<!\w)Op::(\w+)", statement))) for statement in statements]
    assert [ops for ops in named if len(ops) >= MANY] == []


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
