# SPDX-License-Identifier: Apache-2.0
"""The time that a call adds to the library's own, on one rank: C, mcr_dl and mpi4py in turns in one process.

Reports the least time of many short blocks. A call without peers has nothing to wait for, so this is stable to a few
nanoseconds even where other programs use the machine.
"""

from __future__ import annotations

import json
import tempfile

from rich.table import Table

import mcr_dl
import overhead
import script
from mcr_dl.commands.console import Console

NBYTES = 16  # of a message


def measure(rounds: int, calls: int) -> dict[str, dict[str, float]]:
    """The least ns per call, by operation and way."""
    mcr_dl.init_process_group(["mpi"], store=mcr_dl.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder:
        pair = overhead.pair_of(overhead.compile_loop(folder))
    ways = {op: pair.ways(op, NBYTES) for op in (*overhead.OPS, overhead.ASYNC)}
    least = {op: dict.fromkeys(of_op, float("inf")) for op, of_op in ways.items()}
    for _ in range(rounds):
        for op, of_op in ways.items():
            for name, way in of_op.items():
                least[op][name] = min(least[op][name], way(calls) * 1e9)
    mcr_dl.destroy_process_group()
    return least


def main() -> None:
    """Print the table."""
    parser = script.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=2000, help="blocks of each way (2000)")
    parser.add_argument("--calls", type=int, default=200, help="calls of a block (200)")
    parser.add_argument("--json", action="store_true", help="print the times in ns as JSON")
    given = script.parse(parser, rounds=2, calls=5)
    least = measure(given.rounds, given.calls)
    if given.json:
        print(json.dumps(least))
        return
    table = Table(title=f"{NBYTES} B on one rank, ns")
    for column in ("call", "C", "mcr_dl adds", "mpi4py adds", "ours/mpi4py's"):
        table.add_column(column, justify="left" if column == "call" else "right")
    for op, times in least.items():
        ours, theirs = times["mcr_dl"] - times["C"], times["mpi4py"] - times["C"]
        table.add_row(op, f"{times['C']:.0f}", f"{ours:.0f}", f"{theirs:.0f}", f"{ours / theirs:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
