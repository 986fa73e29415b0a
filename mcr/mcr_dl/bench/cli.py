# SPDX-License-Identifier: Apache-2.0
"""``mcr-bench``: latency and bandwidth of every operation on every backend, with checked results."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from rich.progress import BarColumn, TimeRemainingColumn

from mcr_dl import _C
from mcr_dl.base import launcher
from mcr_dl.base.errors import InvalidArgumentError, McrError
from mcr_dl.base.operations import operation_of
from mcr_dl.bench import report, starting
from mcr_dl.bench._sweep import Row, Settings, measure_point, points
from mcr_dl.bench.mix import MixResult, parse_mix, run_mix
from mcr_dl.commands.arguments import (
    INTERRUPTED,
    STDOUT,
    UNREAD,
    above,
    accept_output,
    add_json,
    add_sizes,
    candidate_names,
    checked,
    command,
    count,
    device,
    failure_of,
    leave_output,
    local_ranks,
    one_of,
    operation_names,
    plot,
    reductions,
    refuse,
    seconds,
    sizes,
    write_json,
)
from mcr_dl.commands.console import Console, bars, restored
from mcr_dl.groups import default_group, environment
from mcr_dl.libraries import registry
from mcr_dl.measure import devices, memory
from mcr_dl.measure.cases import candidates, differs
from mcr_dl.measure.ranks import bind, launched, run_local
from mcr_dl.measure.timing import TorchControl
from mcr_dl.tables import rules

_PROGRAM = "mcr-bench"
_WRONG = 1
_NOT_IN_A_MIX = {
    "ops": "--ops",
    "backends": "--backends",
    "min_bytes": "-b/--min-bytes",
    "max_bytes": "-e/--max-bytes",
    "factor": "-f/--factor",
    "asynchronous": "--async",
    "plot": "--plot",
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = command(
        _PROGRAM,
        "Latency and bandwidth of every operation on every backend, with checked results.",
        "Starts its own ranks on this machine, or runs in those of torchrun, mpiexec or srun.",
    )

    def add(*names: str, convert: Callable[[str], object], default: object, meta: str, text: str) -> None:
        result.add_argument(*names, type=checked(convert), default=default, metavar=meta, help=text)

    add("-n", convert=local_ranks(1), default=None, meta="RANKS", text="ranks to start here (default: 2)")
    add("--ops", convert=operation_names, default=None, meta="LIST", text="operations, or all (default: all_reduce)")
    add(
        "--backends",
        convert=candidate_names,
        default=None,
        meta="LIST",
        text="backends or variants, auto, all (default: all)",
    )
    add_sizes(result, (64 << 20, "64M"), (2.0, "2"))
    add("--dtype", convert=one_of(_C.dtypes), default="float32", meta="DTYPE", text="element type (default: float32)")
    add("--redop", convert=one_of(reductions), default="SUM", meta="OP", text="reduction (default: SUM)")
    add("--root", convert=count(0), default=0, meta="RANK", text="root of rooted operations (default: 0)")
    result.add_argument("--async", dest="asynchronous", action="store_true", help="time async_op=True and wait()")
    result.add_argument("--in-place", action="store_true", help="use one buffer for input and output")
    add("--device", convert=device, default="cpu", meta="DEVICE", text="cpu or cuda (default: cpu)")
    text = "maximum time per size, for all backends together (default: 0.5)"
    add("--budget", convert=seconds, default=0.5, meta="SECONDS", text=text)
    add(
        "--confidence",
        convert=above(0),
        default=0.025,
        meta="SHARE",
        text="stop when medians are certain to ±SHARE (default: 0.025)",
    )
    result.add_argument("--no-check", dest="check", action="store_false", help="do not check results")
    add_json(result)
    add("--plot", convert=plot, default=None, meta="FILE.png", text="draw latency over size")
    add(
        "--mix",
        convert=parse_mix,
        default=(),
        meta="MIX",
        text='run at once: "all_reduce:1M@gloo + all_to_all:256K@mpi"',
    )
    return result


def _refuse_with_mix(argv: Sequence[str] | None) -> None:
    """Raise InvalidArgumentError for an option that has no effect with --mix, whatever its value."""
    bare = parser()
    bare.set_defaults(**dict.fromkeys(_NOT_IN_A_MIX))
    given = bare.parse_args(argv)
    for name, option in _NOT_IN_A_MIX.items():
        if getattr(given, name) is not None:
            message = f"argument {option}: not allowed with --mix"
            raise InvalidArgumentError(message)


def _parse(argv: Sequence[str] | None) -> tuple[Settings, int]:
    """The settings, and the number of ranks to start; raises InvalidArgumentError for errors beyond argparse's."""
    given = parser().parse_args(argv)
    if given.mix:
        _refuse_with_mix(argv)
    ops = tuple(part.operation for part in given.mix) or given.ops or ("all_reduce",)
    if any(operation_of(op).reduces for op in ops) and not _C.reduction_defined(given.dtype, given.redop):
        defined = ", ".join(red for red in reductions() if _C.reduction_defined(given.dtype, red))
        message = f"argument --redop: expected one of {defined} for dtype {given.dtype}, got {given.redop}"
        raise InvalidArgumentError(message)
    ranks = launcher.detect().size if launched() else given.n or 2
    if given.n not in (None, ranks):
        message = f"argument -n: expected {ranks}, as the launcher has started that many ranks, got {given.n}"
        raise InvalidArgumentError(message)
    if given.root >= ranks:
        message = f"argument --root: expected a rank of the group (0 to {ranks - 1}), got {given.root}"
        raise InvalidArgumentError(message)
    backends = given.backends or ("all",)
    settings = Settings(
        ops, backends, sizes(given.min_bytes, given.max_bytes, given.factor), given.dtype, given.redop, given.root,
        given.asynchronous, given.in_place, given.device, given.budget, given.confidence, given.check,
        given.json, given.plot, given.mix,
    )  # fmt: skip
    return settings, ranks


