# SPDX-License-Identifier: Apache-2.0
"""Writes the results of gpu_check.sh as docs/results/gpu.json and gpu.md.

python -m gpu.page FOLDER...: of a stage that ran in several folders, the last result is taken.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gpu.table import SHOWN
from markdown_text import size_text, table
from mcr_dl.base import documents

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
# Long lists that say nothing about a device.
_LEFT_OUT = ("packages", "missing")


def merged(folders: list[Path]) -> dict[str, dict[str, Any]]:
    """By stage: state, seconds, text and result."""
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for stage in json.loads((folder / "gpu_check.json").read_text())["stages"]:
            if stage["state"] == "not run" and stage["stage"] in found:
                continue
            result = {key: value for key, value in stage.pop("result").items() if key not in _LEFT_OUT}
            found[stage["stage"]] = {**stage, "result": result}
    return found


def _machine(stages: dict[str, dict[str, Any]]) -> str:
    facts = stages["versions"]["result"]
    parts = [*facts.get("devices", ()), f"NCCL {facts.get('torch_nccl', '?')}", f"torch {facts['torch']}"]
    return f"{', '.join(parts)}, CUDA {facts['cuda']}, Python {facts['python']}, {facts['cores']} cores"


def _calls(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Host and device µs of raw NCCL, mcr_dl and torch.distributed."""
    lines = []
    for title, sizes in rows.items():
        for nbytes in SHOWN:
            if nbytes not in sizes:
                continue
            row = sizes[nbytes]
            cells = [f"{row[kind][way]:.1f}" for kind in ("host_us", "device_us") for way in ("raw", "mcr_dl", "torch")]
            lines.append([f"{title}, {size_text(int(nbytes))}", *cells])
    header = ["call", *(f"{kind} {way}" for kind in ("host", "device") for way in ("NCCL", "mcr_dl", "torch"))]
    return table(header, lines)


def page(stages: dict[str, dict[str, Any]]) -> str:
    """The report as Markdown."""
    lines = [
        "# On a GPU",
        "",
        f"`bench/gpu_check.sh` on {_machine(stages)}. [What each stage does](../gpu-check.md); "
        "[what was found](README.md#gpu).",
        "",
        "| stage | state | result |",
        "| --- | --- | --- |",
    ]
    lines += [f"| `{name}` | {stage['state']} | {stage['text'].replace('|', '/')} |" for name, stage in stages.items()]
    for name, stage in stages.items():
        if name.startswith("overhead") and stage["result"].get("rows"):
            ranks = name.rpartition("-")[2]
            lines += ["", f"## Calls with {ranks} rank{'s that share the GPU' if ranks != '1' else ''}, µs", ""]
            lines += ["NCCL does nothing for an in-place all_reduce of one rank.", ""] if ranks == "1" else []
            lines += _calls(stage["result"]["rows"])[:-1]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Merge the folders, and write both files."""
    stages = merged([Path(folder) for folder in sys.argv[1:]])
    documents.write_rows(RESULTS / "gpu.json", {"stages": list(stages.values())})
    (RESULTS / "gpu.md").write_text(page(stages), encoding="utf-8")


if __name__ == "__main__":
    main()
