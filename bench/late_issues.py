# SPDX-License-Identifier: Apache-2.0
"""The time from the completion of an operation to the start of the late Issue that depends on it, in one process.

Compiles late_issues.cc against the installed core library.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from rich.table import Table

import script
from mcr_dl import _C
from mcr_dl.commands.console import Console

LIMIT = 300  # seconds


def compile_program(folder: Path) -> Path:
    """Compile the program with the installed core library; returns its path."""
    program = folder / "late_issues"
    library = Path(_C.__file__).parent
    command = ["c++", "-std=c++20", "-O2", "-pthread", f"-I{script.ROOT / 'src'}"]
    source = str(Path(__file__).with_suffix(".cc"))
    linked = [f"-L{library}", "-lmcr_dl_core", f"-Wl,-rpath,{library}", "-o", str(program)]
    subprocess.run([*command, source, *linked], check=True)
    return program


def main() -> None:
    """Run the rounds and print the table."""
    parser = script.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3000, help="completions of each kind (3000)")
    given = script.parse(parser, rounds=20)
    with tempfile.TemporaryDirectory() as folder:
        command = [str(compile_program(Path(folder))), str(given.rounds)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT).stdout)
    table = Table(
        "completion to late Issue, µs", "median", "p90", "p99", title="target: 10 while a thread waits, else 50"
    )
    for kind, times in found.items():
        table.add_row(kind, *(f"{times[key]:.1f}" for key in ("p50", "p90", "p99")))
    Console().print(table)


if __name__ == "__main__":
    main()
