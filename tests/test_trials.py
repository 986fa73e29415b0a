# SPDX-License-Identifier: Apache-2.0
"""Where a job has measured for itself, calls that this did not cover try the candidates, and then use the fastest."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as torch_dist

from harness import launchers
from mcr_dl import _C
from mcr_dl.runtime import rounds, state, trials
from mcr_dl.tables import table as files
from mcr_dl.tables.host import host, software
from mcr_dl.tables.model import Curve, Exclusion, Sample, Scale, Table

pytestmark = pytest.mark.timed

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = str(ROOT / "tests" / "programs" / "trials.py")
LIMIT = 60.0
REFINED = "refined while running"


def _leave_table(cache: Path, ranks: int, *, quick: bool, excluded: str = "") -> None:
    """A table of this machine that knows only broadcasts, so that gloo gets all other calls: it comes first."""
    samples = (Sample(4, 9, 1.0, 1.0, 1.0), Sample(1 << 20, 9, 100.0, 100.0, 100.0))
    curves = tuple(Curve("broadcast", "any", "float32", name, samples) for name in ("gloo", "shm"))
    gone = [Exclusion("all_reduce", "float32", excluded, "1 wrong elements")] if excluded else []
    scale = Scale(ranks, 1, ranks, "cpu", files.now(), curves, quick=quick, excluded=tuple(gone))
    path = cache / "mcr_dl" / "tuning" / f"{host().fingerprint}.json"
    files.write(Table(files.now(), host(), software(_C.backend_status()), {}, (scale,)), path)


def _run(
    cache: Path, case: str, ranks: int = 2, *, quick: bool | None = True, excluded: str = "", told: int = 0
) -> list[dict[str, Any]]:
    """The facts of all ranks, or of the first ``told`` ones.

    ``quick``: of the table that they find; None: the one of the last run.
    """
    if quick is not None:
        _leave_table(cache, ranks, quick=quick, excluded=excluded)
    variables = {"MCR_DL_TUNING_TABLE": "", "XDG_CACHE_HOME": str(cache), "MCR_DL_BACKENDS": "gloo,shm"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), PROGRAM, case]
    code, text = launchers.finish(command, ROOT, launchers.environment(**variables), LIMIT)
    assert code == 0, text
    found = {int(rank): json.loads(line) for rank, line in re.findall(r"facts (\d+) (\{.*\})$", text, re.MULTILINE)}
    assert sorted(found) == list(range(told or ranks)), text
    return [found[rank] for rank in sorted(found)]


@pytest.mark.parametrize(("lost", "end"), [("set", "abandon"), ("add", "fail, .*backend of calls; .*; name a backend")])
def test_a_store_that_fails(monkeypatch: pytest.MonkeyPatch, lost: str, end: str) -> None:
    """A rank gives up alone only if the others cannot have counted it: else they may agree without it."""

    def fail(*_: object) -> None:
        raise RuntimeError("the store is lost")

    ends: list[str] = []
    report = SimpleNamespace(
        group="g", closed=False, key="0/0/0", what="calls", largest_counts=False, times=lambda: [[1], [2]],
        abandon=lambda: ends.append("abandon"), fail=lambda text: ends.append(f"fail, {text}"),
    )  # fmt: skip
    monkeypatch.setattr(state, "find", lambda _: SimpleNamespace(ranks=[0, 1], rank=lambda: 0, size=lambda: 2))
    monkeypatch.setattr(torch_dist.PrefixStore, lost, fail)
    agreements = object.__new__(trials._Agreements)
    agreements._store, agreements._open = torch_dist.HashStore(), []
    agreements._begin(report)  # type: ignore[arg-type]
    assert re.match(end, *ends)
    assert not agreements._open


@pytest.mark.parametrize("come", [1, 2])
def test_a_group_that_ends_before_its_answer(come: int) -> None:
    """Nothing stays at the store, whether the other rank never comes, or has come and is about to answer."""
    store, report = torch_dist.HashStore(), SimpleNamespace(closed=True)
    ours, theirs = [rounds.Round(store, "0", rank, 2, values="value/0") for rank in range(2)]
    assert not ours.arrive("times")
    one, agreements = trials._Open(report, ours, 2), object.__new__(trials._Agreements)  # type: ignore[arg-type]
    if come == 2:
        assert theirs.arrive("times")
        assert not agreements._over(one)
        assert not agreements._over(one)
        theirs.answer("answer")
        theirs.leave()
    assert agreements._over(one)
    assert store.num_keys() == 0


@pytest.mark.parametrize(
    ("case", "ranks"),
    [("blocking", 2), ("blocking", 3), ("ended", 2), ("asynchronous", 2), ("asynchronous", 3), ("through_torch", 2)],
)
def test_the_fastest_wins(tmp_path: Path, case: str, ranks: int) -> None:
    """The ranks decide alike, and for shared memory, which is the fastest by far."""
    facts = _run(tmp_path, case, ranks)
    assert all(each == facts[0] for each in facts)
    assert facts[0]["candidate"] == "shm"
    assert REFINED in facts[0]["text"]


def test_refinement_takes_the_results_over(tmp_path: Path) -> None:
    """``refine`` ends the trials, but not what they have found."""
    assert REFINED in _run(tmp_path, "blocking")[0]["later"]


def test_asynchronous_calls_say_nothing_of_blocking_ones(tmp_path: Path) -> None:
    """The results of one form are not used for the other."""
    assert "not measured" in _run(tmp_path, "asynchronous")[0]["later"]


def test_the_results_are_kept(tmp_path: Path) -> None:
    """A later job uses them from its first call, for this kind of calls and this number of ranks."""
    first = _run(tmp_path, "many")[0]
    (path,) = tmp_path.rglob("*.json")
    (scale,) = files.read(path).scales
    assert {(each.operation, each.dtype_class, each.candidate) for each in scale.trials} >= {
        ("all_reduce", "integer", "gloo"),
        ("all_reduce", "integer", "shm"),
    }
    for fact in _run(tmp_path, "few", quick=None):
        assert (fact["candidate"], fact["text"]) == (first["candidate"], first["text"])
    assert "not measured" in _run(tmp_path, "few")[0]["text"]


@pytest.mark.parametrize("case", ["subgroup", "measured_subgroup"])
def test_groups_of_another_shape(tmp_path: Path, case: str) -> None:
    """Two of three ranks: what was measured for three ranks does not count there."""
    facts = _run(tmp_path, case, 3)
    assert facts[0] == facts[1]
    assert facts[0]["candidate"] == "shm"
    assert REFINED in facts[0]["text"]
    assert facts[2] == {}


@pytest.mark.parametrize(("case", "quick"), [("logged", True), ("blocking", False)])
def test_what_is_not_tried(tmp_path: Path, case: str, quick: bool) -> None:
    """Calls that go through passes; any calls where mcr-tune has measured."""
    facts = _run(tmp_path, case, quick=quick)
    assert facts[0]["candidate"] == facts[1]["candidate"] == "gloo"
    assert "not measured" in facts[0]["text"]


@pytest.mark.parametrize("case", ["blocking", "asynchronous", "subgroup"])
def test_candidates_that_were_left_out(tmp_path: Path, case: str) -> None:
    """They are neither tried nor refined, in the form that was measured, in others, or in groups of another shape."""
    facts = _run(tmp_path, case, 3, excluded="shm")
    assert facts[0] == facts[1]
    assert facts[0]["candidate"] == "gloo"
    assert "the only candidate that has it natively (left out by measurement: shm)" in facts[0]["text"]
    assert REFINED not in facts[0]["later"]


def test_a_rank_that_is_far_ahead(tmp_path: Path) -> None:
    """It would wait for an agreement with a rank that waits for its message: the ranks agree to do without."""
    facts = _run(tmp_path, "ahead")
    assert facts[0] == facts[1]
    assert "not measured" in facts[0]["text"]


def test_a_rank_that_is_lost(tmp_path: Path) -> None:
    """A call that waits for an agreement ends as other calls do."""
    (fact,) = _run(tmp_path, "left_alone", told=1)
    assert "rank 1" in fact["text"]