# ---- on the ranks


def _start(settings: Settings) -> tuple[_C.Group, list[str]]:
    """The default group, and the names of the candidates to measure on it."""
    wanted = [part.candidate for part in settings.mix] or list(settings.backends)
    if "auto" not in wanted:
        os.environ.pop(rules.VARIABLE, None)  # all calls name their candidates
    ruled = [rule.candidate for rule in rules.parse(os.environ.get(rules.VARIABLE, ""), None)]
    named = registry.with_needed(name for name in (*wanted, *ruled) if name not in ("all", "auto"))
    devices.take(settings.device)
    # Only "auto" and computed shares need measurements, which a start without any would make first.
    needed = "auto" in wanted or any(_C.CandidateName(name).parts for name in wanted)
    automatic = not {"all", "auto"}.isdisjoint(wanted)
    starting.start(named, settings.device, automatic=automatic, tuning_table=None if needed else "none")
    group = _C.world()
    assert group is not None
    names = [name for each in wanted for name in (candidates(group) if each == "all" else [each])]
    for name in names:
        if name != "auto" and not group._has(name):
            option = "--mix" if settings.mix else "--backends"
            message = f"argument {option}: expected some of {', '.join(group.candidates)} or auto, got {name!r}"
            raise InvalidArgumentError(message)
    return group, list(dict.fromkeys(names))


def _measure_all(settings: Settings, group: _C.Group, names: list[str], control: TorchControl) -> list[Row]:
    """All operations; rank 0 prints each table when it is complete."""
    first, dtype = group.rank() == 0, settings.dtype
    rows: list[Row] = []
    for operation in settings.ops:
        console = Console(stderr=True)
        columns = ("{task.description}", BarColumn(), "{task.completed}/{task.total}", TimeRemainingColumn())
        hidden = not (first and console.is_terminal)
        each_size, done = points(settings, operation, group.size()), list[Row]()
        with bars(console, columns, transient=True, disable=hidden) as progress:
            task = progress.add_task(operation, total=len(each_size))
            own = [
                name
                for name in names
                if "all" not in settings.backends or differs(group, name, operation, dtype, settings.device)
            ]
            for nbytes in each_size:
                done += measure_point(settings.case(operation, nbytes), own, group, control, settings)
                progress.advance(task)
        unread = False
        if first and settings.json != STDOUT:
            unread = not _printed(partial(report.print_operation, done, settings, group.size()))
        if any(control.maximum([float(unread)])):
            raise BrokenPipeError
        rows += done
    return rows


