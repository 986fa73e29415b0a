# SPDX-License-Identifier: Apache-2.0
"""Listing 4 of the MCR-DL paper as printed there, except for the check at its end and, where there is no MPI, ``gloo``
instead of ``mpi``. One rank or several, under run_local or any launcher.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

import mcr_dl
from gpu import jobs


def program(first: str, second: str, kind: str) -> tuple[torch.Tensor, float]:
    """The listing: both libraries and the product at once. Returns the result and its expected value."""

    def tensor() -> torch.Tensor:
        return torch.rand(1, 1)

    def on_device(made: torch.Tensor) -> torch.Tensor:
        return made.cuda() if kind == "cuda" else made

    torch.manual_seed(4)  # equal on all ranks, so that the result is known
    x = on_device(tensor())
    y = on_device(tensor())
    z = on_device(tensor())
    known = [float(each) for each in (x, y, z)]
    mcr_dl.init([first, second])

    h1 = mcr_dl.all_reduce(first, x, async_op=True)
    h2 = mcr_dl.all_reduce(second, y, async_op=True)
    z = z + z
    h1.wait()
    h2.wait()
    result = x + y + z

    ranks = mcr_dl.get_size(first)
    return result, ranks * (known[0] + known[1]) + 2 * known[2]


def on_rank(first: str, kind: str, folder: str, name: str) -> None:
    """Run the listing, and check its values."""
    host = "mpi" if mcr_dl.available_backends()["mpi"].startswith("ok") else "gloo"
    result, wanted = program(first, host, kind)
    got = float(result)
    notes = jobs.Notes(folder, name, mcr_dl.get_rank())
    mcr_dl.finalize()
    notes.write(backends=f"{first} and {host}", got=got, wanted=wanted, ok=abs(got - wanted) <= 1e-5 * abs(wanted))


def main() -> int:
    """Start the ranks; exit code 1 if a value is wrong."""
    given = jobs.parser(__doc__, limit=40).parse_args()
    name = f"listing4-{given.ranks}"
    args = (given.backend, given.device, str(given.folder), name)
    problem = jobs.run(
        "gpu.listing4:on_rank", args, ranks=given.ranks, kind=given.device, limit=given.limit, log=given.folder / name
    )
    notes = jobs.read(given.folder, name, given.ranks)
    good = all(note.get("ok") for note in notes)
    line = f"{notes[0].get('backends', '?')} at once: " + ("values right" if good else f"values wrong: {notes}")
    line += "; one rank, for which NCCL does nothing in place" if given.ranks == 1 else ""
    document: dict[str, Any] = {"notes": notes, "failed": not good, "line": line}
    return jobs.finish(given.folder, name, document, problem)


if __name__ == "__main__":
    sys.exit(main())
