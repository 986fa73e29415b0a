# SPDX-License-Identifier: Apache-2.0
"""Kills ranks of a job again and again, and lets new processes take their places: wrong results, hangs, growing memory?

    python bench/survive_soak.py --seconds 1200 --every 30

Four ranks check calls on shm and gloo. One or two of the ranks 1 to 3 are killed at a time; the others shrink their
group, and grow it when the new processes have come. Rank 0 lives through all of it: a table shows its memory. Exit code
1: a result was wrong, a rank hung or ended, or something stayed behind.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from pathlib import Path

from rich.progress import BarColumn, TimeRemainingColumn
from rich.table import Table

import script
from mcr_dl.commands.console import Console, bars
from mcr_dl.testing import jobs
from mcr_dl.testing.nursery import Child, Nursery

PROGRAM = Path(__file__).with_name("survive_soak_rank.py")
RANKS = 4
CHANGE = 60.0  # seconds in which the others must have gone on
PAGE = os.sysconf("SC_PAGESIZE")
MIB = 1 << 20


class Soak:
    """The job, with the process that each rank has now."""

    def __init__(self, nursery: Nursery, pause: float, seed: int) -> None:
        self._nursery, self._draw = nursery, random.Random(seed)
        self._arguments = [str(pause)]
        _, self._environments = jobs.agent_store(nursery, RANKS)
        self.ranks = [nursery.start(PROGRAM, self._arguments, each) for each in self._environments]
        self.kills, self.memory = 0, list[int]()

    @property
    def first(self) -> Child:
        """Rank 0, which is never killed."""
        return self.ranks[0]

    def sizes(self) -> list[int]:
        """The sizes of the groups that rank 0 has been in after the first."""
        return [int(size) for size in re.findall(r"^GROUP of (\d+)", self.first.text, re.MULTILINE)]

    def watch(self, seconds: float) -> bool:
        """Look at rank 0's memory for a while; False if it has ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._nursery.wait([self.first], 1.0):
                return False
            resident = Path(f"/proc/{self.first.pid}/statm").read_text().split()[1]
            self.memory.append(int(resident) * PAGE)
        return True

    def kill(self) -> None:
        """Kill one rank or two, start new processes for them, and wait until the group is whole again."""
        before = len(self.sizes())
        lost = self._draw.sample(range(1, RANKS), self._draw.choice([1, 1, 2]))
        for rank in lost:
            os.kill(self.ranks[rank].pid, signal.SIGKILL)
        self.kills += len(lost)
        for rank in lost:
            variables = {**self._environments[rank], "SOAK_REJOIN": "1"}
            self.ranks[rank] = self._nursery.start(PROGRAM, self._arguments, variables)
        deadline = time.monotonic() + CHANGE
        while RANKS not in self.sizes()[before:]:
            if not self.watch(1.0) or time.monotonic() > deadline:
                raise RuntimeError(f"the job has not gone on without ranks {lost}")


def run(nursery: Nursery, seconds: float, every: float, pause: float, seed: int) -> tuple[Soak, str]:
    """The whole job, and its problem, if there is one."""
    soak = Soak(nursery, pause, seed)
    jobs.await_text([soak.first], "READY")
    progress = bars(Console(stderr=True), ["killing", BarColumn(), TimeRemainingColumn()])
    try:
        with progress:
            task = progress.add_task("", total=seconds)
            begin = time.monotonic()
            while time.monotonic() < begin + seconds and soak.watch(every):
                soak.kill()
                progress.update(task, completed=time.monotonic() - begin)
        if soak.first.code is None:
            os.kill(soak.first.pid, signal.SIGUSR1)
        if not nursery.wait(soak.ranks, every + CHANGE):
            return soak, "hang at the end"
    except RuntimeError as error:
        return soak, str(error)
    failed = next((rank for rank, child in enumerate(soak.ranks) if child.code or "CHECKED" not in child.text), None)
    return soak, "" if failed is None else f"rank {failed} ended with code {soak.ranks[failed].code}"


def main() -> int:
    """Run the job and show what became of it."""
    parser = script.parser(__doc__, figures=True)
    parser.add_argument("--seconds", type=float, default=1200.0, help="how long (1200)")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two losses (30)")
    parser.add_argument("--pause", type=float, default=0.01, help="seconds between two steps of a rank (0.01)")
    parser.add_argument("--seed", type=int, default=1)
    given = script.parse(parser, seconds=8.0, every=2.0)
    before = set(os.listdir("/dev/shm"))
    with Nursery() as nursery:
        soak, problem = run(nursery, given.seconds, given.every, given.pause, given.seed)
        sizes = soak.sizes()
        calls = sum(map(int, re.findall(r"^CHECKED (\d+)", "\n".join(rank.text for rank in soak.ranks), re.MULTILINE)))
        if problem:
            print(*(f"--- rank {rank}: code {child.code}\n{child.text}" for rank, child in enumerate(soak.ranks)))
        nursery.clear()
    left = sorted(set(os.listdir("/dev/shm")) - before)
    memory = [soak.memory[len(soak.memory) * place // 100] // MIB for place in (15, 55, 95)] if soak.memory else []
    table = Table(title=f"{given.seconds:.0f} s, {RANKS} ranks", title_justify="left")
    row = {
        "killed ranks": soak.kills,
        "new groups of rank 0": len(sizes),
        "checked calls of the last ranks": calls,
        "rank 0's memory at 15, 55, 95 % (MiB)": ", ".join(map(str, memory)),
        "left in /dev/shm": len(left),
        "problem": problem or "none",
    }
    for name in row:
        table.add_column(name)
    table.add_row(*map(str, row.values()))
    Console().print_whole(table, 100)
    script.keep(given, {**row, "memory": soak.memory, "sizes": sizes})
    return 1 if problem or left or not soak.kills else 0


if __name__ == "__main__":
    sys.exit(main())
