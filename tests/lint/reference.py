# SPDX-License-Identifier: Apache-2.0
"""Checks docs/api/: every public name stands there exactly once and has a docstring; reads sources, imports nothing.

A name stands there as a directive, ``::: mcr_dl.all_reduce``, or first in a row of a table, where it is another name, a
module, or torch's. Public methods and properties of the classes need a docstring too.

python tests/lint/reference.py
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    "mcr_dl",
    "mcr_dl.passes",
    "mcr_dl.schedule",
    "mcr_dl.schedule.themis",
    "mcr_dl.trace",
    "mcr_dl.deepspeed",
    "mcr_dl.fully_sharded",
    "mcr_dl.testing",
    "mcr_dl.testing.cases",
    "mcr_dl.testing.checks",
    "mcr_dl.testing.jobs",
    "mcr_dl.testing.kit",
    "mcr_dl.testing.nursery",
    "mcr_dl.testing.plan_graphs",
    "mcr_dl.testing.reference",
    "mcr_dl.testing.session",
)
DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Place(NamedTuple):
    """Where a name is defined: a module of this package or of another one, and the name there."""

    module: str
    name: str


@cache
def parsed(root: Path, module: str) -> ast.Module | None:
    """The source of a module, or its stub; None of other packages' modules."""
    base = root / "mcr" / module.replace(".", "/")
    for path in (base.with_suffix(".py"), base / "__init__.py", base.with_suffix(".pyi")):
        if path.is_file():
            return ast.parse(path.read_text(encoding="utf-8"))
    return None


def strings(node: ast.expr) -> list[str]:
    """The strings in a list."""
    return [each.value for each in getattr(node, "elts", []) if isinstance(each, ast.Constant)]


def public(root: Path, module: str) -> list[str]:
    """The names of a module's ``__all__``, with those that ``__all__ += _C.__all__`` adds."""
    tree, names = parsed(root, module), []
    for node in tree.body if tree else []:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "__all__":
            value = node.value  # type: ignore[union-attr]
            names += public(root, f"{module}._C") if isinstance(value, ast.Attribute) else strings(value)
    return names


def place(root: Path, module: str, name: str) -> Place:
    """Follow a name through imports to its definition."""
    tree = parsed(root, module)
    for node in tree.body if tree else []:
        for alias in node.names if isinstance(node, ast.ImportFrom) and node.module else []:
            if alias.name == "*" and name in public(root, node.module):
                return place(root, node.module, name)
            if name == (alias.asname or alias.name):
                inside = f"{node.module}.{alias.name}"
                return Place(inside, "") if parsed(root, inside) else place(root, node.module, alias.name)
    return Place(module, name)


def defined(root: Path, where: Place) -> list[Definition]:
    """The definitions of a name: several where it has overloads, none for a variable."""
    tree = parsed(root, where.module)
    return [node for node in tree.body if isinstance(node, Definition) and node.name == where.name] if tree else []


def undocumented(root: Path, where: Place) -> list[str]:
    """The name, and its public methods, as far as they have no docstring."""
    found = defined(root, where)
    if not found:
        return []
    missing = [] if any(map(ast.get_docstring, found)) else [where.name]
    for node in found[0].body if isinstance(found[0], ast.ClassDef) else []:
        if isinstance(node, Definition) and not node.name.startswith("_") and not ast.get_docstring(node):
            missing.append(f"{where.name}.{node.name}")
    return [f"{where.module}.{each}: has no docstring" for each in missing]


def problems(root: Path = ROOT) -> list[str]:
    """One line for each public name that is missing, repeated or without a docstring, and for each row of another."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted((root / "docs" / "api").glob("*.md")))
    directives, rows = Counter(DIRECTIVE.findall(text)), Counter(ROW.findall(text))
    top, found = public(root, "mcr_dl"), []
    for module in MODULES:
        for name in public(root, module):
            if module != "mcr_dl" and name in top:
                continue
            where = place(root, module, name)
            count = directives[f"{module}.{name}"] + (rows[name] if module == "mcr_dl" else 0)
            if count != 1:
                found.append(f"docs/api: expected '::: {module}.{name}' once, found the name {count} times")
            found += undocumented(root, where)
    found += [f"docs/api: the row of `{name}` names nothing of mcr_dl.__all__" for name in rows if name not in top]
    return found


def main() -> None:
    """Print the problems; exit with 1 if there are any."""
    found = problems()
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
