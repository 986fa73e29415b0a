# SPDX-License-Identifier: Apache-2.0
"""The options of the stages; starts ranks, shows their stacks when they hang, and collects their files."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcr_dl.measure import devices
from mcr_dl.measure.ranks import run_local

_STACKS_SECONDS = 1.0
_START_SECONDS = 18.0  # importing torch, meeting, making groups; and ending
_TAIL = 3000
_BEGIN = repr(time.time())
NOT_RUN = 77  # exit code of a stage that does not apply here


def parser(
    text: str | None, *, backend: bool = True, ranks: int | None = 1, limit: float = 60
) -> argparse.ArgumentParser:
    """The options that stages share; ``ranks`` and ``limit`` are defaults. With None there is no ``--ranks``."""
    result = argparse.ArgumentParser(description=text)
    if backend:
        result.add_argument("--backend", default="nccl")
    result.add_argument("--device", default="cuda")
    if ranks is not None:
        result.add_argument("--ranks", type=int, default=ranks)
    result.add_argument("--limit", type=float, default=limit, help="seconds for everything")
    result.add_argument("folder", type=Path)
    return result


def enter(module: str, name: str, kind: str, args: tuple[Any, ...]) -> None:
    """The start of each rank: its device, stacks on SIGUSR1, the function."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    faulthandler.enable()
    devices.take(kind)
    getattr(importlib.import_module(module), name)(*args)
    sys.stdout.flush()


class Notes:
    """One rank's notes so far, in a file that survives the rank."""

    def __init__(self, folder: str, name: str, rank: int) -> None:
        self._path = Path(folder) / f"{name}.{rank}.json"
        self.values: dict[str, Any] = {}

    def write(self, **values: Any) -> None:
        """Add values, and write all of them to the file atomically."""
        self.values.update(values)
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps(self.values, indent=1))
        temporary.replace(self._path)


def read(folder: Path, name: str, ranks: int) -> list[dict[str, Any]]:
    """The notes of all ranks in rank order; empty for a rank that has written none."""
    notes = []
    for rank in range(ranks):
        path = folder / f"{name}.{rank}.json"
        notes.append(json.loads(path.read_text()) if path.exists() else {})
    return notes


def left(limit: float) -> float:
    """The rest of `limit` seconds, which count from the stage's start, if gpu_check.sh has set that."""
    begin = float(os.environ.get("STAGE_BEGIN", _BEGIN).replace(",", "."))  # bash writes the locale's decimal sign
    return limit - (time.time() - begin)


def working_seconds(wanted: float, limit: float) -> float:
    """How long ranks that are killed at the `limit` may work: less than wanted if they could not start otherwise."""
    return max(1.0, min(wanted, left(limit) - _START_SECONDS))


def run(
    entry: str,
    args: tuple[Any, ...],
    *,
    ranks: int,
    kind: str,
    limit: float,
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run ``module:function(*args)`` on ranks of this machine; returns the problem with the ranks' last lines, or
    nothing.

    `limit` is in seconds from the stage's start; ranks that need longer count as hung: their stacks go into their logs,
    and they are killed.
    """
    module, _, name = entry.partition(":")
    problem = ""
    with run_local(enter, (module, name, kind, args), ranks, environment=environment, log=log) as running:
        if not running.wait(max(0.0, left(limit))):
            for pid in running.pids.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
            time.sleep(_STACKS_SECONDS)
            problem = f"not at its end after {limit:.0f} s"
        elif running.first_failure is not None:
            rank, code = running.first_failure
            problem = f"rank {rank} ended with " + (f"signal {-code}" if code < 0 else f"exit code {code}")
    if problem:
        print(f"{entry}: {problem}")
        for rank in range(ranks):
            for stream in ("out", "err"):
                path = log / f"{rank}.{stream}"
                text = path.read_text(errors="replace")[-_TAIL:].strip() if path.exists() else ""
                if text:
                    print(f"--- rank {rank}, std{stream}\n{text}")
    return problem


def finish(folder: Path, stage: str, document: Mapping[str, Any], problem: str) -> int:
    """Write the stage's result for the table; returns its exit code. `document` has "line", the table's text."""
    failed = bool(problem or document.get("failed"))
    result = {**document, "problem": problem, "ok": not failed}
    (folder / f"{stage}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(f"{stage}: {'FAILED' if failed else 'ok'}: {document.get('line', '')}{': ' + problem if problem else ''}")
    return int(failed)


def not_run(folder: Path, stage: str, reason: str) -> int:
    """Write to the table that the stage does not apply here, and why; returns its exit code."""
    document = {"line": reason, "problem": "", "ok": False}
    (folder / f"{stage}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(reason)
    return NOT_RUN
