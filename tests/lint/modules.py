# SPDX-License-Identifier: Apache-2.0
"""Checks the imports of the Python package: ``PYTHONPATH=tests python -m lint.modules [--draw]``.

A package imports itself and the packages before it in ``LAYERS``; no modules import each other in a circle, not for
type checkers either. A string that is the name of a module counts as its import. A function imports an own module only
if that module needs an optional package of third parties, and these imports must point downwards too. Names that begin
with an underscore stay in their package. Names of backends stay in their descriptors (``libraries``), and in example
programs.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from lint.layers import draw

SOURCES = Path(__file__).resolve().parents[2] / "mcr"
ROOT = "mcr_dl"

# Lowest first. A module that is in no package stands for itself; "mcr_dl" is the package's own __init__.py, the API.
LAYERS = (
    "_C",  # the compiled core
    "_build",
    "_installed",
    "base",  # errors, documents, the op table's operations, the launcher's environment, stores, agreement over them
    "codecs",
    "tables",  # tuning tables, and what `auto` knows of them
    "libraries",  # one descriptor per library, and the list of backends
    "commands",  # what all commands share: arguments, the console, formats
    "networks",  # networks of several dimensions, and plans of collectives on them
    "watch",  # late ranks, desyncs, dumps
    "runtime",  # the job's state, handles, communicators and core groups, changes that all ranks make
    "records",  # the log's records and their statistics
    "passes",
    "planner",  # motifs, and plans of a step's calls
    "trace",
    "measure",  # cases with checked results, times of candidates, the first measurement of a machine
    "groups",  # start and end of the job, its groups in mcr_dl and in torch, collectives on objects
    "bench",
    "tuning",
    "deepspeed",
    "schedule",  # schedulers of a training step
    "mcr_dl",
    "fully_sharded",
    "info",
    "testing",  # the conformance kit: cases of the operations, expected results, ranks
    "examples",
    "__main__",  # of every package: python -m
)
COMPILED = ("_C", "_build")
# Packages that the library works without.
OPTIONAL = {"cupy", "deepspeed", "jsonschema", "matplotlib", "mpi4py", "optuna", "platformdirs", "rich", "zfpy"}
# Names of backends: the folders of src/backends, and those of torch that have a descriptor.
BACKENDS = {path.name for path in (SOURCES.parent / "src" / "backends").iterdir()} | {"fake", "gloo"}
NAMING = {"libraries", "examples"}
_IMPORTING = ("import_module", "__import__")  # functions that import the modules that their arguments name


@dataclass(frozen=True)
class Import:
    """One imported module. ``name``: what is taken from it; empty for the module itself."""

    line: int
    module: str
    name: str
    late: bool  # inside a function


def layer_of(module: str) -> str:
    """The entry of ``LAYERS`` that a module belongs to."""
    parts = module.split(".")
    return parts[-1] if parts[-1] == "__main__" else [*parts, ROOT][1]


def _package(module: str, known: Iterable[str]) -> str:
    """The package of a module: itself if it is one."""
    return module if any(each.startswith(f"{module}.") for each in known) else module.rpartition(".")[0]


def _nodes(tree: ast.AST, late: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    for node in ast.iter_child_nodes(tree):
        yield node, late
        yield from _nodes(node, late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def imports(tree: ast.Module, known: Iterable[str]) -> list[Import]:
    """All imports of a module; ``known`` are the package's modules."""
    found = []
    for node, late in _nodes(tree):
        if isinstance(node, ast.Import):
            found += [Import(node.lineno, each.name, "", late) for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                whole = f"{node.module}.{each.name}"
                found.append(
                    Import(node.lineno, whole, "", late)
                    if whole in known
                    else Import(node.lineno, node.module or "", each.name, late)
                )
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in _IMPORTING:
            found += [
                Import(node.lineno, each.value, "", late)
                for each in node.args
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
    return found


def _aliases(tree: ast.Module, known: Iterable[str]) -> dict[str, str]:
    """The names by which a module knows own modules."""
    return {
        each.asname or each.name: f"{node.module}.{each.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for each in node.names
        if f"{node.module}.{each.name}" in known
    }


class Package:
    """The sources of a package, by module."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.known = {*sources, *(f"{ROOT}.{each}" for each in COMPILED)}
        self.trees = {module: ast.parse(text) for module, text in sources.items()}
        self.imports = {module: imports(tree, self.known) for module, tree in self.trees.items()}

    def targets(self, module: str, late: bool | None = None) -> set[str]:
        """The own modules that a module imports; an import from another package runs that package's __init__.py too."""
        found = set()
        for each in self.imports[module]:
            if each.module in self.known and late in (None, each.late):
                found.add(each.module)
                if layer_of(each.module) != layer_of(module) and each.module.count(".") > 1:
                    found.add(each.module.rpartition(".")[0])
        return found - {module}

    def needs_optional(self, module: str, seen: frozenset[str] = frozenset()) -> bool:
        """Whether an import of the module imports one of ``OPTIONAL``."""
        if module in seen or module not in self.imports:
            return False
        if any(not each.late and each.module.partition(".")[0] in OPTIONAL for each in self.imports[module]):
            return True
        return any(self.needs_optional(each, seen | {module}) for each in self.targets(module, late=False))

    def upward(self) -> Iterator[str]:
        """Imports of higher layers, and their modules in strings, by which a function may import them."""
        for module in self.imports:
            for target in sorted(self.targets(module) | self._strings(module)):
                if LAYERS.index(layer_of(target)) > LAYERS.index(layer_of(module)):
                    yield f"{module}: imports {target}, which is not below it"

    def _strings(self, module: str) -> set[str]:
        """The own modules that strings of a module name, as in ``run("mcr_dl.bench.cli")``."""
        found = {node.value for node in ast.walk(self.trees[module]) if isinstance(node, ast.Constant)}
        return {each for each in found if isinstance(each, str) and "." in each} & self.known

    def late(self) -> Iterator[str]:
        """Imports of own modules inside functions that have no reason."""
        for module, found in self.imports.items():
            for each in found:
                if each.late and each.module in self.known and not self.needs_optional(each.module):
                    yield f"{module}:{each.line}: imports {each.module} in a function: import it at the top"

    def private(self) -> Iterator[str]:
        """Names with an underscore that another package uses."""
        for module, found in self.imports.items():
            for each in found:
                parts = f"{each.module}.{each.name}".rstrip(".").split(".")
                for index, part in enumerate(parts):
                    owner = ".".join(parts[:index])
                    if part.startswith("_") and not part.endswith("__") and self._outside(module, owner):
                        yield f"{module}:{each.line}: imports {'.'.join(parts)}, which is private to {owner}"
            names = _aliases(self.trees[module], self.known)
            for node in ast.walk(self.trees[module]):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
                    owner = names[node.value.id]
                    if node.attr.startswith("_") and not node.attr.endswith("__") and self._outside(module, owner):
                        yield f"{module}:{node.lineno}: uses {owner}.{node.attr}, which is private"

    def backends(self) -> Iterator[str]:
        """Backends that are named outside their descriptors."""
        for module, tree in self.trees.items():
            for node in ast.walk(tree) if layer_of(module) not in NAMING else ():
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in BACKENDS:
                    yield f"{module}:{node.lineno}: names {node.value!r}: ask the descriptors in {ROOT}.libraries"

    def _outside(self, module: str, owner: str) -> bool:
        """Whether a module lies outside the package of an own module."""
        if owner not in self.known:
            return False
        package = _package(owner, self.known)
        return module != package and not module.startswith(f"{package}.")

    def problems(self) -> list[str]:
        """One line for each problem."""
        unknown = sorted({layer_of(module) for module in self.known} - set(LAYERS))
        if unknown:
            return [f"{ROOT}.{each}: expected a package of LAYERS in tests/lint/modules.py" for each in unknown]
        found = [*self.upward(), *self.late(), *self.private(), *self.backends()]
        try:
            TopologicalSorter({module: self.targets(module) for module in self.imports}).prepare()
        except CycleError as error:
            found.append("these modules import each other: " + " -> ".join(error.args[1]))
        return found

    def layers(self) -> dict[str, list[str]]:
        """The imports of all modules as ``lint.layers.draw`` takes them."""
        return {
            f"{layer_of(module)}/{module}": [f"{layer_of(each)}/{each}" for each in sorted(self.targets(module))]
            for module in self.imports
        }


def read() -> Package:
    """The package in this repository."""
    sources = {}
    for path in sorted((SOURCES / ROOT).rglob("*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        sources[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return Package(sources)


def main() -> int:
    """Run the command."""
    package = read()
    if "--draw" in sys.argv[1:]:
        print(draw(package.layers(), LAYERS))
    found = package.problems()
    print("\n".join(found), end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
