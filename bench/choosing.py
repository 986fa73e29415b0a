# SPDX-License-Identifier: Apache-2.0
"""The cost of choosing: calls that name their backend, and calls that leave it to `auto`, on the backend without
communication. Part of overhead.py.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch

import mcr_dl
import script
from mcr_dl.tables import rules, table
from mcr_dl.tables.host import host, software
from mcr_dl.tables.model import Curve, Sample, Scale, Table

CALLS, SMOKE_CALLS = 100_000, 100  # of each in a round
# Interleaved; "auto" in the paper's spelling and torch's, each next to the same spelling with a backend's name.
WAYS = {
    "named": 'f("null", x)',
    "auto": 'f("auto", x)',
    "named by keyword": 'f(x, backend="null")',
    "auto by keyword": 'f(x, backend="auto")',
    "not named": "f(x)",
}


# `auto` does not choose `null` by measurements, but by the user's rules. With them there are three ranges to search, as
# in real tables.
RULES = "all_reduce:0-2k:null#all_reduce:64k-1m:null"


def _table() -> Table:
    """A table that covers all sizes of the calls."""
    times = {4: 2.0, 1024: 2.0, 65536: 3.0, 1 << 20: 90.0}
    samples = tuple(Sample(nbytes, 1, us, us, us) for nbytes, us in times.items())
    curve = Curve("all_reduce", "float", "float32", "gloo", samples)
    scale = Scale(1, 1, 1, "cpu", "2026-01-01T00:00:00Z", (curve,))
    return Table("2026-01-01T00:00:00Z", host(), software({}), {}, (scale,))


def measure(calls: int = CALLS) -> dict[str, float]:
    """Median ns per call by way. Starts and ends a runtime of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.json"
        table.write(_table(), path)
        store = mcr_dl.HashStore()
        os.environ[rules.VARIABLE] = RULES
        mcr_dl.init_process_group(["null", "gloo"], store=store, rank=0, world_size=1, tuning_table=path)
        del os.environ[rules.VARIABLE]
    names = {"f": mcr_dl.all_reduce, "x": torch.ones(4)}
    assert mcr_dl.explain("all_reduce", 16).candidate == "null"
    loops = {way: script.timed_statement(statement, names) for way, statement in WAYS.items()}
    taken = script.medians(loops, calls)
    mcr_dl.destroy_process_group()
    return taken


if __name__ == "__main__":
    parser = script.parser(__doc__)
    parser.add_argument("--calls", type=int, default=CALLS, help=f"calls in a round ({CALLS:,})")
    for name, nanoseconds in measure(script.parse(parser, calls=SMOKE_CALLS).calls).items():
        print(f"{name:20} {nanoseconds:6.1f} ns")
