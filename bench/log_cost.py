# SPDX-License-Identifier: Apache-2.0
"""The cost of the log in a call: interleaved rounds with it and without it, medians.

    python bench/log_cost.py                              # one process, the backend that does nothing
    torchrun --nproc-per-node 2 bench/log_cost.py         # the same, and 4 bytes over mpi

With --json FILE, also writes the figures there.
"""

from __future__ import annotations

import statistics

import torch

import mcr_dl
import script
from mcr_dl.measure.ranks import launched

_ROUNDS = 21
# Statement and calls in a round, by name.
_WAYS = {
    "null, blocking": ('f("null", x)', 20_000),
    "null, asynchronous": ('f("null", x, async_op=True).wait()', 10_000),
    "mpi, blocking": ('f("mpi", x)', 5_000),
    "mpi, asynchronous": ('f("mpi", x, async_op=True).wait()', 2_000),
}


def measure(backends: list[str], rounds: int, most: int) -> dict[str, tuple[float, float]]:
    """Median ns per call without and with the log, by way, over rounds of at most ``most`` calls."""
    names = {"f": mcr_dl.all_reduce, "x": torch.ones(1)}
    ways = {name: way for name, way in _WAYS.items() if name.partition(",")[0] in backends}
    loops = {name: script.timed_statement(statement, names) for name, (statement, _) in ways.items()}
    taken: dict[str, dict[bool, list[float]]] = {name: {False: [], True: []} for name in ways}
    for turn in range(rounds + 1):
        for on in (False, True) if turn % 2 else (True, False):
            mcr_dl.set_passes(["log"] if on else [])
            for name, (_, wanted) in ways.items():
                calls = min(wanted, most)
                mcr_dl.barrier(backend=backends[-1])
                seconds = loops[name](calls)
                if turn > 0:  # the first one warms up
                    taken[name][on].append(seconds * 1e9)
    mcr_dl.set_passes([])
    return {name: (statistics.median(both[False]), statistics.median(both[True])) for name, both in taken.items()}


def main() -> None:
    parser = script.parser(__doc__, figures=True)
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"of all ways ({_ROUNDS})")
    parser.set_defaults(most=max(calls for _, calls in _WAYS.values()))
    given = script.parse(parser, rounds=1, most=20)
    if not launched():
        mcr_dl.init_process_group(["null"], store=mcr_dl.HashStore(), rank=0, world_size=1)
        backends = ["null"]
    else:
        backends = ["null", "mpi"]
        mcr_dl.init_process_group(backends)
    found = measure(backends, given.rounds, given.most)
    if mcr_dl.get_rank() == 0:
        for name, (off, on) in found.items():
            print(f"{name:20} {off:8.0f} ns without, {on:8.0f} ns with the log: {on - off:+6.0f} ns")
        figures = {name: {"off_ns": off, "on_ns": on} for name, (off, on) in found.items()}
        script.keep(given, figures)
    mcr_dl.finalize()


if __name__ == "__main__":
    main()
