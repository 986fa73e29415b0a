# SPDX-License-Identifier: Apache-2.0
"""UCC's TUNE strings: the values of UCC_TL_<NAME>_TUNE and UCC_CL_<NAME>_TUNE (UCC's FAQ; src/coll_score there).

Tokens are joined by ``#``, each of ``coll_types:msg_ranges:mem_types:[team_sizes]:score:@alg`` in any order. Both ends
belong to a range; of two ranges with a common end one gives it up. UCC's size is that of MCR-DL but for reduce_scatter,
where it is one rank's part. It has no size for alltoallv, gatherv and scatterv.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from mcr_dl import _C
from mcr_dl._errors import InvalidArgumentError
from mcr_dl.tuning._exchange import RULES, Choice, Report, Rule, candidate_of, choices
from mcr_dl.tuning.table import Table

_MEMORY = {"cpu": "host", "cuda": "cuda"}
_MEMORY_TYPES = ("host", "cuda", "cuda_managed", "rocm", "rocm_managed")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_RANGE = re.compile(r"([0-9]{1,20})([kmgt]?)b?-(?:([0-9]{1,20})([kmgt]?)b?|inf)", re.IGNORECASE)
_OF_ONE_RANK = "reduce_scatter"
_WITHOUT_SIZE = ("all_to_allv", "gatherv", "scatterv")


@dataclass
class _Token:
    """One token, taken apart; ``ranges`` are bytes, with both ends (None: inf)."""

    names: list[str] = field(default_factory=list)
    ranges: list[tuple[int, int | None]] = field(default_factory=list)
    score: str = ""
    algorithm: str = ""
    others: list[str] = field(default_factory=list)


def _name(operation: str) -> str | None:
    if operation == "send":
        return None
    return "bcast" if operation == "broadcast" else operation.replace("all_to_all", "alltoall").replace("all_", "all")


def _ranges(word: str) -> list[tuple[int, int | None]]:
    matches = [_RANGE.fullmatch(each) for each in word.split(",")]
    return [
        (int(match[1]) * _UNITS[match[2].lower()], int(match[3]) * _UNITS[match[4].lower()] if match[3] else None)
        for match in matches
        if match
    ]


def _token(text: str) -> _Token:
    token = _Token()
    for word in text.split(":"):
        if word.startswith("@"):
            token.algorithm = word[1:]
        elif word.startswith("["):
            token.others.append(f"team size {word}")
        elif word == "inf" or word.isdecimal():
            token.score = word
        elif len(_ranges(word)) == word.count(",") + 1:
            token.ranges = _ranges(word)
        elif all(each in _MEMORY_TYPES for each in word.lower().split(",")):
            token.others.append(f"memory type {word}")
        elif re.fullmatch(r"[a-z_,]+", word, re.IGNORECASE):
            token.names = word.lower().split(",")
        else:
            wanted = "a collective, range of sizes, memory type, [team size], score or @algorithm"
            raise InvalidArgumentError(f"UCC TUNE string, token {text!r}: expected {wanted}, got {word!r}")
    if not token.score and not token.algorithm:
        raise InvalidArgumentError(f"UCC TUNE string, token {text!r}: expected a score or an @algorithm, got neither")
    return token


def _rules(token: _Token, where: str, known: Collection[str] | None, report: Report) -> list[Rule]:
    for other in token.others:
        report.lost(where, other)
    if token.ranges:
        report.say(f"UCC's ranges include their end, those of {RULES} do not")
    if token.score not in ("", "inf"):
        report.lost(where, f"score {token.score}", "only inf says that UCC is always taken; the token is left out")
        return []
    ours = {_name(operation): operation for operation in _C.operations()}
    candidate = candidate_of("ucc", [token.algorithm] if token.algorithm else [], known, where, report)
    rules = []
    for name in token.names or [name for name in ours if name]:
        if name not in ours:
            report.lost(where, f"collective {name!r}")
            continue
        if ours[name] == _OF_ONE_RANK and token.ranges:
            report.say(f"{where}: UCC's sizes of {name} are one rank's part, here they are the total: multiply them")
        for start, last in token.ranges or [(0, None)]:
            rules.append(Rule(ours[name], start, last, candidate))
    return rules


def read(text: str, known: Collection[str] | None, report: Report) -> list[Rule]:
    """The rules of one TUNE string, or of lines NAME=string."""
    rules = []
    for line in filter(None, map(str.strip, text.splitlines())):
        variable, equals, value = line.rpartition("=")
        if equals:
            report.lost(variable, "the layer", "rules are about UCC as a whole")
        for token in value.split("#"):
            rules += _rules(_token(token.strip()), f"token {token.strip()!r}", known, report)
    return rules


def _range(choice: Choice, report: Report) -> str | None:
    if choice.start == 0 and choice.end is None:
        return ""
    if choice.operation in _WITHOUT_SIZE:
        report.lost(choice.where, "the range", "UCC has no size for it; the token is left out")
        return None
    share = choice.scale.ranks if choice.operation == _OF_ONE_RANK else 1
    start = -(-choice.start // share)
    return f"{start}-{'inf' if choice.end is None else -(-choice.end // share) - 1}:"


def write(table: Table, dtype_class: str, report: Report) -> str:
    """The table's winners as a TUNE string; every one that is not ucc or a variant of it is reported."""
    tokens = []
    for choice in choices(table, "ucc", dtype_class, _name, report):
        scale = choice.scale
        report.lost(scale.name, f"nodes {scale.nodes}", "the number of ranks is written")
        if scale.device not in _MEMORY:
            report.lost(choice.where, f"device {scale.device}", "the token is left out")
            continue
        sizes = _range(choice, report)
        if sizes is not None:
            algorithm = f":@{choice.variant}" if choice.variant else ""
            team = f"[{scale.ranks}-{scale.ranks}]"
            tokens.append(f"{_name(choice.operation)}:{sizes}{_MEMORY[scale.device]}:{team}:inf{algorithm}")
    return "#".join(tokens) + "\n" if tokens else ""
