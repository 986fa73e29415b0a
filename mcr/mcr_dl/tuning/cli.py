# SPDX-License-Identifier: Apache-2.0
"""``mcr-tune``: measures every candidate for every operation, and writes the table that ``auto`` uses."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
from rich.table import Table as Grid

from mcr_dl import _C
from mcr_dl.base import documents, launcher
from mcr_dl.base.errors import BackendUnavailableError, InvalidArgumentError
from mcr_dl.base.operations import frequent, operation_of
from mcr_dl.commands import arguments
from mcr_dl.commands.console import Console, bars
from mcr_dl.commands.sizes import size_text
from mcr_dl.commands.text import winners_text
from mcr_dl.groups import environment
from mcr_dl.libraries import registry
from mcr_dl.measure import devices, memory
from mcr_dl.measure.ranks import launched
from mcr_dl.tables import choice, codecs
from mcr_dl.tables import table as tables
from mcr_dl.tables.earlier import completed
from mcr_dl.tables.host import host, software
from mcr_dl.tables.model import Scale, Table
from mcr_dl.tables.table import now
from mcr_dl.tuning import _views as views
from mcr_dl.tuning import launched as inside
from mcr_dl.tuning._journal import Journal, Plan, Progress, Unit
from mcr_dl.tuning.tuner import Tuner, scale_of

_PROGRAM = "mcr-tune"
_USABLE = "all"


@dataclass(frozen=True)
class _Settings:
    """The settings of a measurement from the command line."""

    ranks: tuple[int, ...]
    operations: tuple[str, ...]
    backends: tuple[str, ...]
    dtypes: tuple[str, ...]
    codecs: tuple[str, ...]
    sizes: tuple[int, ...]
    budget_seconds: float
    confidence: float
    limit: float
    device: str
    output: Path | None
    resume: bool
    quick: bool
    async_op: bool

    def plan(self, ranks: int, backends: list[str]) -> Plan:
        """The plan of the measurements with this number of ranks."""
        units = []
        for operation in self.operations:
            sizes = (0,) if operation == "barrier" else self.sizes
            dtypes = self.dtypes if operation_of(operation).reduces else self.dtypes[:1]
            units += [Unit(operation, dtype, sizes) for dtype in dtypes]
            if self.async_op and operation in frequent():
                units.append(Unit(operation, self.dtypes[0], sizes, async_op=True))
        given = (self.budget_seconds, self.confidence, self.device, self.codecs)
        plan = Plan(ranks, tuple(backends), tuple(units), *given)
        if self.codecs and not any(plan.codecs_for(unit, size) for unit in units for size in unit.sizes):
            message = (
                f"argument --codecs: expected one of {', '.join(codecs.OPERATIONS)} with {codecs.DTYPE} and a size of "
                f"at least {size_text(codecs.SMALLEST)}, with which codecs are measured; got none of these"
            )
            raise InvalidArgumentError(message)
        return plan


# ---- the command line


def _dtypes(text: str) -> tuple[str, ...]:
    names = tuple(arguments.one_of(_C.dtypes)(name) for name in arguments.name_list(text))
    by_class: dict[str, str] = {}
    for name in names:
        kind = _C.dtype_class(name)
        other = by_class.setdefault(kind, name)
        if other != name:
            message = f"expected one type of each class, as in tables, got {other} and {name}, both of {kind!r}"
            raise InvalidArgumentError(message)
    return names


def _codecs(text: str) -> tuple[str, ...]:
    """The codecs' full names, as in tables."""
    found = [_C.codec(name) for name in arguments.name_list(text)]
    for each in found:
        if each["feedback"] or codecs.DTYPE not in each["dtypes"]:
            message = f"expected codecs for {codecs.DTYPE}, without feedback, got {each['name']!r} in {text!r}"
            raise InvalidArgumentError(message)
    return tuple(dict.fromkeys(each["name"] for each in found))


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(arguments.local_ranks(2)(name) for name in arguments.name_list(text))


