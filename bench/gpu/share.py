# SPDX-License-Identifier: Apache-2.0
"""Tests whether two ranks can share the GPU with NCCL at all: torch.distributed alone, without mcr_dl's runtime.

    python -m gpu.share FOLDER

Exit code 77 and the reason in the last line if they cannot: results of mcr_dl with several ranks then mean nothing.
"""

from __future__ import annotations

import os
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as torch_dist

from gpu import jobs

_RANKS = 2
_NAME = "share"
_SECONDS = 25


def on_rank(kind: str, folder: str) -> None:
    """One all_reduce and one all_gather; jobs.enter has taken the device as in all other stages."""
    rank = int(os.environ["RANK"])
    notes, good = jobs.Notes(folder, _NAME, rank), False
    try:
        torch_dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=timedelta(seconds=_SECONDS))
        x = torch.full((1001,), rank + 1.0, device=kind)
        y = torch.full((1001 * _RANKS,), -1.0, device=kind)
        torch_dist.all_gather_into_tensor(y, x)
        torch_dist.all_reduce(x)
        wanted = torch.arange(1.0, _RANKS + 1).repeat_interleave(1001)
        good = bool((x.cpu() == wanted[::1001].sum()).all()) and bool((y.cpu() == wanted).all())
        notes.write(ok=good, reason="" if good else "wrong values")
    except Exception as error:
        traceback.print_exc()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        notes.write(ok=False, reason=lines[-1] if lines else type(error).__name__)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if good else 1)  # after a failure, an orderly end may hang


def main() -> int:
    """Start the ranks; 0 if they can share, else 77."""
    given = jobs.parser(__doc__, backend=False, ranks=None, limit=40).parse_args()
    problem = jobs.run(
        "gpu.share:on_rank", (given.device, str(given.folder)), ranks=_RANKS, kind=given.device, limit=given.limit,
        log=given.folder / _NAME,
    )  # fmt: skip
    notes = jobs.read(given.folder, _NAME, _RANKS)
    if not problem and all(note.get("ok") for note in notes):
        line = f"{_RANKS} ranks of torch.distributed share the device"
        return jobs.finish(given.folder, _NAME, {"line": line}, "")
    reasons = [note["reason"] for note in notes if note.get("reason")]
    return jobs.not_run(given.folder, _NAME, (reasons or [problem])[0])


if __name__ == "__main__":
    sys.exit(main())
