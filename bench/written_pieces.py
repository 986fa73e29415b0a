# SPDX-License-Identifier: Apache-2.0
"""How fast data moves from one core to another, written through the caches or past them, over some time: a virtual
machine's cores may move (docs/shm.md, "How pieces are written"). Compiles written_pieces.cc.

python bench/written_pieces.py --rounds 300
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from rich.table import Table

import script
from mcr_dl.commands.console import Console

COLUMNS = ("through, 4 slots", "through, 32 slots", "past, 4 slots", "past, 32 slots")
SLOW = 0.5  # of the fastest round: below it, data goes another way between the cores


def compile_program(folder: Path) -> Path:
    """Compile the program; returns its path."""
    program, sources = folder / "written_pieces", script.ROOT / "src"
    files = [str(Path(__file__).with_suffix(".cc")), str(sources / "backends" / "shm" / "copies.cc")]
    subprocess.run(["c++", "-std=c++20", "-O2", "-pthread", f"-I{sources}", *files, "-o", str(program)], check=True)
    return program


def main() -> None:
    """Run the rounds and print the table."""
    parser = script.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="rounds, about 30 ms each (default: 100)")
    parser.add_argument("--pieces", type=int, default=1000, help="pieces of 64 KiB in a round (default: 1000)")
    given = script.parse(parser, rounds=2, pieces=10)
    usable = sorted(os.sched_getaffinity(0))
    cores = (usable[0], usable[-1])
    with tempfile.TemporaryDirectory() as folder:
        command = [str(compile_program(Path(folder))), *map(str, (*cores, given.rounds, given.pieces))]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [[float(word) for word in line.split()] for line in text.splitlines()]
    fastest = max(row[1] for row in rows)
    table = Table("rounds", *COLUMNS, title=f"GB/s from core {cores[0]} to core {cores[1]}, medians")
    kinds: dict[str, Callable[[float], bool]] = {
        "cores that share a cache": lambda rate: rate >= SLOW,
        "others": lambda rate: rate < SLOW,
    }
    for name, belongs in kinds.items():
        found = [row for row in rows if belongs(row[1] / fastest)]
        if found:
            table.add_row(f"{len(found)}: {name}", *(f"{median(column):.1f}" for column in zip(*found, strict=True)))
    Console().print(table)


if __name__ == "__main__":
    main()
