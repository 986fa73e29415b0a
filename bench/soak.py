# SPDX-License-Identifier: Apache-2.0
"""Makes random calls for a long time and checks their results: are any wrong, does any hang, does memory grow?

Operations, backends, types, sizes, groups and passes are mixed at random, blocking and not, equally on all ranks by one
seed. Every call is checked. A line every ten seconds shows the progress; then comes a table, and with --json a file.
Exit code 1: something was wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

import script
from mcr_dl.commands.console import Console
from mcr_dl.measure.ranks import run_local
from soak_rank import MIXES, Settings, soak

MIB = 1 << 20


def _backends(text: str) -> list[str]:
    """Names of backends, separated by commas."""
    names = text.split(",")
    if not set(names) <= {"mpi", "shm"}:
        message = f"expected mpi, shm or both, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return names


def _table(results: list[dict[str, Any]]) -> Table:
    """A row for each number of ranks. The memory is the largest of any rank."""
    grid = Table(title="Soak", title_justify="left")
    for name in ("ranks", "calls", "checked", "asynchronous", "cases", "seconds", "RSS at 15, 55 and 95 % (MiB)"):
        grid.add_column(name, justify="right")
    for found in results:
        memory, calls = found["rss"], max(1, found["calls"])
        shown = [f"{memory[len(memory) * place // 100] / MIB:.0f}" for place in (15, 55, 95)]
        shares = [f"{found[name] / calls:.0%}" for name in ("checked", "asynchronous")]
        numbers = [f"{found['cases']:,}", f"{found['seconds']:.0f}"]
        grid.add_row(str(found["ranks"]), f"{found['calls']:,}", *shares, *numbers, ", ".join(shown))
    return grid


def _run(ranks: int, settings: Settings) -> list[dict[str, Any]] | None:
    """The ranks' results; None if one failed or hung."""
    with tempfile.TemporaryDirectory() as folder:
        with run_local(soak, (settings, folder), ranks, environment={"MCR_DL_TUNING_TABLE": "none"}) as running:
            ended = running.wait(settings.seconds + settings.patience)
            if not ended or running.first_failure is not None:
                print(f"soak: failed or hung: {running.first_failure}", file=sys.stderr)
                for note in sorted(Path(folder).glob("note.*")):
                    print(f"{note.name}: {note.read_bytes().partition(bytes(1))[0].decode()}", file=sys.stderr)
                return None
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]


def main() -> int:
    """Run the test at each number of ranks."""
    parser = script.parser(__doc__, figures=True)
    parser.add_argument("-n", default="2,3", help="numbers of ranks (2,3)")
    parser.add_argument("--calls", type=int, default=500_000, help="calls at each number of ranks (500000)")
    parser.add_argument("--seconds", type=float, default=300.0, help="most time for each number of ranks (300)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gloo", type=float, default=0.1, help="share of the calls that gloo gets (0.1)")
    parser.add_argument("--backend", type=_backends, default="mpi,shm", help="what get the other calls (mpi,shm)")
    given = script.parse(parser, n="2", calls=200, seconds=30.0)
    settings = Settings(given.calls, given.seconds, given.seed, given.gloo, given.backend)
    results = []
    for ranks in map(int, given.n.split(",")):
        found = _run(ranks, settings)
        if found is None:
            return 1
        memory = [max(each) for each in zip(*(rank["rss"] for rank in found), strict=False)]
        results.append({**found[0], "ranks": ranks, "rss": memory})
    console = Console(width=140)
    console.print(_table(results))
    console.print(f"groups' passes: {'; '.join(', '.join(mix) or 'none' for mix in MIXES)}")
    for result in results:
        by = ", ".join(f"{name} {number:,}" for name, number in sorted(result["by"].items()))
        console.print(f"{result['ranks']} ranks: {by}")
    script.keep(given, {"settings": settings._asdict(), "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
