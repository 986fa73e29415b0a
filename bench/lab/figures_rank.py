# SPDX-License-Identifier: Apache-2.0
"""One rank of the paper's Figures 8 to 11: step times of a training on several libraries and mixes of them.

    torchrun --nproc-per-node 2 bench/lab/figures_rank.py --workload dlrm --out dlrm.json

Every rank of a job runs this (RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment, or mpiexec). Each row
is a separate model, made from one seed and trained on the same data; rows take turns of some steps, so that a
disturbance affects all of them. Rank 0 writes the figures. The program fails if the rows' final losses differ.

Rows: `gloo`, `mpi`, `mixed` (each kind of operation as a whole on the library that suits the mix best, or, with only
one kind, every message cut over both), `split` (some kinds cut over both), `auto`, all of them also with `+fuse` (the
program makes one call for each parameter's gradient, and the fuse pass joins them, instead of the program's buckets);
`torch` (torch.distributed's gloo) and `mpi4py`, not through mcr_dl.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from figures_conditions import conditions, load
from figures_rows import COMPUTE, FUSE, OTHERS, OURS, Refused, Rows, bucket_bytes, describe
from figures_sizes import WORKLOADS
from rich.table import Table

import mcr_dl as dist
from mcr_dl import _C
from mcr_dl.base.documents import write_rows
from mcr_dl.commands.console import Console
from mcr_dl.examples import program, report
from mcr_dl.examples.record import Record, Setting
from mcr_dl.measure import shares
from mcr_dl.measure.timing import quartiles
from mcr_dl.trace import _breakdown, saving

ROWS = (*OURS, *(name + FUSE for name in OURS), *OTHERS)
TURN = 2  # steps of a row until the next one's turn


@dataclass
class Entry:
    """A row in measurement."""

    row: str
    trainer: program.Trainer
    measured: int = 0  # steps
    sent: dict[tuple[str, str], int] = field(default_factory=dict)  # their bytes, as Comm.nbytes

    def turn(self, *, measured: bool) -> None:
        """Run the row's next steps."""
        dist.barrier()
        if not measured:
            self.trainer.step(measured=False)
            self.trainer.comm.nbytes.clear()
            return
        with dist.trace.region(self.row):
            for _ in range(TURN):
                self.trainer.step(measured=True)
        self.measured += TURN


def breakdowns() -> dict[str, dict[str, Any]]:
    """Where the time of each row went, from the log: seconds of a step, means over ranks. Calls outside mcr_dl are not
    included.
    """
    mine = {part.name: part for part in _breakdown.by_region(saving.capture(None))}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return {name: _plain(_breakdown.mean([each[name] for each in everyone])) for name in mine}


def _plain(part: _breakdown.Breakdown) -> dict[str, Any]:
    return {"total": part.total, "blocked": part.exposed, "compute": part.compute, "overlapped": part.overlapped}


def carried() -> dict[str, dict[str, int]]:
    """By row, the bytes of all measured messages of this rank by library, from the log. A stripe with a computed share
    counts as one library.
    """
    found: dict[str, dict[str, int]] = {}
    records = dist.log_records()
    for region in dist.trace._regions.regions():
        kept = found.setdefault(region.name, {})
        for record in records:
            if region.begin <= record.issue < region.end and record.backend is not None:
                for name, nbytes in _by_library(record.backend, record.nbytes).items():
                    kept[name] = kept.get(name, 0) + nbytes
    return found


def _by_library(candidate: str, nbytes: int) -> dict[str, int]:
    name = _C.CandidateName(candidate)
    if not shares.is_striped(candidate) or shares.computes(candidate):
        return {name.backend: nbytes}
    first, second = name.parts
    part = nbytes * int(name.variant) // 100
    return {first: part, second: nbytes - part}


