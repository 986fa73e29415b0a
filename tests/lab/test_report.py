# SPDX-License-Identifier: Apache-2.0
"""The report of `make lab` lists what was measured and what was not. Needs no root; its pictures take seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab import report, report_figures, stages

CONDITIONS = {
    "date": "2026-01-02",
    "cores": 2,
    "cpu": "A CPU",
    "kernel": "6.1",
    "torch": "2.13.0",
    "load_at_the_start": [0.5, 0, 0],
    "load_at_the_end": [1.5, 0, 0],
    "rates": [400, 200],
}


def row(name: str, rate: float) -> dict[str, Any]:
    """A row in the form of figures_rank.py."""
    return {
        "row": name,
        "step_seconds": {"median": 100 / rate},
        "tokens_per_second": rate,
        "per_second_quartiles": [rate * 0.9, rate * 1.1],
        "blocked_seconds": {"all_reduce": 0.25},
        "compute_seconds": 0.5,
        "overlapped_seconds": 0.125,
        "bytes_per_step_by_library": {"gloo": 3 << 20},
    }


def figure(rows: dict[str, float], refused: dict[str, str] | None = None) -> dict[str, Any]:
    """A measurement of one workload."""
    return {
        "workload": "moe",
        "setting": {"unit": "tokens", "title": "A model"},
        "conditions": {"ranks": 2},
        "steps": 4,
        "compute_alone_seconds": {"median": 0.5},
        "communication_alone_seconds": {
            "a on stripe(gloo,mpi,60)": 0.5,
            "a on gloo + b on mpi": 0.6,
            "a on gloo + b on gloo": 0.75,
        },
        "rows": [row(*pair) for pair in rows.items()],
        "refused": refused or {},
        "mixes": {"mixed": "all_to_all on gloo + all_reduce on mpi"},
    }


def test_a_report_of_a_few_stages(tmp_path: Path) -> None:
    """Two stages have written results, one has failed, and the rest is reported as missing."""
    work, docs = tmp_path / "work", tmp_path / "docs"
    work.mkdir()
    (docs / "results").mkdir(parents=True)
    rows = {"gloo": 100.0, "mpi": 60.0, "mixed": 150.0, "auto": 90.0, "torch": 95.0}
    (work / "2x1-moe.json").write_text(json.dumps(figure(rows, {"mpi4py": "not installed"})))
    (work / "2x1-moe-rails.json").write_text(json.dumps(figure({"gloo": 110.0, "mpi": 120.0, "mpi+fuse": 125.0})))
    (work / "1x1-moe.json").write_text(json.dumps(figure({"gloo": 100.0})))
    (work / "4x1-moe.json").write_text(json.dumps(figure({"gloo": 1.0, "mixed": 9.0})))
    records = [
        {"stage": "2x1-moe", "seconds": 5.0, "problems": [], "text": "5 rows", "load": 1.0},
        {"stage": "4x1-moe", "seconds": 9.0, "problems": ["rank 3 (host 3) failed"], "text": "", "load": 2.0},
    ]
    report.write({"full": True, "seconds": 120, "conditions": CONDITIONS, "stages": records}, work, docs)
    text = (docs / "results" / "lab.md").read_text()
    assert "**Failed: 4x1-moe.**" in text
    assert "| 4x1-moe | 9 | 2.0 | **failed**: rank 3 (host 3) failed |" in text
    assert "| moe, 2x1 | gloo | mixed | +50% | +20% (mpi+fuse) | +25% | 31% | **missed** |" in text
    assert "| mpi+fuse, every NIC | 125 |" in text
    assert "2x1, `mpi4py` not measured: not installed." in text
    assert "| mixed | 75% |" in text
    assert "Not run." in text
    assert text.count("Not measured.") == 2
    pictures = {path.name for path in (docs / "images").iterdir()}
    assert pictures == {"lab-topology.png", "lab-moe.png", "lab-gains.png"}
    assert "lab-dlrm" not in text
    whole = json.loads((docs / "results" / "lab.json").read_text())
    assert whole["results"]["2x1"]["moe-rails"]["rows"][1]["row"] == "mpi"
    assert whole["results"]["4x1"] == {}


def test_the_bandwidths_of_both_runs(tmp_path: Path) -> None:
    """Each library on its own NIC, then on both."""
    ways = {name: {"seconds": 1.0, "sent": [25e6, 12.5e6]} for name in report_figures.RAIL_WAYS}
    ways |= {name: {"seconds": 2.0, "sent": [50e6, 25e6]} for name in ("both at once", "cut over both")}
    ways["one after the other"] = {"seconds": 4.0, "sent": [50e6, 25e6]}
    found = {"bytes": 25e6, "tcp": [0.5, 1.0], "all_reduce": ways}
    assert stages.rate(found, "gloo") == [200, 100]
    measured = {"2x1": {"bandwidth": found, "rails": found}}
    text = "\n".join(report.bandwidths(measured, tmp_path, tmp_path, "."))
    assert "| 2x1 | 400 / 200 | 200 + 100 | 200 + 100 | 200 + 100 (0.50) | 200 + 100 (0.50) |" in text
    assert (tmp_path / "lab-nics.png").exists()