def _printed(report: Callable[[], None]) -> bool:
    """Print a report; False if the output has no reader any more, as in ``mcr-bench | head``."""
    try:
        report()
        sys.stdout.flush()
    except BrokenPipeError:
        leave_output()
        return False
    return True


def _finish(settings: Settings, group: _C.Group, rows: list[Row], mix: MixResult | None) -> None:
    """Rank 0's final output and files."""
    if not write_json(settings.json, lambda: report.document(rows, settings, group, mix)):
        if mix is not None:
            report.print_mix(mix, settings, group.size())
        else:
            print("\n".join(report.footer(rows, settings)))
    if settings.plot and rows:
        report.write_plot(settings.plot, rows, f"{group.size()} ranks, {settings.dtype}, {settings.device}")
    sys.stdout.flush()


def _measure(settings: Settings) -> int:
    group, names = _start(settings)
    control = TorchControl(group)
    if settings.device == "cpu" and not (settings.asynchronous or settings.mix):  # a device's library has threads too
        bind()
    mix: MixResult | None = None
    rows: list[Row] = []
    if settings.mix:
        like = settings.case(settings.mix[0].operation, settings.mix[0].nbytes)
        mix = run_mix(
            settings.mix, like, group, control, settings.budget_seconds, settings.confidence, check=settings.check
        )
    else:
        rows = _measure_all(settings, group, names, control)
    try:
        if group.rank() == 0:
            _finish(settings, group, rows, mix)
    finally:
        control.barrier()  # keeps the ranks until rank 0 has reported
        default_group.destroy_process_group()
    wrong = any(row.wrong for row in rows) or bool(mix is not None and mix.wrong)
    return _WRONG if wrong else 0


def run_rank(settings: Settings) -> int:
    """Run one rank; returns the exit code."""
    accept_output()
    try:
        return _measure(settings)
    except BrokenPipeError:  # on all ranks, or on rank 0 at the end
        os._exit(UNREAD)
    except (McrError, OSError) as error:
        return refuse(_PROGRAM, str(error))


# ---- the command


def _require_memory(settings: Settings, ranks: int) -> None:
    """Raise InvalidArgumentError if the tensors of a mix, or of an operation at one size, do not fit on this host."""
    if settings.device != "cpu":
        return
    here = launcher.least_local_size() if launched() else ranks
    if settings.mix:
        parts = [memory.needed(part.operation, [part.nbytes], settings.dtype, ranks, here) for part in settings.mix]
        memory.require("--mix", sum(parts), f"the mix (ranks here: {here})")
        return
    for operation in settings.ops:
        largest = settings.sizes[-1:]
        wanted = memory.needed(operation, largest, settings.dtype, ranks, here, in_place=settings.in_place)
        memory.require("-e/--max-bytes", wanted, f"{operation} {settings.dtype} (ranks here: {here})")


def _start_ranks(settings: Settings, ranks: int) -> int:
    """Run on ranks that this process starts; returns the exit code."""
    try:
        with restored(Console(stderr=True)), run_local(run_rank, (settings,), ranks) as running:
            running.wait()
            failure = running.first_failure
    except KeyboardInterrupt:
        print(f"{_PROGRAM}: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0 if failure is None else failure_of(*failure, f"{_PROGRAM}: error: ")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report. Exit code 1: wrong values, 2: bad input or a failed backend, 130: interrupted."""
    try:
        settings, ranks = _parse(argv)
        environment.require(passes=False)
        _require_memory(settings, ranks)
        if not launched():
            return _start_ranks(settings, ranks)
    except (McrError, OSError) as error:  # OSError: no folder for temporary files, or no process
        return refuse(_PROGRAM, str(error))
    return run_rank(settings)
