# SPDX-License-Identifier: Apache-2.0
"""Runs the checks of streams, memory, graphs, types and passes (checks.py, checks_*.py).

python -m gpu.streams --backend nccl --ranks 1 FOLDER
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from typing import Any

from gpu import jobs


def _one(check: Any, at: Any) -> dict[str, Any]:
    from gpu.checks import NotRun

    begin = time.perf_counter()
    try:
        measured = check(at)
        result: dict[str, Any] = {"state": "ok", **(measured or {})}
    except NotRun as reason:
        result = {"state": "not run", "reason": str(reason)}
    except Exception as error:
        result = {"state": "failed", "reason": str(error), "trace": traceback.format_exc()}
    result["seconds"] = round(time.perf_counter() - begin, 3)
    return result


def on_rank(backends: list[str], kind: str, folder: str, name: str) -> None:
    """One rank: all checks, noted before and after each."""
    import mcr_dl
    from gpu import device
    from gpu.checks import CHECKS, Setting

    for module in ("gpu.checks_memory", "gpu.checks_types", "gpu.checks_passes"):  # they add their checks
        importlib.import_module(module)
    usable = mcr_dl.available_backends()
    started = [each for each in backends if each == backends[0] or usable.get(each, "").startswith("ok")]
    mcr_dl.init_process_group(started, tuning_table="none")
    rank = mcr_dl.get_rank()
    notes = jobs.Notes(folder, name, rank)
    at = Setting(device.of(kind), backends[0], rank, mcr_dl.get_world_size())
    results: dict[str, Any] = {}
    for title, check in CHECKS.items():
        notes.write(at=title, checks=results)
        results[title] = _one(check, at)
        print(f"{title}: {json.dumps(results[title])}", flush=True)
        if results[title]["state"] == "failed" and mcr_dl.get_world_size() > 1:
            notes.write(at="", checks=results)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # the ranks are out of step: exit handlers may hang. The parent ends the other ranks
    notes.write(at="", checks=results)
    mcr_dl.destroy_process_group()


def merged(notes: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By check: rank 0's numbers, with the worst state of all ranks."""
    result: dict[str, dict[str, Any]] = {}
    for rank, note in enumerate(notes):
        for title, found in note.get("checks", {}).items():
            if title not in result or (found["state"] == "failed" and result[title]["state"] != "failed"):
                result[title] = {**found, "rank": rank}
        if note.get("at"):
            result[note["at"]] = {"state": "failed", "reason": "did not come to its end", "rank": rank}
    return result


def main() -> int:
    """Start the ranks; exit code 1 if a check failed."""
    parser = jobs.parser(__doc__)
    parser.add_argument("--with", dest="others", default="gloo", help="backends that join in where they work")
    given = parser.parse_args()
    name = f"streams-{given.ranks}"
    backends = [given.backend, *(each for each in given.others.split(",") if each and each != given.backend)]
    args = (backends, given.device, str(given.folder), name)
    problem = jobs.run(
        "gpu.streams:on_rank", args, ranks=given.ranks, kind=given.device, limit=given.limit, log=given.folder / name
    )
    checks = merged(jobs.read(given.folder, name, given.ranks))
    states = [found["state"] for found in checks.values()]
    failed = [title for title, found in checks.items() if found["state"] == "failed"]
    left_out = [f"{title} ({found['reason']})" for title, found in checks.items() if found["state"] == "not run"]
    line = f"{states.count('ok')} of {len(states)} checks ok"
    line += f", failed: {', '.join(failed)}" if failed else ""
    line += f", not run: {', '.join(left_out)}" if left_out else ""
    for title in failed:
        print(f"{title}, rank {checks[title]['rank']}: {checks[title].get('trace') or checks[title]['reason']}")
    document = {"checks": checks, "failed": bool(failed) or not checks, "line": line}
    return jobs.finish(given.folder, name, document, problem)


if __name__ == "__main__":
    sys.exit(main())
