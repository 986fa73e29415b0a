# SPDX-License-Identifier: Apache-2.0
"""The scripts of bench/gpu_check.sh, as far as they can run on the CPU: they detect errors, and report them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from harness import launchers

BENCH = Path(__file__).resolve().parent.parent / "bench"


def _run(module: str, *arguments: str) -> launchers.Ended:
    return launchers.python("-m", module, *arguments, limit=120, PYTHONPATH=str(BENCH))


def _python(program: str, *arguments: str, **more: str) -> str:
    """The output of a program that imports the scripts; it must end with 0."""
    result = launchers.python("-c", program, *arguments, limit=100, **{"PYTHONPATH": str(BENCH), **more})
    assert result.code == 0, result.out + result.err
    return result.out


def test_the_suite_runs(tmp_path: Path) -> None:
    """On two ranks, for a moment."""
    arguments = ("--backend", "gloo", "--device", "cpu", "--ranks", "2", "--seconds", "1", "--limit", "90")
    result = _run("gpu.suite", *arguments, str(tmp_path))
    assert result.code == 0, result.out + result.err
    found = json.loads((tmp_path / "suite-gloo-2.json").read_text())
    assert found["functions"]["run"] == found["functions"]["all"] >= 20
    assert found["missing"] == []
    assert found["failures"] == {}


def test_the_overhead_and_torchs_own(tmp_path: Path) -> None:
    """Calls of mcr_dl and of torch's own backend in one process, for a moment."""
    arguments = ("--backend", "gloo", "--device", "cpu", "--no-raw", "--ranks", "2", "--seconds", "1", "--limit", "90")
    result = _run("gpu.overhead", *arguments, str(tmp_path))
    assert result.code == 0, result.out + result.err
    rows = json.loads((tmp_path / "overhead-2.json").read_text())["rows"]
    assert {"mcr_dl", "torch"} <= set(next(iter(rows["all_reduce blocking"].values()))["host_us"])


def test_the_training_and_torchs_own(tmp_path: Path) -> None:
    """Programs of torch.distributed on both backends end with equal results, and differences are found."""
    result = _run("gpu.training", "--device", "cpu", "--ranks", "1", "--limit", "110", str(tmp_path))
    assert result.code == 0, result.out + result.err
    found = json.loads((tmp_path / "training-1.json").read_text())
    assert {"data_parallel", "fully_sharded", "collectives", "compiled"} <= set(found["ran"])
    assert set(found["step_ms"]) == {"gloo", "mcr"}
    program = (
        "import torch\n"
        "from gpu.training import _same\n"
        "one = [torch.ones(2)]\n"
        "assert _same(one, one) == '' and '0.5' in _same(one, [torch.ones(2) / 2]) and 'got 0' in _same([], one)\n"
    )
    _python(program)


def test_a_rank_is_lost(tmp_path: Path) -> None:
    """The others go on, and a new process takes its place."""
    result = _run("gpu.survive", "--backend", "gloo", "--device", "cpu", "--limit", "100", str(tmp_path))
    assert result.code == 0, result.out + result.err
    assert "3 of 3 processes have a group of all ranks again" in result.out


def test_the_page(tmp_path: Path) -> None:
    """The last result of a stage counts, unless it did not run."""
    facts = {"torch": "2", "cuda": "13", "python": "3", "cores": 4, "devices": ["a GPU"], "torch_nccl": "2.28"}
    for number, state in enumerate(("FAILED", "ok", "not run")):
        (tmp_path / str(number)).mkdir()
        stages = [
            {"stage": "versions", "state": "ok", "text": "", "result": facts},
            {"stage": "streams-1", "state": state, "text": f"text {number}", "result": {}},
        ]
        (tmp_path / str(number) / "gpu_check.json").write_text(json.dumps({"stages": stages}))
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from gpu import page\n"
        "print(page.page(page.merged([Path(sys.argv[1]) / name for name in '012'])))\n"
    )
    shown = _python(program, str(tmp_path))
    assert "a GPU, NCCL 2.28" in shown
    assert "| `streams-1` | ok | text 1 |" in shown


def test_the_suite_sees_wrong_values(tmp_path: Path) -> None:
    """A backend that moves nothing fails."""
    arguments = ("--backend", "null", "--device", "cpu", "--ranks", "1", "--seconds", "1", "--limit", "90")
    result = _run("gpu.suite", *arguments, str(tmp_path))
    assert result.code == 1
    found = json.loads((tmp_path / "suite-null-1.json").read_text())
    assert found["failures"]
    assert "elements differ" in result.out


