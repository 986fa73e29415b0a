# SPDX-License-Identifier: Apache-2.0
"""Open MPI's dynamic rules in JSON, version 3 (from Open MPI 6.0 on): ``coll_tuned_dynamic_rules_filename``.

Its sizes are those of MCR-DL, both ends belong to a range, and the first rule that fits a call counts
(docs/tuning-apps of Open MPI; tuned_dynamic_file_schema.json there).
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from mcr_dl import _C, _documents
from mcr_dl._errors import InvalidArgumentError
from mcr_dl.tuning._exchange import LARGEST, Choice, Report, Rule, candidate_of, choices
from mcr_dl.tuning.table import Scale, Table

_VERSION = 3
# Where the name is not ours without underscores. Open MPI's reducescatter is the one with counts.
_NAMES = {"broadcast": "bcast", "reduce_scatter": "reducescatterblock", "reduce_scatterv": "reducescatter"}
_OWN_CHOICE = "ignore"  # Open MPI's name for its fixed rules
_READ = ("msg_size_min", "msg_size_max", "alg")


def _name(operation: str) -> str | None:
    return None if operation == "send" else _NAMES.get(operation, operation.replace("_", ""))


def _wrong(where: str, expected: str, got: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"Open MPI rules, {where}: expected {expected}, got {json.dumps(got)}")


def _expect(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise _wrong(where, "an object" if kind is dict else "a list", value)
    return value


def _size(value: Any, where: str) -> int | None:
    """Bytes; None for "inf"."""
    if isinstance(value, str) and value.lower() == "inf":
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _wrong(where, 'a number of bytes or "inf"', value)
    return value


def _rule(rule: dict[str, Any], operation: str, known: Collection[str] | None, where: str, report: Report) -> Rule:
    for name in sorted(rule.keys() - _READ):
        report.lost(where, f"{name} {json.dumps(rule[name])}")
    if "alg" not in rule:
        raise _wrong(f"{where}.alg", "an algorithm", None)
    algorithm = rule["alg"]
    if isinstance(algorithm, int) and algorithm != 0:
        report.lost(where, f"alg {algorithm}", "a number; variants have names")
    parts = [algorithm] if isinstance(algorithm, str) and algorithm != _OWN_CHOICE else []
    start = _size(rule.get("msg_size_min", 0), f"{where}.msg_size_min")
    if start is None:
        raise _wrong(f"{where}.msg_size_min", "a number of bytes", "inf")
    last = _size(rule.get("msg_size_max", "inf"), f"{where}.msg_size_max")
    end = None if last is None else last + 1
    return Rule(operation, start, end, candidate_of("mpi", parts, known, where, report))


def _parse(text: str) -> dict[str, Any]:
    document = _expect(_documents.parse(text, "Open MPI rules", limit=LARGEST), dict, "the document")
    for name, value in (("rule_file_version", _VERSION), ("module", "tuned")):
        if document.get(name) != value:
            raise _wrong(name, json.dumps(value), document.get(name))
    return dict(document)


def read(text: str, known: Collection[str] | None, report: Report) -> list[Rule]:
    """The rules of a file, the last one that fits counting."""
    names = {_name(operation): operation for operation in _C.operations()}
    document = _parse(text)
    for name in sorted(document.keys() - {"$schema", "rule_file_version", "module", "collectives"}):
        report.lost(name, json.dumps(document[name]))
    rules = []
    for collective, entries in _expect(document.get("collectives"), dict, "collectives").items():
        if collective not in names:
            report.lost("collectives", collective)
            continue
        for index, entry in enumerate(_expect(entries, list, collective)):
            where = f"{collective}[{index}]"
            for name in sorted(_expect(entry, dict, where).keys() - {"rules"}):
                report.lost(where, f"{name} {json.dumps(entry[name])}")
            for place, rule in enumerate(_expect(entry.get("rules"), list, f"{where}.rules")):
                path = f"{where}.rules[{place}]"
                rules.append(_rule(_expect(rule, dict, path), names[collective], known, path, report))
    return rules[::-1]


def _distribution(scale: Scale, report: Report) -> str:
    if scale.nodes == 1:
        return "single-node"
    if scale.ranks_per_node == 1:
        return "one-per-node"
    report.lost(scale.name, f"the layout {scale.nodes}x{scale.ranks_per_node}", "any distribution is written")
    return "any"


def _entry(scale: Scale, own: list[Choice], report: Report) -> dict[str, Any]:
    rules = [
        {
            "msg_size_min": choice.start,
            "msg_size_max": "inf" if choice.end is None else choice.end - 1,
            "alg": choice.variant or _OWN_CHOICE,
        }
        for choice in own
    ]
    place = {"comm_size_min": scale.ranks, "comm_size_max": scale.ranks}
    return {**place, "comm_rank_distribution": _distribution(scale, report), "rules": rules}


def write(table: Table, dtype_class: str, report: Report) -> str:
    """The table's winners as a file; every one that is not mpi or a variant of it is reported."""
    library = table.software.backends.get("mpi", "")
    if "Open MPI" not in library:
        report.say(f"mpi was measured with {library or 'an unknown library'}, not with Open MPI")
    collectives: dict[str, list[dict[str, Any]]] = {}
    found = choices(table, "mpi", dtype_class, _name, report)
    for variant in dict.fromkeys(choice.variant for choice in found if choice.variant):
        report.say(f"mpi:{variant}: Open MPI ignores a rule with alg {variant!r} if it has no algorithm of that name")
    for scale in table.scales:
        if scale.device != "cpu" and any(choice.scale is scale for choice in found):
            report.lost(scale.name, f"device {scale.device}")
        for operation in dict.fromkeys(choice.operation for choice in found if choice.scale is scale):
            own = [choice for choice in found if choice.scale is scale and choice.operation == operation]
            collectives.setdefault(str(_name(operation)), []).append(_entry(scale, own, report))
    document = {"rule_file_version": _VERSION, "module": "tuned", "collectives": collectives}
    return json.dumps(document, indent=2) + "\n"
