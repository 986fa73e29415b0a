# SPDX-License-Identifier: Apache-2.0
"""``python -m mcr_dl.testing``: does a backend do what the operations promise?"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.progress import BarColumn, TimeRemainingColumn
from rich.table import Table

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.commands import arguments
from mcr_dl.commands.console import Console, bars
from mcr_dl.groups import environment
from mcr_dl.libraries import registry, third_party
from mcr_dl.measure.ranks import launched, orderly_end
from mcr_dl.testing import cases, kit
from mcr_dl.testing.calls import OPS
from mcr_dl.testing.kit import EMULATED, FAILED, NATIVE, OUTCOMES, SKIPPED, Result, Settings

PROGRAM = "python -m mcr_dl.testing"
_WRONG = 1
_SHOWN = 5  # failures of an operation that are printed
_STYLES = {"passed": "green", "FAILED": "red", "skipped": "yellow"}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = arguments.command(
        PROGRAM,
        "Run the cases of the operations on a backend, including one from another package, and check every result.",
        "Starts its own ranks on this machine.",
    )
    checked = arguments.checked
    result.add_argument(
        "--backend", type=checked(_backend), required=True, metavar="NAME", help="backend or candidate to check"
    )
    text = f"ranks to start here, {min(cases.WORLDS)} to {max(cases.WORLDS)} (default: 3)"
    result.add_argument("-n", type=checked(_ranks), default=3, metavar="RANKS", help=text)
    text = "operations, or all (default: all); to test point-to-point operations, list both send and recv"
    operations = partial(arguments.operation_names, known=lambda: list(OPS))
    result.add_argument("--ops", type=checked(operations), default=tuple(OPS), metavar="LIST", help=text)
    text = f"which share of the cases runs; {cases.SEEDS} seeds in a row cover all (default: a different one each day)"
    result.add_argument("--seed", type=checked(arguments.count(0)), default=None, metavar="NUMBER", help=text)
    result.add_argument("--all", dest="everything", action="store_true", help="run all cases instead of a share")
    text = "seconds for 100 cases (default: 60); longer means a hang"
    result.add_argument("--limit", type=checked(arguments.seconds), default=60.0, metavar="SECONDS", help=text)
    arguments.add_json(result)
    return result


def _backend(text: str) -> str:
    """A candidate whose backends are known here."""
    advice = f"correct the name, or install the package whose entry point of {third_party.ENTRY_POINTS} has it"
    return registry.require_candidate(text, also=(), advice=advice, codec=False).name


def _ranks(text: str) -> int:
    if text not in map(str, cases.WORLDS):
        raise InvalidArgumentError(f"expected {min(cases.WORLDS)} to {max(cases.WORLDS)} ranks, got {text!r}")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Check and report. Exit code 1: a case failed, 2: bad input or a backend that does not start, 130: interrupted."""
    given = parser().parse_args(argv)
    return arguments.exit_code(PROGRAM, lambda: _run(given))


def _run(given: argparse.Namespace) -> int:
    if launched():
        raise InvalidArgumentError("expected no launcher, as this command starts its ranks itself: run it without one")
    environment.require(passes=False)
    registry.load(_C.CandidateName(given.backend).backend)
    seed = cases.today() if given.seed is None else given.seed
    settings = Settings(given.backend, given.n, given.ops, seed, given.everything, given.limit)
    try:
        with orderly_end():
            results = _with_progress(settings)
    except KeyboardInterrupt:
        return arguments.INTERRUPTED
    if not arguments.write_json(given.json, lambda: document(results, settings)):
        report(results, settings)
    return _WRONG if any(result.failures for result in results) or not checked(results) else 0


def _with_progress(settings: Settings) -> list[Result]:
    """Run the cases, with a progress bar on a terminal."""
    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), "{task.completed}/{task.total} cases", TimeRemainingColumn())
    total = sum(len(kit.selected(settings, op)) for op in settings.ops)
    with bars(console, columns, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{settings.backend}: starting {settings.ranks} ranks", total=total)

        def advance(op: str, count: int) -> None:
            progress.update(task, description=f"{settings.backend}: {op}", advance=count)

        return list(kit.run(settings, advance))


def checked(results: Sequence[Result]) -> int:
    """The cases whose results were compared."""
    return sum(result.checked for result in results)


def verdict(result: Result) -> str:
    """One operation in a word; an operation of which no case could run has not passed."""
    if result.failures:
        return "FAILED"
    return "passed" if result.checked else "skipped"


def report(results: Sequence[Result], settings: Settings) -> None:
    """Print the table, the first failures of each operation, and what was left out."""
    console = Console()
    ranks = f"{settings.ranks} rank{'s' if settings.ranks > 1 else ''}"
    table = Table(title=f"{settings.backend}: {ranks}", title_justify="left")
    table.add_column("operation", no_wrap=True)
    table.add_column("result", no_wrap=True)
    for outcome in OUTCOMES:
        table.add_column(outcome, justify="right", no_wrap=True)
    for result in results:
        word = verdict(result)
        numbers = [str(result.counts[outcome]) if result.counts[outcome] else "-" for outcome in OUTCOMES]
        table.add_row(result.op, word, *numbers, style=_STYLES[word])
    console.print_whole(table, 80)
    for result in results:
        for failure in result.failures[:_SHOWN]:
            console.say(f"{result.op}: {_count(len(failure.cases), 'case')} failed\n{failure.text}")
        if len(result.failures) > _SHOWN:
            console.say(f"{result.op}: {len(result.failures) - _SHOWN} more failures, which --json lists")
    for line in footer(results, settings):
        console.say(line)


def footer(results: Sequence[Result], settings: Settings) -> list[str]:
    """The sums of all operations, and how to repeat the run or to run the rest."""
    counts = {outcome: sum(result.counts[outcome] for result in results) for outcome in OUTCOMES}
    lines = [
        f"{_count(counts[NATIVE] + counts[EMULATED], 'case')} passed ({counts[NATIVE]:,} native, {counts[EMULATED]:,} "
        f"emulated by the core), {counts[FAILED]:,} failed, {counts[SKIPPED]:,} skipped"
    ]
    if counts[SKIPPED]:
        lines[0] += (
            ": the backend does not support them, their group has one rank, or an earlier case of the operation has "
            "ended the ranks"
        )
    if not checked(results) and not counts[FAILED]:
        lines.append("No case could run: nothing is known about this backend.")
    if not settings.everything:
        lines.append(f"This was the share --seed {settings.seed}; --all runs all cases.")
    return lines


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def document(results: Sequence[Result], settings: Settings) -> dict[str, Any]:
    """The report in JSON's types."""
    rows = [
        {
            "operation": result.op,
            "result": verdict(result).lower(),
            **{outcome: result.counts[outcome] for outcome in OUTCOMES},
            "failures": [
                {"cases": [asdict(case) for case in failure.cases], "text": failure.text} for failure in result.failures
            ],
        }
        for result in results
    ]
    backend = _C.CandidateName(settings.backend).backend
    versions = {"mcr_dl": _C.__version__, "backend": _C.backend_status().get(backend, "")}
    return {"settings": asdict(settings), "versions": versions, "rows": rows}
