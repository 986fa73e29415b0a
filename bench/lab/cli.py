# SPDX-License-Identifier: Apache-2.0
"""The commands: run a program in a cluster on this machine, list the labs, remove their remains."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from rich.table import Table

from lab import Lab, LabError, cleaning, plan
from mcr_dl.commands.console import Console
from mcr_dl.measure.ranks import orderly_end

FAILED, WRONG, INTERRUPTED = 1, 2, 130
_EXAMPLE = "example: sudo .venv/bin/python bench/lab run --hosts 2 --nics 400,200 -- .venv/bin/python train.py"


def _say(text: str) -> None:
    print(f"lab: {text}", file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="lab", description=__doc__, epilog=_EXAMPLE)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="make a cluster, run a program as every rank, remove the cluster")
    run.add_argument("--hosts", type=int, default=2, help="how many hosts (2)")
    run.add_argument("--ranks-per-host", type=int, default=1, metavar="N", help="ranks on each (1)")
    run.add_argument("--nics", default="400,200", metavar="RATES", help="Mbit/s of each NIC of a host (400,200)")
    run.add_argument("--multi-rail", action="store_true", help="every library may use all NICs")
    run.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="end the ranks after this time (600)")
    run.add_argument("--grace", type=float, default=5, metavar="SECONDS", help="what others get once one failed (5)")
    run.add_argument("program", nargs="+", help="after `--`: the program and its arguments")
    clean = commands.add_parser("clean", help="remove what labs have left whose own process is gone")
    clean.add_argument("labs", nargs="*", metavar="ID", help="remove these, running or not")
    commands.add_parser("status", help="list the labs of this machine")
    commands.add_parser("suite", help="what `make lab` runs: suite --help")
    return top


def run(given: argparse.Namespace) -> int:
    """Run a program as every rank."""
    rates = plan.parse_rates(given.nics)
    with Lab(given.hosts, given.ranks_per_host, rates, multi_rail=given.multi_rail) as lab:
        _say(f"{lab.id}: {lab.shape.hosts} hosts, {lab.shape.ranks} ranks, NICs of {given.nics} Mbit/s")
        per_host = lab.shape.ranks_per_host

        def show(rank: int, line: str) -> None:
            sys.stdout.write(f"{plan.host_name(rank // per_host)}/{rank}| {line}\n")
            sys.stdout.flush()

        result = lab.start(given.program, sink=show).wait(given.limit, given.grace)
    _say(result.text())
    return 0 if result.ok else FAILED


def status() -> int:
    """Print the labs of this machine."""
    found = cleaning.find()
    if not found:
        print("no lab on this machine")
        return 0
    grid = Table("lab", "hosts x ranks, NICs", "made by", "namespaces", "processes")
    for each in found:
        owner = f"process {each.owner}" if each.owner else "no process: lab clean"
        grid.add_row(each.lab, each.shape, owner, str(len(each.spaces)), str(len(each.pids)))
    Console().print(grid)
    return 0


def clean(labs: Sequence[str]) -> int:
    """Remove labs: the named ones, else all whose own process is gone."""
    found = {each.lab: each for each in cleaning.find()}
    unknown = [lab for lab in labs if lab not in found]
    if unknown:
        raise LabError(f"ID: expected one of {sorted(found)}, got {unknown[0]!r}")
    chosen = [found[lab] for lab in labs] if labs else [each for each in found.values() if each.owner is None]
    for each in chosen:
        processes, spaces = cleaning.clean(each.lab)
        print(f"{each.lab}: removed {processes} processes and {spaces} namespaces")
    for each in found.values():
        if each not in chosen:
            print(f"{each.lab}: process {each.owner} is at work in it; `lab clean {each.lab}` removes it anyway")
    if not found:
        print("nothing to remove")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Exit code 1: a rank or a stage failed; 2: wrong arguments, or no lab can be made here."""
    words = list(sys.argv[1:] if argv is None else argv)
    given = parser().parse_args(words[:1] if words[:1] == ["suite"] else words)
    try:
        with orderly_end():
            if given.command == "run":
                return run(given)
            if given.command == "clean":
                return clean(given.labs)
            if given.command == "status":
                return status()
            return int(importlib.import_module("lab.suite").main(words[1:]))
    except LabError as error:
        _say(str(error))
        return WRONG
    except KeyboardInterrupt:
        _say("interrupted; everything is removed")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
