# SPDX-License-Identifier: Apache-2.0
"""Times calls with two versions of mcr_dl, in turns: versions.py BEFORE, the Python interpreter that has the other one.

The later version is that of the interpreter which runs this script. Two ranks on this machine.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path

from rich.table import Table

from mcr_dl._console import Console

RANK = Path(__file__).with_name("versions_rank.py")
LIMIT = 300  # seconds for one run


def run(python: str, seconds: float) -> dict[str, float]:
    """The medians of one run with both ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    base = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
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
    if len(sys.argv) not in (2, 4):
        sys.exit("expected: versions.py BEFORE [ROUNDS SECONDS_PER_CALL]")
    before = sys.argv[1]
    rounds, seconds = (int(sys.argv[2]), float(sys.argv[3])) if len(sys.argv) == 4 else (5, 0.3)
    taken: dict[str, list[tuple[float, float]]] = {}
    console = Console(stderr=True)
    for turn in range(rounds):
        console.say(f"round {turn + 1} of {rounds}")
        order = (before, sys.executable) if turn % 2 == 0 else (sys.executable, before)
        results = {python: run(python, seconds) for python in order}
        for name, earlier in results[before].items():
            taken.setdefault(name, []).append((earlier, results[sys.executable][name]))
    table = Table("call", "before, µs", "after, µs", "after / before", "range")
    for name, pairs in taken.items():
        earlier, later = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratios = sorted(after / first for first, after in pairs)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        table.add_row(name, f"{earlier:.2f}", f"{later:.2f}", f"{statistics.median(ratios):.2f}", spread)
    Console().print_whole(table, 100)


if __name__ == "__main__":
    main()