def parser() -> argparse.ArgumentParser:
    """The command line: options of a measurement, or a command for measured tables."""
    result = arguments.command(
        _PROGRAM,
        "Measure every backend and variant for every operation, and write the table from which `auto` chooses.",
        "Without COMMAND it measures, on ranks that it starts here, or in those of torchrun, mpiexec or srun.",
    )
    views.add(result)

    def add(name: str, convert: Callable[[str], object], default: object, meta: str, text: str) -> None:
        result.add_argument(name, type=arguments.checked(convert), default=default, metavar=meta, help=text)

    result.add_argument("--quick", action="store_true", help="fewer sizes and types and less time: under two minutes")
    result.add_argument(
        "--no-async",
        action="store_true",
        help=f"measure no asynchronous calls (otherwise {', '.join(frequent())}, of the first element type)",
    )
    text = "continue an interrupted run, whose other options are given again"
    result.add_argument("--resume", action="store_true", help=text)
    add("-n", _ranks, None, "RANKS", "ranks to start here, or several numbers: 2,4 (default: 2)")
    add("--ops", arguments.operation_names, tuple(_C.operations()), "LIST", "operations (default: all)")
    text = "backends, each with its variants (default: all that work here)"
    add("--backends", arguments.name_list, (_USABLE,), "LIST", text)
    text = "element types (default: float32,bfloat16,int32,complex64; quick: the first two)"
    add("--dtypes", _dtypes, None, "LIST", text)
    text = "also each backend with these codecs, such as bf16,int8 (default: none)"
    add("--codecs", _codecs, (), "LIST", text)
    arguments.add_sizes(result, (None, "64M; quick: 16M"), (None, "2; quick: 4"))
    text = "maximum time per size, for all candidates together (default: 1.0; quick: 0.4)"
    add("--budget", arguments.seconds, None, "SECONDS", text)
    text = "stop when medians are certain to ±SHARE (default: 0.025)"
    add("--confidence", arguments.above(0), 0.025, "SHARE", text)
    add(
        "--limit",
        arguments.seconds,
        30.0,
        "SECONDS",
        "seconds without progress after which a candidate counts as hung (default: 30)",
    )
    add("--device", arguments.device, "cpu", "DEVICE", "cpu or cuda (default: cpu)")
    result.add_argument(
        "-o",
        "--output",
        type=arguments.checked(arguments.output),
        metavar="FILE",
        help="the table (default: this machine's in the user's cache)",
    )
    return result


def _parse(words: Sequence[str]) -> _Settings | argparse.Namespace:
    """The settings of a measurement, or the arguments of a command for measured tables."""
    given = parser().parse_args(words)
    if given.view is None:
        return _settings(given)
    if words[0] != given.view:
        message = f"expected the command first ({_PROGRAM} {given.view} ...), got {words[0]}, an option for measuring"
        raise InvalidArgumentError(message)
    return given


def _settings(given: argparse.Namespace) -> _Settings:
    quick = given.quick
    launch = launcher.detect()
    ranks = (launch.size,) if launched() else given.n or (2,)
    if given.n not in (None, ranks):
        numbers = ",".join(map(str, given.n or ()))
        message = f"argument -n: expected {ranks[0]}, as the launcher has started that many ranks, got {numbers}"
        raise InvalidArgumentError(message)
    if ranks[0] < 2:
        message = f"expected at least 2 ranks of the launcher, as one has nothing to compare, got {ranks[0]}"
        raise InvalidArgumentError(message)
    if given.codecs and given.device != "cpu":
        raise InvalidArgumentError(f"argument --codecs: expected --device cpu, got {given.device}")
    if given.output is not None and Path(given.output).exists() and not Path(given.output).is_file():
        raise InvalidArgumentError(f"argument -o: expected a regular file, got {given.output!r}")
    largest = given.max_bytes or (16 << 20 if quick else 64 << 20)
    return _Settings(
        ranks=ranks,
        operations=given.ops,
        backends=given.backends,
        dtypes=given.dtypes or ("float32", "bfloat16", *(() if quick else ("int32", "complex64"))),
        codecs=given.codecs,
        sizes=arguments.sizes(given.min_bytes, largest, given.factor or (4.0 if quick else 2.0)),
        budget_seconds=given.budget or (0.4 if quick else 1.0),
        confidence=given.confidence,
        limit=given.limit,
        device=given.device,
        output=None if given.output is None else Path(given.output),
        resume=given.resume,
        quick=quick,
        async_op=not given.no_async,
    )


def _backends_for(wanted: tuple[str, ...], device: str) -> list[str]:
    """The backends to measure. Named ones must be usable; of "all", those that are usable and serve the device.

    None of "all" under a launcher: its ranks agree on them, as they may be on several hosts.
    """
    if wanted == (_USABLE,):
        return [] if launched() else devices.usable_backends(device)
    for name in wanted:
        try:
            registry.load(name)
        except BackendUnavailableError as error:
            raise InvalidArgumentError(f"argument --backends: {error}") from error
    return registry.with_needed(wanted)


