# SPDX-License-Identifier: Apache-2.0
"""Runs a program of this folder on several ranks and returns the results of each."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from harness import launchers
from mcr_dl.measure.ranks import free_port

HERE = Path(__file__).resolve().parent
# No downloads, no telemetry.
OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK"), "1")
ENVIRONMENT = {**OFFLINE, "PYTHONWARNINGS": "ignore", "DS_ACCELERATOR": "cpu"}

Found = list[dict[str, Any]]  # by rank


def run(
    program: str,
    size: int,
    arguments: list[str],
    folder: Path,
    limit: float,
    *,
    torchrun: bool = False,
    **variables: str,
) -> Found:
    """Start ``program.py arguments... FOLDER`` on ``size`` ranks; each leaves FOLDER/<rank>.json.

    Args:
        torchrun: start them with torchrun, and not only with its variables.
        variables: additional variables for the ranks' environment.

    Raises AssertionError with their output if one fails, or is not done after ``limit`` seconds.
    """
    folder.mkdir(parents=True)
    log = folder / "output.txt"
    command = [str(HERE / "programs" / f"{program}.py"), *arguments, str(folder)]
    variables = {**ENVIRONMENT, "JOB_SECONDS": str(limit), **variables}
    if torchrun:
        port = free_port()
        command = ["-m", "torch.distributed.run", f"--nproc-per-node={size}", f"--master-port={port}", *command]
    job = launchers.mark()
    ranks = launchers.start("processes", 1 if torchrun else size, command, log, {**variables, **job})
    end = time.monotonic() + limit
    try:
        codes = [rank.wait(max(end - time.monotonic(), 0.1)) for rank in ranks]
    except subprocess.TimeoutExpired:
        codes = ["still running"]
    finally:
        launchers.kill(job)
    assert set(codes) == {0}, f"{program} {arguments}: ended with {codes}\n{log.read_text()[-8000:]}"
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]
