# SPDX-License-Identifier: Apache-2.0
"""Step times of DeepSpeed on its own gloo and on mcr_dl: ZeRO 1, 2, 3 and a mixture of experts, two ranks on one host.

    .venv-integrations/bin/python bench/deepspeed_steps.py

The ranks of all ways live through the whole measurement and take turns, case by case; ratios are taken within a turn.
One way has no communication at all (mcr_dl's backend null): what remains is DeepSpeed's and torch's own time. Writes
docs/results/deepspeed.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import script
from markdown_text import paragraph, table
from mcr_dl.measure.ranks import free_port

WHO = ("gloo", "mpi", "auto")
FLOOR = "null"  # no communication, so its steps compute other numbers
AIM = 2.0
DISTURBED = 0.1  # share of the machine that other processes may use during a measurement
PATIENCE = 180.0  # seconds
GRACE = 10.0  # seconds for ranks that are told to end
ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "MCR_DL_MPI_LIB": "mpich"}


class Ranks:
    """Two ranks that communicate in one way, and sleep between orders. Leaving the context ends them."""

    def __init__(self, who: str, folder: Path, warm_up: int) -> None:
        rank = str(Path(__file__).with_name("deepspeed_rank.py"))
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
        self.who, self.folder, self.orders = who, folder, 0
        self.facts: list[dict[str, Any]] = []  # of each rank
        self.log = folder / f"{who}.txt"
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, *launcher, rank, who, str(folder), str(warm_up)],
                env={**os.environ, **ENVIRONMENT},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *failure: object) -> None:
        self.process.terminate()  # nothing happens if it has ended
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def await_ready(self) -> None:
        """Wait until both ranks take orders."""
        self.facts = [self.read(f"ready-{rank}") for rank in range(2)]

    def read(self, name: str) -> Any:
        """Wait for a file of a rank, and read it."""
        path = self.folder / f"{self.who}-{name}"
        end = time.monotonic() + PATIENCE
        while not path.exists():
            if self.process.poll() not in (None, 0) or time.monotonic() > end:
                sys.exit(f"{self.who} failed:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.005)
        return json.loads(path.read_text())

    def order(self, case: str, steps: int) -> None:
        """Order a case with this many steps; 0: end."""
        part = self.folder / f"{self.who}.part"
        part.write_text(json.dumps([case, steps]))
        part.rename(self.folder / f"{self.who}-order-{self.orders}")
        self.orders += 1

    def step_time(self, case: str, steps: int) -> float:
        """Median milliseconds of a step."""
        self.order(case, steps)
        times: list[float] = self.read(f"times-{self.orders - 1}")
        return statistics.median(times)

    def end(self) -> dict[str, float]:
        """End the ranks; by case, a loss on their last weights."""
        self.order("", 0)
        losses: dict[str, float] = self.read("losses")
        self.process.wait(PATIENCE)
        return losses

    def seconds(self) -> float:
        """Processor time that both ranks have used."""
        return sum(processor_time(each["pid"]) for each in self.facts)


def processor_time(pid: int) -> float:
    """Processor time of one process, with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Elsewhere:
    """The load of processes other than the ranks."""

    def __init__(self, ranks: list[Ranks]) -> None:
        self.ranks = ranks
        self.before = self.read()

    def read(self) -> tuple[float, float]:
        """Processor seconds of other processes, and elapsed seconds times the cores."""
        ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        total, idle = sum(ticks), ticks[3] + ticks[4]
        mine = sum(each.seconds() for each in self.ranks)
        return (total - idle) / os.sysconf("SC_CLK_TCK") - mine, total / os.sysconf("SC_CLK_TCK")

    def share(self) -> float:
        """The share of all cores since the last call, 0 to 1."""
        now, before = self.read(), self.before
        self.before = now
        return max(now[0] - before[0], 0.0) / max(now[1] - before[1], 1e-9)


def rounds(ranks: list[Ranks], given: argparse.Namespace) -> tuple[dict[str, list[dict[str, float]]], int]:
    """By case, for each round: step times by way, in random order; and the number of disturbed measurements.

    Disturbed measurements are repeated, at most --retries times.
    """
    shuffle = random.Random(1)
    found: dict[str, list[dict[str, float]]] = {case: [] for case in ranks[0].facts[0]["cases"]}
    elsewhere = Elsewhere(ranks)
    disturbed = 0
    for number in range(given.rounds):
        for case in shuffle.sample(list(found), len(found)):
            for attempt in range(given.retries + 1):
                elsewhere.share()
                times = {each.who: each.step_time(case, given.steps) for each in shuffle.sample(ranks, len(ranks))}
                if elsewhere.share() < DISTURBED:
                    break
                disturbed += attempt == given.retries
            found[case].append(times)
        print(f"round {number + 1} of {given.rounds}, {disturbed} measurements disturbed so far", flush=True)
    return found, disturbed