# ---- where the table goes


def _target(output: Path | None) -> Path:
    """The file to write: the named one, else this machine's in the cache, else one here if the cache is unusable."""
    if output is not None:
        return output
    path = tables.default_path(host())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        usable = os.access(path.parent, os.W_OK)
    except OSError:
        usable = False
    if usable:
        return path
    here = Path.cwd() / path.name
    if launcher.detect().rank == 0:  # which writes the table
        _say(
            f"the cache folder {path.parent} cannot be written; the table goes to {here}: set MCR_DL_TUNING_TABLE to "
            "that file, or XDG_CACHE_HOME to another folder before mcr-tune runs"
        )
    return here


def _say(text: str) -> None:
    print(f"{_PROGRAM}: {text}", file=sys.stderr, flush=True)


def _table_with(path: Path, scale: Scale, progress: Progress, settings: dict[str, float | str | bool]) -> Table:
    """The file's table with this scale added; a new table if the file's is of another machine or other versions."""
    running = software(progress.facts.get("libraries", {}))
    fresh = Table(created=now(), host=host(), software=running, settings=settings, scales=())
    if path.exists():
        try:
            old = tables.read(path)
        except InvalidArgumentError as error:
            _say(f"replacing what was there: {error}")
            return tables.merge(fresh, scale)
        if not tables.outdated(old, fresh.host, running):
            kept = {name: value for name, value in old.settings.items() if name == "devices"}  # of scales on devices
            both = replace(running, backends={**old.software.backends, **running.backends})  # each run names its own
            joined = replace(old, created=fresh.created, software=both, settings={**kept, **settings})
            earlier = next((each for each in old.scales if each.key == scale.key), None)
            return tables.merge(joined, scale if earlier is None else completed(scale, earlier))
        _say(f"replacing {path}, which is of another machine or other versions")
    return tables.merge(fresh, scale)


# ---- display


def _unit(event: dict[str, Any]) -> Unit:
    return Unit(event["operation"], event["dtype"], (), event.get("async_op", False))


