# SPDX-License-Identifier: Apache-2.0
"""The cost of MCR_DL_MPI_INTERRUPTIBLE in a blocking all_reduce: lives with it and without it take turns, medians.

python bench/interruptible.py                           # two ranks on this machine
torchrun --nproc-per-node 4 bench/interruptible.py
"""

from __future__ import annotations

import os
import statistics
import time

import torch

import mcr_dl
import script

_LIVES = 5
_SIZES = {4: 3000, 1024: 3000, 16384: 3000, 262144: 500}  # bytes: calls in a life


def life(value: str, most: int) -> dict[int, float]:
    """Median µs per call in one life of the runtime, by size, over at most ``most`` calls."""
    os.environ["MCR_DL_MPI_INTERRUPTIBLE"] = value
    mcr_dl.init_process_group("mpi", tuning_table="none")
    found = {}
    for nbytes, wanted in _SIZES.items():
        tensor, times = torch.zeros(nbytes // 4), []
        for _ in range(min(wanted, most)):
            begin = time.perf_counter()
            mcr_dl.all_reduce(tensor)
            times.append(time.perf_counter() - begin)
        found[nbytes] = statistics.median(times) * 1e6
    mcr_dl.destroy_process_group()
    return found


def main() -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--lives", type=int, default=_LIVES, help=f"of each kind ({_LIVES})")
    parser.set_defaults(most=max(_SIZES.values()))
    given = script.parse(parser, lives=1, most=20)
    script.with_ranks(2)
    taken = script.lives(("0", "1"), given.lives, lambda value: life(value, given.most))
    if os.environ["RANK"] != "0":
        return
    for nbytes in _SIZES:
        off, on = (statistics.median(each[nbytes] for each in taken[value]) for value in ("0", "1"))
        print(f"{nbytes:7} B {off:8.2f} µs, interruptible {on:8.2f} µs: {on / off:.2f}")


if __name__ == "__main__":
    main()
