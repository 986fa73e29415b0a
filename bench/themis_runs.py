# SPDX-License-Identifier: Apache-2.0
"""Themis in real runs: the candidate themis(...) on emulated hosts, next to single libraries, hier(...) and its own
fixed order, and the plans' predictions. Needs root. Writes docs/results/themis-runs.md and themis-runs.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import script
import themis_runs_rank
from lab import Lab
from markdown_text import size_text, table
from themis_runs_rank import FIXED, PLANNED

MIB = 1 << 20
POINTS = [("all_reduce", size * MIB) for size in (2, 8, 32)]
POINTS += [(operation, 16 * MIB) for operation in ("reduce_scatter", "all_gather")]
FIGURE_5 = [("all_reduce", 10 * MIB)]
LIMIT = 240  # seconds of one job


class Setting(NamedTuple):
    """A cluster, its dimensions (outermost first), and the backend of each (innermost first)."""

    text: str
    hosts: int
    ranks_per_host: int
    rates: tuple[int, ...]
    sizes: list[int]
    parts: list[str]
    points: list[tuple[str, int]] = POINTS


SETTINGS = [
    Setting("4 hosts as 2 x 2, networks of equal rates", 4, 1, (300, 300), [2, 2], ["gloo", "mpi"]),
    Setting("4 hosts as 2 x 2, the outer network slower", 4, 1, (300, 200), [2, 2], ["gloo", "mpi"]),
    Setting("4 hosts as 2 x 2, the outer network at a quarter", 4, 1, (400, 100), [2, 2], ["gloo", "mpi"]),
    Setting("2 hosts with 2 ranks each", 2, 2, (300, 300), [2, 2], ["shm", "gloo"]),
    # As in the paper's Figure 5; a quarter of the data takes one unit of time, about 200 ms, in the inner dimension.
    Setting("16 hosts as 4 x 4, the outer network at half", 16, 1, (80, 40), [4, 4], ["gloo", "mpi"], FIGURE_5),
]


def job(setting: Setting, rounds: int) -> dict[str, Any]:
    """The measurements in one cluster."""
    print(f"{setting.text}: {'/'.join(map(str, setting.rates))} Mbit/s", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder, Lab(setting.hosts, setting.ranks_per_host, setting.rates) as lab:
        output = Path(folder) / "found.json"
        arguments = json.dumps([setting.sizes, setting.parts, setting.points, rounds, str(output)])
        result = lab.start([sys.executable, themis_runs_rank.__file__, arguments]).wait(LIMIT)
        if not result.ok:
            raise SystemExit(result.text())
        found: dict[str, Any] = json.loads(output.read_text())
    return {**setting._asdict(), **found}


def _row(point: dict[str, Any]) -> list[str]:
    ms, plan = point["ms"], point["plan_ms"]
    return [
        f"{point['operation']}, {size_text(point['nbytes'])}",
        *(f"{ms[name]:.1f}" for name in ("gloo", "mpi", "hier", FIXED, PLANNED)),
        f"{plan[PLANNED]:.1f}",
        f"{ms[PLANNED] / plan[PLANNED]:.2f}",
        f"{plan[FIXED] / plan[PLANNED]:.2f}",
        f"{ms[FIXED] / ms[PLANNED]:.2f}",
        f"{min(ms['gloo'], ms['mpi'], ms['hier']) / ms[PLANNED]:.2f}",
        f"{point['policy']}, {point['chunks']}",
    ]


def _noise(found: dict[str, Any]) -> list[str]:
    """How far equal plans are apart."""
    equal = [row["ms"] for each in found["settings"] for row in each["points"] if row["policy"] == FIXED]
    gains = [ms[FIXED] / ms[PLANNED] for ms in equal]
    if not gains:
        return []
    return [
        f"Where the policy of `themis` is `{FIXED}`, both have the same plan: the {len(gains)} measured gains from",
        f"{min(gains):.2f} to {max(gains):.2f} there are noise, and the others are as uncertain.",
        "",
    ]


def markdown(found: dict[str, Any]) -> str:
    """The report."""
    lines = [
        "# Themis in real runs",
        "",
        f"`sudo python bench/themis_runs.py` on {date.today()}: {script.machine()} for all",
        "hosts of the [lab](../lab.md); gloo uses each host's first NIC, MPI the second. Times in ms: medians over",
        "rounds in which the candidates take turns, on the slowest rank. Sizes are the whole data of a rank.",
        "`baseline` is the candidate with one order for all chunks. The simulator chooses the number of chunks of",
        "both, so neither is tuned by measurement. `hier` is `hier(…)` over the same backends as `themis(…)`. Where",
        "two ranks share a host's NIC, a measured rate is about half of the network's. `plan` is the simulated time",
        "of `themis`, from rates that the ranks measured at the start. Gains divide the time of `baseline` by that",
        "of `themis`, as simulated and as measured. `over the best` divides the best of `gloo`, `mpi` and `hier` by",
        "`themis`.",
        "",
        *_noise(found),
    ]
    header = ["call", "gloo", "mpi", "hier", "baseline", "themis", "plan", "themis / plan", "predicted gain"]
    header += ["measured gain", "over the best", "policy, chunks"]
    for each in found["settings"]:
        rates = "; ".join(f"{rate['mbit']} Mbit/s, {rate['latency_us']} µs" for rate in each["measured"])
        inside = ",".join(each["parts"])
        lines += [f"## {each['text']}: {'/'.join(map(str, each['rates']))} Mbit/s, `themis({inside})`", ""]
        lines += [
            f"Measured rates, innermost first: {rates}.",
            "",
            *table(header, [_row(row) for row in each["points"]]),
        ]
    return "\n".join(lines)


def main() -> None:
    """Measure and report."""
    parser = script.parser(__doc__, reports=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.set_defaults(settings=SETTINGS)
    given = script.parse(parser, rounds=1, settings=[SETTINGS[0]._replace(points=POINTS[:1])])
    settings = [job(setting, given.rounds) for setting in given.settings]
    document = {"date": str(date.today()), "rounds": given.rounds, "settings": settings}
    script.publish(given, "themis-runs", document, markdown)


if __name__ == "__main__":
    main()
