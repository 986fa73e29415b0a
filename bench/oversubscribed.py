# SPDX-License-Identifier: Apache-2.0
"""More ranks than cores: MPICH's shared-memory algorithms against its general ones (see mcr_dl.libraries.mpi).

Starts two ranks for each core, first with MCR-DL's settings (SHARED_CORES) and then with MPICH's own choice, and prints
µs per call on rank 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
import timeit
from collections.abc import Callable
from pathlib import Path

import script

OPERATIONS = ("ALLREDUCE", "BARRIER", "BCAST", "REDUCE")
CALLS = 300


def rank(number: int) -> None:
    """One rank, which makes ``number`` calls of each operation."""
    import torch

    import mcr_dl

    mcr_dl.init_process_group("mpi")
    tensor = torch.ones(1)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: mcr_dl.all_reduce(tensor),
        "barrier": mcr_dl.barrier,
        "broadcast": lambda: mcr_dl.broadcast(tensor, 0),
    }
    for name, call in calls.items():
        call()
        seconds = timeit.timeit(call, number=number) / number
        if mcr_dl.get_rank() == 0:
            print(f"  {name:12} {seconds * 1e6:10.1f} µs", flush=True)
    mcr_dl.destroy_process_group()


def main() -> None:
    """Start the ranks, or be one."""
    parser = script.parser(__doc__)
    parser.add_argument("--calls", type=int, default=CALLS, help=f"of each operation ({CALLS})")
    given = script.parse(parser, calls=3)
    if "MCR_BENCH_RANK" in os.environ:
        rank(given.calls)
        return
    ranks = 2 * (os.cpu_count() or 1)
    own_choice = {f"MPIR_CVAR_{operation}_POSIX_INTRA_ALGORITHM": "auto" for operation in OPERATIONS}
    for title, variables in (("as MCR-DL sets it", {}), ("MPICH's own choice", own_choice)):
        print(f"{ranks} ranks on {os.cpu_count()} cores, 4 B, {title}:", flush=True)
        environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1", "MCR_BENCH_RANK": "1"}
        mpiexec = Path(sys.prefix, "bin", "mpiexec")
        subprocess.run([mpiexec, "-n", str(ranks), sys.executable, *sys.argv], env=environment, check=True)


if __name__ == "__main__":
    main()
