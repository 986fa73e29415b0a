# SPDX-License-Identifier: Apache-2.0
"""Step times of DeepSpeed on its own gloo and on mcr_dl: ZeRO 1, 2, 3 and a mixture of experts, two ranks on one host.

    .venv-integrations/bin/python bench/deepspeed.py

Each pass runs gloo, mpi and auto in fresh ranks, one after the other in random order; ratios are taken inside a pass.
Writes docs/results/deepspeed.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from markdown_text import table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
WHO = ("gloo", "mpi", "auto")
AIM = 2.0
ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "MCR_DL_MPI_LIB": "mpich"}


def measure(who: str, steps: int) -> dict[str, Any]:
    """Fresh ranks; what rank 0 found."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "times.json"
        rank = str(Path(__file__).with_name("deepspeed_rank.py"))
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}"]
        command = [sys.executable, *launcher, rank, who, str(steps), str(output)]
        done = subprocess.run(
            command, env={**os.environ, **ENVIRONMENT}, check=False, capture_output=True, text=True, timeout=600
        )
        if done.returncode != 0:
            sys.exit(f"{who} failed:\n{done.stderr[-4000:]}")
        found: dict[str, Any] = json.loads(output.read_text())
    return found


def summary(passes: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """By case: median step times over passes, and the median over passes of gloo's time over each other's."""
    result: dict[str, dict[str, float]] = {}
    for case in passes[0]["gloo"]["cases"]:
        points = [{who: statistics.median(each[who]["cases"][case]["times"]) for who in WHO} for each in passes]
        row = {who: statistics.median(point[who] for point in points) for who in WHO}
        row.update({f"gloo / {who}": statistics.median(p["gloo"] / p[who] for p in points) for who in WHO[1:]})
        losses = [each[who]["cases"][case]["loss"] for each in passes for who in WHO]
        row["loss difference"] = max(losses) - min(losses)
        result[case] = row
    return result


def markdown(document: dict[str, Any]) -> str:
    """The report."""
    cases = document["cases"]
    rows = [
        [case, *(f"{row[who]:.2f}" for who in WHO), *(f"{row[f'gloo / {who}']:.2f}" for who in WHO[1:])]
        for case, row in cases.items()
    ]
    missed = [
        f"{case} on {who} ({row[f'gloo / {who}']:.2f})"
        for case, row in cases.items()
        for who in WHO[1:]
        if row[f"gloo / {who}"] < AIM
    ]
    verdict = f"missed by {', '.join(missed)}" if missed else "reached everywhere"
    differences = max(row["loss difference"] for row in cases.values())
    lines = [
        "# DeepSpeed's step time",
        "",
        f"`python bench/deepspeed.py` on {document['date']}: {document['machine']}; DeepSpeed {document['deepspeed']}, "
        f"torch {document['torch']}; `auto` by the table `{document['table']}`.",
        "",
        f"Two ranks on one host, one thread each, batch {document['batch']}; small: 0.1 million float32 weights in six",
        f"layers, large: 2.5 million. Median milliseconds of {document['steps']} steps after warming up, medians over "
        f"{document['passes']} passes of",
        "fresh ranks, in which gloo (DeepSpeed's own object on torch.distributed), mpi and auto take turns in random",
        "order. The ratios are medians of the passes' own: above 1, mcr_dl is faster.",
        "",
        f"The aim is {AIM:g} everywhere: {verdict}. The last losses of all runs of a case differ by at most "
        f"{differences:.1g}.",
        "",
        *table(["case", *(f"{who}, ms" for who in WHO), *(f"gloo / {who}" for who in WHO[1:])], rows),
    ]
    return "\n".join(lines)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--dry", action="store_true", help="print the report instead of writing it")
    given = parser.parse_args()
    passes, shuffle = [], random.Random(1)
    for index in range(given.passes):
        print(f"pass {index + 1} of {given.passes}", flush=True)
        passes.append({who: measure(who, given.steps) for who in shuffle.sample(WHO, len(WHO))})
    document = {
        "date": str(date.today()),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "deepspeed": version("deepspeed"),
        "torch": version("torch"),
        "table": passes[0]["auto"]["table"],
        "batch": 4,
        "steps": given.steps,
        "passes": given.passes,
        "cases": summary(passes),
    }
    if not given.dry:
        (RESULTS / "deepspeed.json").write_text(json.dumps(document, indent=1) + "\n")
        (RESULTS / "deepspeed.md").write_text(markdown(document))
    print(markdown(document))


if __name__ == "__main__":
    main()
