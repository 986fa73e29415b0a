# SPDX-License-Identifier: Apache-2.0
"""NCCL's example tuner plugin: the CSV file that NCCL_TUNER_CONFIG_FILE names (ext-tuner/example of NCCL).

Its sizes are those of MCR-DL (the total for all_gather and reduce_scatter), both ends belong to a range, and the first
row that fits a call counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from mcr_dl import _C
from mcr_dl._errors import InvalidArgumentError
from mcr_dl.tuning._exchange import Report, Rule, candidate_of, choices
from mcr_dl.tuning.table import Table

_COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
_COLUMNS = ("collective", "min", "max", "algo", "proto", "channels", "nNodes", "nRanks", "numPipeOps", "regBuff")
_NEEDED = 8
_NUMBERS = ("min", "max", "channels", "nNodes", "nRanks", "numPipeOps", "regBuff")
_UNUSED = ("channels", "nNodes", "nRanks", "numPipeOps", "regBuff")
_ANY = -1
_LARGEST = 2**64 - 1  # sizes are unsigned there, and -1 is read as this
_DEFAULT_PROTOCOL = "simple"


def _name(operation: str) -> str | None:
    name = operation.replace("_", "")
    return name if name in _COLLECTIVES else None


def _row(number: int, line: str) -> dict[str, str]:
    cells = [cell.strip() for cell in line.split(",")]
    if not _NEEDED <= len(cells) <= len(_COLUMNS):
        wanted = f"{_NEEDED} to {len(_COLUMNS)} columns ({','.join(_COLUMNS)})"
        raise InvalidArgumentError(f"NCCL tuner file, line {number}: expected {wanted}, got {len(cells)}: {line!r}")
    row = dict(zip(_COLUMNS, cells, strict=False))
    for name in _NUMBERS:
        if not re.fullmatch("-?[0-9]{1,20}", row.get(name, "0")):
            got = repr(row[name][:40])
            raise InvalidArgumentError(f"NCCL tuner file, line {number}: {name}: expected a number, got {got}")
    return row


def read(text: str, known: Collection[str] | None, report: Report) -> list[Rule]:
    """The rules of a file, the last one that fits counting."""
    names = {_name(operation): operation for operation in _C.operations() if _name(operation) is not None}
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        row, where = _row(number, line), f"line {number}"
        operation = names.get(row["collective"])
        if operation is None:
            report.lost(where, f"collective {row['collective']!r}")
            continue
        for name in _UNUSED:
            if int(row.get(name, _ANY)) != _ANY:
                report.lost(where, f"{name} {row[name]}")
        candidate = candidate_of("nccl", [row["algo"], row["proto"]], known, where, report)
        end = None if int(row["max"]) in (_ANY, _LARGEST) else int(row["max"]) + 1
        rules.append(Rule(operation, max(0, int(row["min"])), end, candidate))
    return rules[::-1]


def write(table: Table, dtype_class: str, report: Report) -> str:
    """The table's winners as a file; every one that is not a variant of nccl is reported."""
    lines = [f"# {','.join(_COLUMNS[:_NEEDED])}"]
    for choice in choices(table, "nccl", dtype_class, _name, report):
        algorithm, _, protocol = choice.variant.partition("-")
        if not algorithm:
            report.lost(choice.where, "nccl without a variant", "it is NCCL's own choice, which no row can say")
            continue
        if not protocol:
            report.say(f"{choice.where}: {choice.variant} has no protocol, a row must: {_DEFAULT_PROTOCOL} is written")
        end = _LARGEST if choice.end is None else choice.end - 1
        cells = [_name(choice.operation), choice.start, end, algorithm, protocol or _DEFAULT_PROTOCOL, _ANY]
        lines.append(",".join(map(str, [*cells, choice.scale.nodes, choice.scale.ranks])))
    return "\n".join(lines) + "\n"
