# SPDX-License-Identifier: Apache-2.0
"""Exchanges winners with the tuning files of NCCL (tuner CSV), Open MPI (rules in JSON) and UCC (TUNE strings).

Those choose an algorithm inside one library, MCR-DL chooses the library: their algorithms are variants of a backend
(``nccl:tree-ll128``, ``mpi:ring``, ``ucc:knomial``). What has no counterpart is reported, line by line.
"""

from __future__ import annotations

from collections.abc import Collection
from types import ModuleType

from mcr_dl._errors import InvalidArgumentError
from mcr_dl.tuning import _nccl, _openmpi, _ucc
from mcr_dl.tuning._exchange import RULES, Report, rules_text
from mcr_dl.tuning.table import Table

_FORMATS = {"nccl": (_nccl, "NCCL's tuner CSV"), "openmpi": (_openmpi, "Open MPI's rules"), "ucc": (_ucc, "UCC's TUNE")}


def names() -> list[str]:
    """The formats' names."""
    return list(_FORMATS)


def _format(name: str) -> tuple[ModuleType, str]:
    if name not in _FORMATS:
        raise InvalidArgumentError(f"format: expected one of {', '.join(_FORMATS)}, got {name!r}")
    return _FORMATS[name]


def import_rules(text: str, form: str, candidates: Collection[str] | None = None) -> tuple[str, list[str]]:
    """A value for ``MCR_DL_TUNE`` from the text of another library's tuning file, and what is not carried over.

    ``candidates`` are those that can be chosen: an algorithm that is none of them becomes its backend, with a line in
    the report. None takes every algorithm for a variant. InvalidArgumentError says where the text is malformed.
    """
    module, _ = _format(form)
    report = Report(RULES)
    rules = module.read(text, candidates, report)
    return rules_text(rules, report), report.lines


def export_rules(table: Table, form: str, dtype_class: str = "float") -> tuple[str, list[str]]:
    """The text of another library's tuning file from the table's winners, and what is not carried over.

    The formats know no element types: winners are those of ``dtype_class``, or of ``any``.
    """
    module, title = _format(form)
    report = Report(title)
    return module.write(table, dtype_class, report), report.lines