def test_a_rank_that_hangs_is_shown(tmp_path: Path) -> None:
    """Its stack is in the output, and the ranks are gone."""
    program = (
        "import pathlib, sys\n"
        "from gpu import jobs\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "problem = jobs.run('time:sleep', (600,), ranks=1, kind='cpu', limit=8, log=folder)\n"
        "print('problem:', problem)\n"
    )
    shown = _python(program, str(tmp_path))
    assert "problem: not at its end after 8 s" in shown
    assert "jobs.py" in shown


def test_the_clock_of_a_stage_runs_before_its_ranks_start() -> None:
    """Time since the stage's start counts, so that stacks are shown before the stage itself is ended."""
    program = "from gpu import jobs\nprint(jobs.left(50), jobs.working_seconds(30, 50))\n"
    begin = f"{time.time() - 20:.6f}".replace(".", ",")
    left, working = map(float, _python(program, STAGE_BEGIN=begin).split())
    assert 0 < left <= 30
    assert 1 <= working <= 12


@pytest.mark.parametrize(("interface", "code"), [("lo", 0), ("none-such", 77)])
def test_the_probe_says_why_ranks_cannot_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interface: str, code: int
) -> None:
    """Its last line is torch's reason, for the stages that then do not run."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    result = _run("gpu.share", "--device", "cpu", "--limit", "60", str(tmp_path))
    assert result.code == code, result.out + result.err
    if code:
        assert interface in result.out.splitlines()[-1]
        assert interface in json.loads((tmp_path / "share.json").read_text())["line"]


def test_functions_and_types_take_turns() -> None:
    """No function runs twice before all others have run once; within a function the types take turns."""
    program = (
        "import collections\n"
        "from gpu.suite import cases_of, may_lack\n"
        "cases = cases_of('nccl', 'cpu', 2)\n"
        "names = {case.function for case in cases}\n"
        "first = cases[: len(names)]\n"
        "assert {case.function for case in first} == names\n"
        "assert not any(may_lack('nccl', True, case.dtype, case.red) for case in first if 'reduce' in case.function)\n"
        "mine = [case.dtype for case in cases if case.function == 'all_reduce']\n"
        "types = set(mine)\n"
        "assert len(set(mine[: len(types) + 1])) >= len(types) - 1, mine[:30]\n"
        "assert not may_lack('nccl', True, 'complex64', 'SUM') and may_lack('nccl', True, 'complex64', 'PRODUCT')\n"
    )
    _python(program)


def _stages(folder: Path, *lines: tuple[str, str, str]) -> None:
    text = "".join(f"{name}\t{code}\t3\t{words}\n" for name, code, words in lines)
    (folder / "stages.tsv").write_text(text)


@pytest.mark.parametrize(
    ("stages", "code", "words"),
    [
        ((("build", "0", ""), ("streams-1", "0", "")), 0, "2 stages ok, 0 failed, 0 not run"),
        ((("build", "0", ""), ("streams-1", "124", "")), 1, "ran past its time"),
        ((("build", "1", ""), ("streams-1", "-", "the build has failed")), 1, "0 stages ok, 1 failed, 1 not run"),
        ((("build", "-", "x"),), 1, "0 stages ok, 0 failed, 1 not run"),
        ((("build", "0", ""), ("share", "77", "Duplicate GPU")), 0, "1 stages ok, 0 failed, 1 not run"),
        ((("build", "0", ""), ("sanitizer", "124", "")), 0, "1 stages ok, 0 failed, 1 not run"),
    ],
)
def test_the_table(tmp_path: Path, stages: tuple[tuple[str, str, str], ...], code: int, words: str) -> None:
    """Only stages that have run and are right count as ok, and no stage at all is a failure."""
    _stages(tmp_path, *stages)
    (tmp_path / "streams-1.json").write_text(json.dumps({"line": "17 of 17 checks ok", "problem": ""}))
    (tmp_path / "sanitizer.json").write_text(json.dumps({"line": "not at its end", "problem": "", "slow": True}))
    result = _run("gpu.table", str(tmp_path))
    assert result.code == code, result.err
    assert words in result.out
    assert "REHEARSAL" not in result.out
    assert json.loads((tmp_path / "gpu_check.json").read_text())["stages"][0]["stage"] == "build"


def test_a_rehearsal_says_so(tmp_path: Path) -> None:
    """On top of the table and in the file."""
    _stages(tmp_path, ("build", "0", ""))
    result = _run("gpu.table", str(tmp_path), "--rehearsal")
    assert "A REHEARSAL" in result.out
    assert json.loads((tmp_path / "gpu_check.json").read_text())["rehearsal"] is True
