# SPDX-License-Identifier: Apache-2.0
"""Every script in bench/ runs: in its smoke mode, which takes seconds and keeps no results.

They take turns (conftest.py).
"""

from __future__ import annotations

import ast
import json
from argparse import Namespace
from pathlib import Path

import pytest

import markdown_text
import script
import smoke
import syndicate_runs
from harness import launchers
from smoke import BENCH

TESTS = Path(__file__).resolve().parent
# Scripts that need root, a GPU or packages that the development environment lacks, and the tests that run them.
ELSEWHERE = {
    "deepspeed_steps.py": "integrations/test_bench.py",
    "gpu": "test_gpu_check.py",
    "gpu_check.sh": "test_gpu_check.py",
    "lab": "lab/test_smoke.py",
}


def imported() -> set[str]:
    """The modules that files of bench/ import."""
    found: set[str] = set()
    for path in BENCH.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found.update(each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    return found


def scripts() -> list[str]:
    """All scripts in bench/ that people start: files not imported by others or with a main part, shell scripts,
    packages.

    The programs of ranks end in _rank.py.
    """
    modules = imported()
    main = '__name__ == "__main__"'
    files = [path.name for path in BENCH.glob("*.py") if path.stem not in modules or main in path.read_text()]
    files = [name for name in files if not name.endswith("_rank.py")]
    packages = [path.parent.name for path in BENCH.glob("*/__init__.py")]
    return sorted([*files, *(path.name for path in BENCH.glob("*.sh")), *packages])


@pytest.mark.parametrize("name", [name for name in scripts() if name not in ELSEWHERE])
def test_smoke(name: str) -> None:
    """A script without a smoke mode fails here."""
    smoke.run(name)


def test_the_log_on_ranks_of_a_launcher(tmp_path: Path) -> None:
    """log_cost.py measures more on ranks that torchrun has started, and writes its figures to the --json file."""
    figures = tmp_path / "figures.json"
    torchrun = [*launchers.TORCHRUN, "2"]
    text = smoke.run("log_cost.py", "--json", str(figures), launcher=torchrun)
    assert "mpi, asynchronous" in text
    assert "mpi, asynchronous" in figures.read_text()


def test_scripts_that_need_more_are_run_elsewhere() -> None:
    """Each is in the list of scripts that other tests run, and the test names it."""
    assert set(ELSEWHERE) <= set(scripts())
    for name, test in ELSEWHERE.items():
        assert Path(name).stem in (TESTS / test).read_text(), f"tests/{test} does not run bench/{name}"


def test_figures_outlive_a_defect_of_their_report(tmp_path: Path) -> None:
    """A long run has written them before its report or its picture fails."""
    given = Namespace(smoke=False, out=tmp_path)
    with pytest.raises(ZeroDivisionError):
        script.publish(given, "run", {"turns": 0}, lambda document: str(1 / document["turns"]))
    assert json.loads((tmp_path / "run.json").read_text()) == {"turns": 0}


@pytest.mark.parametrize("missing", [syndicate_runs.AUTO, syndicate_runs.ORDERED, "search"])
def test_the_report_of_plans_without_turns(missing: str) -> None:
    """Plans that a program gave up before their first turn leave gaps in the report of syndicate_runs.py."""
    names = [syndicate_runs.AUTO, syndicate_runs.ORDERED, "search"]
    turns = [{"plan": name, "ms": [2.0, 1.0]} for name in names if name != missing]
    plan = {"name": "search", "calls": [1]}
    row = {"model": "dlrm", "text": "2 hosts, NICs", "turns": turns, "plan": plan, "steps": [9.0], "events": []}
    document = {"rounds": 1, "date": "2026-01-02", "machine": "A CPU", "rows": [row], "changes": []}
    text = " ".join(syndicate_runs.markdown(document).split())
    assert ("not measured on 2 hosts" in text) == (missing != syndicate_runs.AUTO)


def test_sizes_in_reports() -> None:
    """A unit only of sizes that are multiples of it, or with digits."""
    texts = {0: "0 B", 1000: "1000 B", 1 << 16: "64 KiB", 1 << 24: "16 MiB", 1_500_000: "1.43 MiB", 1537: "1.5 KiB"}
    assert {nbytes: markdown_text.size_text(nbytes) for nbytes in texts} == texts