def summary(found: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """By case: median step times over the rounds, and the median of the rounds' ratios."""
    result: dict[str, dict[str, float]] = {}
    for case, points in found.items():
        row = {who: statistics.median(point[who] for point in points) for who in (*WHO, FLOOR)}
        row.update(
            {f"gloo / {who}": statistics.median(p["gloo"] / p[who] for p in points) for who in (*WHO[1:], FLOOR)}
        )
        result[case] = row
    return result


def markdown(document: dict[str, Any]) -> str:
    """The report."""
    cases = document["cases"]
    rows = [
        [
            case,
            *(f"{row[who]:.2f}" for who in (*WHO, FLOOR)),
            *(f"{row[f'gloo / {who}']:.2f}" for who in (*WHO[1:], FLOOR)),
        ]
        for case, row in cases.items()
    ]
    missed = [
        f"{case} on {who} ({row[f'gloo / {who}']:.2f}, without communication {row[f'gloo / {FLOOR}']:.2f})"
        for case, row in cases.items()
        for who in WHO[1:]
        if row[f"gloo / {who}"] < AIM
    ]
    verdict = f"missed by {'; '.join(missed)}" if missed else "reached everywhere"
    most = document["loss_difference"]
    losses = f"differ by at most {most:.1g}" if most else "are equal"
    texts = [
        f"`python bench/deepspeed_steps.py --rounds {document['rounds']} --steps {document['steps']}` on "
        f"{document['date']}: {document['machine']}; DeepSpeed {document['deepspeed']}, torch {document['torch']}; "
        f"`auto` uses the tuning table `{document['table']}`.",
        f"Two ranks on one host, one thread each, batch {document['batch']}; small: 0.1 million float32 weights in six "
        "layers, large: 2.5 million. gloo is DeepSpeed's own object on torch.distributed; mpi and auto are mcr_dl. "
        "`none` is mcr_dl on its backend `null`, which does not communicate: the time of DeepSpeed and torch "
        "themselves, and thereby the most that any library could gain. In each of "
        f"{document['rounds']} rounds, every case is done in these four ways, {document['steps']} steps each, in "
        "random order, while the ranks of the others sleep. Medians of a step in milliseconds, and medians of the "
        f"rounds' own ratios. {document['disturbed']} of {document['rounds'] * len(cases)} points were taken while "
        f"other programs had {DISTURBED:.0%} of the machine or more.",
        f"The aim is {AIM:g} everywhere: {verdict}. After all steps the losses of a case {losses}.",
    ]
    ways = (*WHO, "none")
    lines = ["# DeepSpeed's step time", ""]
    for text in texts:
        lines += paragraph(text)
    lines += table(["case", *(f"{way}, ms" for way in ways), *(f"gloo / {way}" for way in ways[1:])], rows)
    return "\n".join(lines)


def main() -> None:
    """Run the command."""
    parser = script.parser(__doc__, reports=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--retries", type=int, default=10, help="of a measurement that other programs have disturbed")
    parser.set_defaults(warm_up=20)
    given = script.parse(parser, rounds=1, steps=2, retries=0, warm_up=1)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        ranks = []
        for who in (*WHO, FLOOR):
            ranks.append(started.enter_context(Ranks(who, Path(folder), given.warm_up)))
            ranks[-1].await_ready()
        found, disturbed = rounds(ranks, given)
        losses = {each.who: each.end() for each in ranks}
    document = {
        "date": str(date.today()),
        "machine": script.machine(),
        "deepspeed": version("deepspeed"),
        "torch": version("torch"),
        "table": ranks[WHO.index("auto")].facts[0]["table"],
        "batch": 4,
        "steps": given.steps,
        "rounds": given.rounds,
        "disturbed": disturbed,
        "loss_difference": max(
            max(losses[who][case] for who in WHO) - min(losses[who][case] for who in WHO) for case in found
        ),
        "cases": summary(found),
    }
    script.publish(given, "deepspeed", document, markdown)


if __name__ == "__main__":
    main()
