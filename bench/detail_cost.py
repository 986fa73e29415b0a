# SPDX-License-Identifier: Apache-2.0
"""The cost of MCR_DL_DEBUG=detail in a call: lives of the runtime with it and without it take turns, medians.

    python bench/detail_cost.py                           # two ranks on this machine
    torchrun --nproc-per-node 4 bench/detail_cost.py

With --json FILE, also writes the figures there.
"""

from __future__ import annotations

import os
import statistics

import torch

import mcr_dl
import script

_LIVES = 9
# Statement, elements of the tensor, and calls in a life, by name.
_WAYS = {
    "mpi, 4 B, blocking": ('f("mpi", x)', 1, 3000),
    "mpi, 4 B, asynchronous": ('f("mpi", x, async_op=True).wait()', 1, 2000),
    "mpi, 1 MiB, blocking": ('f("mpi", x)', 1 << 18, 60),
    "gloo, 4 B, blocking": ('f("gloo", x)', 1, 300),
    "gloo, 1 MiB, blocking": ('f("gloo", x)', 1 << 18, 60),
}


def life(mode: str, most: int) -> dict[str, float]:
    """Mean µs per call in one life of the runtime, by way, over at most ``most`` calls."""
    os.environ["MCR_DL_DEBUG"] = mode
    mcr_dl.init_process_group(["mpi", "gloo"], tuning_table="none")
    found = {}
    for name, (statement, elements, wanted) in _WAYS.items():
        calls = min(wanted, most)
        names = {"f": mcr_dl.all_reduce, "x": torch.zeros(elements)}
        loop = script.timed_statement(statement, names)
        loop(calls // 10)
        mcr_dl.barrier(backend="mpi")
        found[name] = loop(calls) * 1e6
    mcr_dl.destroy_process_group()
    return found


def main() -> None:
    parser = script.parser(__doc__, figures=True)
    parser.add_argument("--lives", type=int, default=_LIVES, help=f"of each mode ({_LIVES})")
    parser.set_defaults(most=max(calls for _, _, calls in _WAYS.values()))
    given = script.parse(parser, lives=1, most=20)
    script.with_ranks(2)
    taken = script.lives(("off", "detail"), given.lives, lambda mode: life(mode, given.most))
    figures = {
        name: {mode: statistics.median(each[name] for each in lives) for mode, lives in taken.items()} for name in _WAYS
    }
    if os.environ["RANK"] != "0":
        return
    for name, both in figures.items():
        off, detail = both["off"], both["detail"]
        print(f"{name:24} {off:9.2f} µs off, {detail:9.2f} µs in detail: {detail / off:.2f}")
    script.keep(given, figures)


if __name__ == "__main__":
    main()
