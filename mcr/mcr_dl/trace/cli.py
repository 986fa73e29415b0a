# SPDX-License-Identifier: Apache-2.0
"""``mcr-trace``: shows and converts the traces that the ranks of a program have saved."""

from __future__ import annotations

import argparse
import itertools
import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

from mcr_dl.base import documents
from mcr_dl.commands import arguments
from mcr_dl.commands.console import Console
from mcr_dl.planner.capture import capture
from mcr_dl.trace import _plan
from mcr_dl.trace._chrome import chrome
from mcr_dl.trace._files import Trace, read_all
from mcr_dl.trace._flight_recorder import flight_recorder
from mcr_dl.trace._param import param
from mcr_dl.trace.plot import plot
from mcr_dl.trace.show import document, left_out_text, show
from mcr_dl.watch import dump

_PROGRAM = "mcr-trace"
_PARAM, _FLIGHT_RECORDER = "{}.json", "rank_{}"  # names of their files, by rank


def _say(text: str) -> None:
    Console().say(text)


def merge(traces: Sequence[Trace], output: Path) -> None:
    """Write one trace-event file of all ranks, and print how well their clocks are aligned."""
    text = json.dumps(chrome(traces))
    with documents.writing(output):
        output.write_text(text)
    known = [trace.clock.error for trace in traces if trace.clock.error is not None]
    error = f"to ±{max(known) / 1000:.1f} µs" if len(known) == len(traces) else "by the hosts' time of day"
    methods = ", ".join(sorted({trace.clock.method for trace in traces}))
    calls = sum(len(trace.records) for trace in traces)
    _say(f"{output}: {calls} calls of {len(traces)} ranks, clocks aligned {error} ({methods})")


def _merge(given: argparse.Namespace) -> None:
    merge(read_all(given.traces), given.output)


def _summary(given: argparse.Namespace) -> None:
    traces = read_all(given.traces)
    if not arguments.write_json(given.json, lambda: document(traces)):
        show(traces)


def _plot(given: argparse.Namespace) -> None:
    traces = read_all(given.traces)
    plot(traces, given.output)
    if text := left_out_text(traces):
        _say(text)
    _say(str(given.output))


def _write_all(folder: Path, name: str, contents: Sequence[bytes]) -> None:
    """Write a file for each rank, and remove those of an earlier export of more ranks: the other tool reads them all.

    A gap in the numbers ends those of an export: files with other numbers, such as a year, are the user's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank in itertools.count(len(contents)):
        old = folder / name.format(rank)
        if not old.is_file():
            break
        old.unlink()
    for rank, content in enumerate(contents):
        file = folder / name.format(rank)
        with documents.writing(file):
            file.write_bytes(content)


def export_param(traces: Sequence[Trace], folder: Path) -> None:
    """Write 0.json, 1.json, ... as ``commsTraceReplay --trace-type basic --trace-path`` reads them."""
    export = param(traces)
    _write_all(folder, _PARAM, [json.dumps(entries, indent=1).encode() for entries in export.ranks])
    _say(f"{folder}: {sum(map(len, export.ranks))} entries of {len(traces)} ranks")
    for reason, count in export.left_out.items():
        _say(f"left out: {reason} ({count})")


def export_flight_recorder(traces: Sequence[Trace], folder: Path) -> None:
    """Write rank_0, rank_1, ... as ``torchfrtrace`` reads them."""
    dumps = flight_recorder(traces)
    _write_all(folder, _FLIGHT_RECORDER, [pickle.dumps(each) for each in dumps])
    _say(f"{folder}: {sum(len(each['entries']) for each in dumps)} calls; now: torchfrtrace {folder}")
    left_out = sum(len(trace.records) for trace in traces) - sum(len(each["entries"]) for each in dumps)
    if left_out:
        _say(f"left out: {left_out} calls that cannot be matched over the ranks")


_FORMATS: dict[str, Callable[[Sequence[Trace], Path], None]] = {
    "param": export_param,
    "flight-recorder": export_flight_recorder,
}


def _export(given: argparse.Namespace) -> None:
    _FORMATS[given.format](read_all(given.traces), given.output)


def _diagnose(given: argparse.Namespace) -> None:
    dumps = dump.read(Path(given.dumps))
    if not arguments.write_json(given.json, lambda: dump.document(dumps)):
        _say(dump.told(dumps))


def _capture_graph(given: argparse.Namespace) -> None:
    graph = capture([trace.records for trace in read_all(given.traces)], given.calls)
    documents.write_rows(given.output, graph.document())
    _say(f"{given.output}: {len(graph.calls)} calls per iteration; now: mcr-trace plan {given.output}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = arguments.command(_PROGRAM, "Show and convert traces, plan captured iterations, diagnose failures.")
    commands = result.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str,
        run: Callable[[argparse.Namespace], None],
        text: str,
        output: str | None = None,
        kind: Callable[[str], object] = Path,
        place: str = "TRACES",
    ) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
        named = {
            "TRACES": "the folder in MCR_DL_TRACE, or the folder or .json name given to mcr_dl.trace.save()",
            "FILE": "a graph that mcr-trace capture has written",
        }
        given = named.get(place, "the folder")
        command.add_argument(place.lower(), metavar=place, help=given)
        if output is not None:
            text = "the folder to write to" if output == "FOLDER" else "the file to write"
            command.add_argument("-o", "--output", type=kind, required=True, metavar=output, help=text)
        command.set_defaults(run=run)
        return command

    add("merge", _merge, "One trace-event file of all ranks, for ui.perfetto.dev and chrome://tracing.", "JSON")
    summary = add("summary", _summary, "Time in computing and in communication, by operation and rank.")
    add("plot", _plot, "The summary as stacked bars.", "PICTURE", arguments.checked(arguments.plot))
    text = "The cause of a failure, from the dumps in MCR_DL_DUMP_DIR."
    for report in (summary, add("diagnose", _diagnose, text, place="DUMPS")):
        arguments.add_json(report)
    text = "Make a graph of a training iteration, for mcr-trace plan, from a trace of at least three iterations."
    capturing = add("capture", _capture_graph, text, "JSON")
    text = "calls per iteration (default: the shortest sequence that repeats)"
    capturing.add_argument("--calls", type=arguments.checked(arguments.count(1)), metavar="N", help=text)
    text = "Plans of a training iteration's calls, before and after a search: docs/syndicate.md."
    _plan.add_options(add("plan", _plan.run, text, place="FILE"))
    export = add("export", _export, "The calls in the format of another tool.", "FOLDER")
    export.add_argument("--format", choices=_FORMATS, required=True, help="output format")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit code 2: bad input."""
    given = parser().parse_args(argv)

    def run() -> int:
        given.run(given)
        return 0

    return arguments.exit_code(_PROGRAM, run)
