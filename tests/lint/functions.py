# SPDX-License-Identifier: Apache-2.0
"""Refuses functions in Python of more than 60 lines, without their docstrings.

python tests/lint/functions.py
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST = 60
Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines(function: Function) -> int:
    """The number of lines without the docstring."""
    count = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        count -= (first.end_lineno or 0) - first.lineno + 1
    return count


def main() -> None:
    """Print the long functions; exit with 1 if there are any."""
    problems = []
    for path in [file for folder in ("mcr", "bench", "tests") for file in (ROOT / folder).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Function) and lines(node) > MOST:
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                problems.append(f"{where}: {node.name}: expected at most {MOST} lines, got {lines(node)}")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