def result(
    entry: Entry, record: Record, setting: Setting, part: dict[str, Any] | None, sent: dict[str, int]
) -> dict[str, Any]:
    """One row's entry in the file; times in seconds, means over ranks and medians over steps."""
    steps = entry.measured
    comm = entry.trainer.comm
    low, middle, high = quartiles(record.step_seconds)
    blocked = {kind: median(values) for kind, values in record.communication.items()}
    found: dict[str, Any] = {
        "row": entry.row,
        "routes": dict(describe(entry.row, comm)),
        "step_seconds": {"median": middle, "quartiles": [low, high], "all": record.step_seconds},
        f"{setting.unit}_per_second": setting.per_step / middle,
        "per_second_quartiles": [setting.per_step / high, setting.per_step / low],
        "loss": {"start": record.loss_start, "end": record.loss_end, "course": record.curve},
        "blocked_seconds": blocked,
        "compute_seconds": middle - sum(blocked.values()),
        "bytes_per_step": {
            kind: sum(value for (name, _), value in entry.sent.items() if name == kind) // steps for kind in comm.routes
        },
        "bytes_per_step_by_library": {name: value // steps for name, value in sent.items()},
        "overlapped_seconds": None,
    }
    if part is not None:
        found["overlapped_seconds"] = part["overlapped"] / steps
        found["trace"] = {
            "total": part["total"] / steps,
            "compute": part["compute"] / steps,
            "blocked": {name: value / steps for name, value in part["blocked"].items()},
        }
    return found


def sent_by(entry: Entry, log: dict[str, dict[str, int]]) -> dict[str, int]:
    """Bytes by library: from the log, or those given to another library."""
    if entry.row not in OTHERS:
        return log.get(entry.row, {})
    return {entry.row: sum(entry.sent.values())}


def problems(workload: program.Workload, records: Sequence[Record]) -> list[str]:
    """The problems of the losses, if any."""
    found = []
    for record in records:
        apart = abs(record.loss_end - records[0].loss_end)
        if not apart <= workload.tolerance:
            found.append(
                f"final loss of {record.mode}: expected {records[0].loss_end:.7f} within {workload.tolerance:.0e}, as "
                f"{records[0].mode} has, got {record.loss_end:.7f}"
            )
        if not record.loss_end < record.loss_start:
            found.append(
                f"loss of {record.mode}: expected less than {record.loss_start:.5f}, got {record.loss_end:.5f}"
            )
    return found


def measure(entries: Sequence[Entry], steps: int, deadline: float, console: Console) -> None:
    """Run all rows in turns; the first turn of each, one step, warms up. Ends early, after at least one measured round,
    if another round would not end before the deadline (of `time.time()`, on rank 0).
    """
    rounds = max(1, round(steps / TURN))
    for number in range(rounds + 1):
        start = time.time()
        first = number % len(entries)
        for entry in [*entries[first:], *entries[:first]]:
            entry.turn(measured=number > 0)
        took = time.time() - start
        console.print(f"round {number} of {rounds}: {took:.0f} s")
        late = [number > 0 and time.time() + took > deadline]
        dist.broadcast_object_list(late, src=0)
        if late[0] and number < rounds:
            console.print(f"no time for another round (--seconds): {entries[0].measured} steps of {steps} are measured")
            break


def show(console: Console, setting: Setting, rows: Sequence[dict[str, Any]], unit: str) -> None:
    """Print the table of results."""
    table = Table(title=setting.title, title_justify="left")
    for title in ("row", f"{unit}/s", "ms/step", "computing", "overlapped", "loss"):
        table.add_column(title, justify="left" if title == "row" else "right")
    for row in rows:
        hidden = row["overlapped_seconds"]
        table.add_row(
            row["row"],
            f"{row[f'{unit}_per_second']:,.0f}",
            f"{row['step_seconds']['median'] * 1e3:.0f}",
            f"{row['compute_seconds'] * 1e3:.0f}",
            "" if hidden is None else f"{hidden * 1e3:.0f}",
            f"{row['loss']['end']:.6f}",
        )
    console.print(table)


def make_entries(workload: program.Workload, names: Sequence[str], rows: Rows) -> tuple[list[Entry], dict[str, str]]:
    """The rows that can be measured, and the reasons why the others cannot."""
    entries, refused = [], {}
    for name in names:
        try:
            entries.append(Entry(name, workload.trainer(name, rows.make(name), bucket_bytes(name))))
        except Refused as error:
            refused[name] = str(error)
    return entries, refused


def finish(entries: Sequence[Entry]) -> list[Record]:
    """Each row's record with its final loss, averaged over ranks."""
    records = []
    for entry in entries:
        entry.sent = dict(entry.trainer.comm.nbytes)
        entry.trainer.record.loss_end = entry.trainer.held_out_loss()
        records.append(entry.trainer.record.averaged())
    return records


def results(entries: Sequence[Entry], records: Sequence[Record], setting: Setting) -> list[dict[str, Any]]:
    """The entries of all rows in the file."""
    parts, log = breakdowns(), carried()
    return [
        result(entry, record, setting, None if entry.row in OTHERS else parts[entry.row], sent_by(entry, log))
        for entry, record in zip(entries, records, strict=True)
    ]


def run(given: argparse.Namespace) -> int:
    """Measure, as one rank. Returns the exit status, equal on all ranks."""
    console = report.console(quiet=dist.get_rank() != 0)
    torch.set_num_threads(program.threads())
    begin = time.time()
    document: dict[str, Any] = {name: getattr(given, name) for name in ("workload", "seed", "scale")}
    before = conditions()
    try:
        workload = WORKLOADS[given.workload](given.seed, given.scale)
    except program.WorkloadError as error:
        console.say(f"{given.workload}: {error}", style="red")
        return 2
    setting = workload.setting()
    rows = Rows(workload)
    console.say(setting.title, style="bold")
    entries, refused = make_entries(workload, given.rows, rows)
    for name, reason in refused.items():
        console.say(f"{name}: refused: {reason}")
    report.show_choice(console, rows.trials, "")
    if not entries:
        console.say("no row can be measured", style="red")
        return 2
    bare = Entry(COMPUTE, workload.trainer(COMPUTE, rows.compute()))
    for entry in entries:
        entry.trainer.record.loss_start = entry.trainer.held_out_loss()
    measure([*entries, bare], given.steps, begin + given.seconds, console)
    records = finish(entries)
    wrong = problems(workload, records)
    low, middle, high = quartiles(bare.trainer.record.averaged().step_seconds)
    document |= {
        "steps": entries[0].measured,
        "steps_wanted": given.steps,
        "turn": TURN,
        "setting": {name: getattr(setting, name) for name in ("title", "unit", "per_step", "loss_unit", "details")},
        "tolerance": workload.tolerance,
        "compute_alone_seconds": {"median": middle, "quartiles": [low, high]},
        "communication_alone_seconds": rows.trials,
        "mixes": rows.chosen(),
        "rows": results(entries, records, setting),
        "refused": refused,
        "problems": wrong,
        "conditions": {**before, "load_average_after": load()},
        "seconds": time.time() - begin,
    }
    if dist.get_rank() == 0:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        write_rows(given.out, document)
        show(console, setting, document["rows"], setting.unit)
        console.say(f"{given.out}: {document['seconds']:.0f} s")
    for problem in wrong:
        console.say(f"failed: {problem}", style="red")
    dist.barrier()
    return 1 if wrong else 0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; exits with a one-line error if something in it is wrong."""
    parser = argparse.ArgumentParser(description="Measure a training on several libraries, as one rank of a job.")
    parser.add_argument("--workload", choices=tuple(WORKLOADS), required=True)
    parser.add_argument("--rows", default=",".join(ROWS), help=f"default: {','.join(ROWS)}")
    parser.add_argument("--steps", type=int, default=6, help="measured steps of each row (default: 6)")
    parser.add_argument(
        "--seconds", type=float, default=75.0, help="begin no round that would end later than this (default: 75)"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="times the usual batch (default: 1)")
    parser.add_argument("--seed", type=int, default=program.SEED)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    given = parser.parse_args(arguments)
    given.rows = list(dict.fromkeys(given.rows.split(",")))
    for name in given.rows:
        if name not in (*ROWS, *(other + FUSE for other in OTHERS)):
            parser.error(f"--rows: expected some of {', '.join(ROWS)}, got {name!r}")
    if not given.scale > 0:
        parser.error(f"--scale: expected more than 0, got {given.scale}")
    if given.steps < 1:
        parser.error(f"--steps: expected 1 or more, got {given.steps}")
    return given


def main() -> int:
    """Run as one rank of a job that a launcher has started."""
    given = parse()
    dist.init_process_group("auto")
    status = run(given)
    dist.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
