# SPDX-License-Identifier: Apache-2.0
"""Times calls with two versions of mcr_dl, in turns, on two ranks of this machine.

The later version is the one of the interpreter that runs this script.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from rich.table import Table

import script
from mcr_dl.commands.console import Console
from mcr_dl.measure.ranks import free_port

RANK = Path(__file__).with_name("versions_rank.py")
LIMIT = 300  # seconds for one run


def run(python: str, seconds: float) -> dict[str, float]:
    """The medians of one run with both ranks."""
    base = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [python, str(RANK), str(seconds)], env={**base, "RANK": rank}, stdout=subprocess.PIPE, text=True, cwd="/"
        )
        for rank in ("0", "1")
    ]
    try:
        answers = [rank.communicate(timeout=LIMIT)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(rank.returncode != 0 for rank in ranks):
        sys.exit(f"expected both ranks of {python} to end with 0, got {[rank.returncode for rank in ranks]}")
    found: dict[str, float] = json.loads(answers[0].splitlines()[-1])
    return found


def main() -> None:
    """Run the rounds and print the table."""
    parser = script.parser(__doc__)
    parser.add_argument("--before", default=sys.executable, help="the interpreter that has the earlier version")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each version (5)")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each call in a run (0.3)")
    given = script.parse(parser, rounds=1, seconds=0.001)
    before, rounds, seconds = given.before, given.rounds, given.seconds
    taken: dict[str, list[tuple[float, float]]] = {}
    console = Console(stderr=True)
    for turn in range(rounds):
        console.say(f"round {turn + 1} of {rounds}")
        first, second = (before, sys.executable) if turn % 2 == 0 else (sys.executable, before)
        results = [run(first, seconds), run(second, seconds)]
        earlier, later = results if turn % 2 == 0 else results[::-1]
        for name, time in earlier.items():
            taken.setdefault(name, []).append((time, later[name]))
    table = Table("call", "before, µs", "after, µs", "after / before", "range")
    for name, pairs in taken.items():
        medians = [statistics.median(side) for side in zip(*pairs, strict=True)]
        ratios = sorted(after / first for first, after in pairs)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        table.add_row(name, f"{medians[0]:.2f}", f"{medians[1]:.2f}", f"{statistics.median(ratios):.2f}", spread)
    Console().print_whole(table, 100)


if __name__ == "__main__":
    main()