class _Display:
    """A bar on a terminal, a line per operation elsewhere; and a line for every candidate that is left out."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self.console = Console(stderr=True)
        columns = ("{task.description:<40}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bars = bars(self.console, columns, transient=True, disable=not self.console.is_terminal)
        done = sum(len(unit.sizes) for unit in plan.units if unit.key in progress.done)
        self.task = self.bars.add_task(f"starting {plan.ranks} ranks", total=plan.points, completed=done)
        self._seen: set[tuple[Any, ...]] = set()

    def take(self, event: dict[str, Any]) -> None:
        """Show one event of the run."""
        kind = event["event"]
        if kind == "step" and event["phase"] == "time":
            unit = _unit(event)
            point = (unit.key, event["bytes"])
            text = f"{unit} {size_text(event['bytes'])}"
            self.bars.update(self.task, description=text, advance=0 if point in self._seen else 1)
            self._seen.add(point)
        elif kind == "excluded":
            text = f"{event['candidate']} is left out of {_unit(event)}: {event['reason']}"
            self.console.say(f"{_PROGRAM}: {text}", style="yellow")
        elif kind == "done" and not self.console.is_terminal:
            self.console.say(f"{_unit(event)}: done")


def _within_hosts(table: Table, scale: Scale) -> str:
    """A hint to measure for groups within one host, which use no measurements of several; empty: nothing is missing."""
    alone = any(each.nodes == 1 and each.device == scale.device and not each.quick for each in table.scales)
    if alone or scale.nodes == 1 or scale.ranks_per_node == 1:
        return ""
    return (
        f"groups within one host use measurements of one host, which this table lacks: run {_PROGRAM} on "
        f"{scale.ranks_per_node} ranks of one host, too"
    )


def _summary(table: Table, scale: Scale, path: Path, seconds: float, devices: int) -> None:
    """The winners, in one table."""
    grid = Grid(title=f"{scale.name}, {scale.device}: the fastest by size", title_justify="left")
    for name in ("operation", "types", "calls", "from 0, then from the size given"):
        grid.add_column(name)
    for winner in scale.winners:
        form = "asynchronous" if winner.async_op else "blocking"
        grid.add_row(winner.operation, winner.dtype_class, form, winners_text(scale, winner))
    console = Console()
    console.print(grid)
    sharing = -(-scale.ranks_per_node // devices) if devices else 1
    if sharing > 1:
        console.say(f"{sharing} ranks shared each device: times are of that, not of ranks with devices of their own")
    for each in scale.excluded:
        console.say(f"left out: {each.label} for {each.where}: {each.reason}")
    if missing := _within_hosts(table, scale):
        console.say(missing)
    console.say(f"{seconds:.0f} s; table: {path}")


# ---- commands


def _require_memory(plan: Plan, here: int) -> None:
    """Raise InvalidArgumentError if the tensors of a unit do not fit. ``here``: how many of the ranks this host has.

    Those of all sizes are there while one is timed.
    """
    for unit in plan.units if plan.device == "cpu" else ():
        wanted = memory.needed(unit.operation, unit.sizes, unit.dtype, plan.ranks, here)
        memory.require("--max-bytes", wanted, f"{unit} on {here} ranks")


def _measure(settings: _Settings) -> int:
    environment.require(table=False, passes=False)
    backends = _backends_for(settings.backends, settings.device)
    path = _target(settings.output)
    plans = [settings.plan(ranks, backends) for ranks in _remaining(settings, path)]
    for plan in plans:
        _require_memory(plan, launcher.least_local_size() if launched() else plan.ranks)
    for plan in plans:
        ranks = plan.ranks
        begin = time.monotonic()
        try:
            progress = _run(plan, _journal_path(path, ranks, settings.device), settings)
        except KeyboardInterrupt:
            _say("interrupted; the same command with --resume continues")
            return arguments.INTERRUPTED
        if progress is None:  # a rank other than 0 of an external launcher
            return 0
        scale = scale_of(plan, progress)
        facts: dict[str, float | str | bool] = {
            "quick": settings.quick,
            "budget_seconds": settings.budget_seconds,
            "confidence": settings.confidence,
            "bound_to_cores": bool(progress.facts.get("bound")),
        }
        if settings.device != "cpu":
            facts["devices"] = progress.facts.get("devices", 0)
        if settings.codecs:
            facts["codecs"] = ",".join(settings.codecs)
        with documents.locked(path):
            table = _table_with(path, scale, progress, facts)
            tables.write(table, path)
        _journal_path(path, ranks, settings.device).unlink(missing_ok=True)
        _summary(table, scale, path, time.monotonic() - begin, int(facts.get("devices", 0)))
    named = choice.named_table(None)
    if settings.output is None and named and Path(named).resolve() != path.resolve():
        _say(f"programs started here do not use this table, as {choice.VARIABLE} is {named}")
    return 0


def _journal_path(path: Path, ranks: int, device: str) -> Path:
    kind = "" if device == "cpu" else f".{device}"
    return path.with_name(f"{path.name}.{ranks}-ranks{kind}.journal")


def _remaining(settings: _Settings, path: Path) -> list[int]:
    """The numbers of ranks to measure: of an interrupted run, without those that it has completed."""
    numbers = list(settings.ranks)
    begun = [index for index, ranks in enumerate(numbers) if _journal_path(path, ranks, settings.device).exists()]
    return numbers[begun[0] :] if settings.resume and begun else numbers


def _run(plan: Plan, record: Path, settings: _Settings) -> Progress | None:
    journal = Journal(record)
    if launched():
        return inside.run(plan, journal, settings.limit, resume=settings.resume)
    progress = Progress()
    begun = record.exists()
    # Of several numbers of ranks, those after the interrupted one have not begun.
    resumes = settings.resume and (begun or plan.ranks == settings.ranks[0])
    journal.take(create=not resumes)
    if resumes:
        progress = journal.resume(plan)
    else:
        if begun:
            _say("starting anew; the same command with --resume continues an interrupted run")
        journal.begin(plan)
    display = _Display(plan, progress)
    with display.bars:
        return Tuner(plan, journal, progress, limit=settings.limit, report=display.take).run()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, or show measurements. Exit code 1: `diff` found differences; 2: bad input or nothing starts."""
    words = list(sys.argv[1:] if argv is None else argv)

    def run() -> int:
        found = _parse(words)
        return _measure(found) if isinstance(found, _Settings) else views.run(found)

    return arguments.exit_code(_PROGRAM, run)
