# SPDX-License-Identifier: Apache-2.0
"""Writes the files that are made from tables: ``_C.pyi``, ``docs/support-matrix.md`` and ``docs/environment.md``.

Run as ``python mcr/mcr_dl_build/generate.py DIR`` (``make generate``); ``make lint`` compares them with the committed
ones.
"""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from typing import Any

from generated_pages import environment, support_matrix
from mcr_dl import _C
from mcr_dl.base import variables
from mcr_dl.base.signature import docstring_of, root_names
from mcr_dl.groups import default_group
from mcr_dl.libraries import registry

_BOUND = Path(__file__).with_name("bound.pyi")
_TYPES = {
    "tensor": "ArrayLike",
    "input": "ArrayLike",
    "output": "ArrayLike",
    "inputs": "Sequence[ArrayLike] | ArrayLike",
    "outputs": "Sequence[ArrayLike] | ArrayLike",
    "op": "ReduceOp | ReduceOp.RedOpType",
    "group": "ProcessGroup | Group | None",
    "async_op": "bool",
    "src": "int",
    "group_src": "int",
    "tag": "int",
    "input_split_sizes": "Sequence[int]",
    "output_split_sizes": "Sequence[int]",
    "scounts": "Sequence[int]",
    "rcounts": "Sequence[int]",
    "sdispls": "Sequence[int]",
    "rdispls": "Sequence[int]",
    "timeout": "timedelta | float",
    "backend": "str",
    "size_hint": "int",
    "codec": "str",
    "priority": "int",
    "key": "str",
    "device_ids": "Any",
}
# Parameters that only the root needs, by operation.
_OPTIONAL = {"gatherv": ("output", "rcounts"), "scatterv": ("input", "scounts")}

_TOP = """\
# Generated from the op table and mcr/mcr_dl_build/bound.pyi by `make generate`. Do not edit.
from collections.abc import Sequence
from typing import Literal, overload

from torch.distributed import ReduceOp

"""
# Public classes: their members in the stub have the docstrings of the binding.
_DOCUMENTED = ("Work", "Options", "Pass", "PassedCall")


def _docstring(class_name: str, name: str) -> str:
    """The docstring of a member, without the signature that pybind11 puts first."""
    text = vars(getattr(_C, class_name))[name].__doc__ or ""
    return (text.partition("\n\n")[2] if text.startswith(f"{name}(") else text).strip()


def _bound() -> str:
    """The part of the stub that is written by hand, with the docstrings of the public classes."""
    text = _BOUND.read_text()
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if not isinstance(node, ast.ClassDef) or node.name not in _DOCUMENTED:
            continue
        lines[node.lineno - 1] += f'\n    """{getattr(_C, node.name).__doc__}"""\n'
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                end = (member.end_lineno or 0) - 1
                lines[end] = lines[end].removesuffix(" ...") + f'\n        """{_docstring(node.name, member.name)}"""'
    return "\n".join(line for line in lines if not line.startswith("#")) + "\n"


def _parameter(name: str, kind: str, default: str, optional: bool) -> str:
    annotation = _TYPES[kind]
    if (default == "None" or optional) and "None" not in annotation:
        annotation += " | None"
    value = {"": "", "SUM": " = ..."}.get(default, f" = {default}")
    return f"{name}: {annotation}{value}"


_ASYNC = "async_op: bool = False"


def _forms(params: list[str], keywords: list[str], done: str) -> list[tuple[list[str], list[str], str]]:
    """The parameters and the result for each way to give ``async_op``, from those of all ways; ``done`` has no Work."""

    def given(values: list[str], text: str) -> list[str]:
        return [text if each == _ASYNC else each for each in values]

    blocking, asynchronous = "async_op: Literal[False] = False", "async_op: Literal[True]"
    before = params[: params.index(_ASYNC)] if _ASYNC in params else params
    later = [each for each in [*params[len(before) :], *keywords] if each != _ASYNC]
    forms = [
        (given(params, blocking), given(keywords, blocking), done),
        (before, [asynchronous, *later], "Work"),
    ]
    if _ASYNC in params:  # by its position, with all that come before it
        required = [each.partition(" = ")[0] for each in before]
        forms.append(([*required, asynchronous, *params[len(before) + 1 :]], keywords, "Work"))
    return [*forms, (params, keywords, f"Work | {done}")]


def _operation(row: dict[str, Any]) -> str:
    optional, name = _OPTIONAL.get(row["name"], ()), row["name"]
    done = "int" if name == "recv" else "None"
    forms = []
    roots = root_names(row)
    for root in roots or [""]:  # each name of the root's parameter has overloads of its own

        def spelt(name: str, root: str = root) -> str:
            return root if roots and name == roots[0] else name

        params = [
            _parameter(spelt(each), kind, default, each in optional)
            for each, kind, default, only in row["params"]
            if not only
        ]
        keywords = [_parameter(each, kind, default, False) for each, kind, default, only in row["params"] if only]
        forms += [(params, keywords, "Work")] if row["starts"] else _forms(params, keywords, done)
    # MCR-DL's Listing 1 puts the backend first.
    listing = [("async_op: Literal[True], ", "Work"), ("", f"Work | {done}")]
    summary = inspect.cleandoc(docstring_of(row)).replace("\n", "\n    ").replace("\n    \n", "\n\n")
    lines = []
    for index, (positional, only, result) in enumerate(forms):
        body = f'\n    """{summary}\n    """' if index == 0 else " ..."
        lines.append(f"@overload\ndef {name}({', '.join([*positional, '*', *only])}) -> {result}:{body}\n")
    for given, result in [("", "Work")] if row["starts"] else listing:
        lines.append(f"@overload\ndef {name}(backend: str, /, *args: Any, {given}**kwargs: Any) -> {result}: ...\n")
    return "".join(lines)


def _all() -> str:
    """``__all__`` spelled out: type checkers follow star imports through it."""
    return "__all__ = [" + ", ".join(f'"{row["name"]}"' for row in _C.signatures()) + "]\n"


def stub() -> str:
    """The text of ``_C.pyi``."""
    return "".join([_TOP, _bound(), _all(), *map(_operation, _C.signatures())])


def main(folder: str) -> None:
    """Write the files under ``folder``."""
    root = Path(folder)
    default_group.init_process_group(registry.automatic("cpu"))
    texts = {
        "mcr/mcr_dl/_C.pyi": stub(),
        "docs/support-matrix.md": support_matrix(_C.world()),  # type: ignore[arg-type]
        variables.PAGE: environment(),
    }
    default_group.destroy_process_group()
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
