# SPDX-License-Identifier: Apache-2.0
"""``python -m mcr_dl.testing``: the conformance kit on backends of this package and of another one, right and wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mcr_dl
from harness import launchers
from harness.commands import refused
from mcr_dl import _C
from mcr_dl.libraries import registry
from mcr_dl.measure.ranks import environments
from mcr_dl.testing import cases, cli, kit, reference, session
from mcr_dl.testing.calls import OPS, SIGNATURES, STYLES, Case, kinds

MAILBOX = Path(__file__).parent / "packages" / "mailbox"
LIMIT = 240.0

# A defect: a line of mailbox.cc, the line instead, and the operation whose cases must fail.
DEFECTS: dict[str, tuple[str, str, str]] = {
    "the last element is not reduced": (
        "const int64_t count = call_.out.count;",
        "const int64_t count = call_.out.count - 1;",
        "all_reduce",
    ),
    "a message has other content": (
        "std::memcpy(slot.into, letter.content.data(), letter.content.size());",
        "std::memset(slot.into, 1, letter.content.size());",
        "recv",
    ),
    "rank 1 ends": (
        "const Head head{kReduction, 0, bytes};",
        "const Head head{kReduction, 0, bytes}; if (office->rank() == 1) _exit(7);",
        "all_reduce",
    ),
    "a message never arrives": (
        "bool poll() override { return office_->filled(*slot_); }",
        "bool poll() override { return office_->filled(*slot_) && false; }",
        "recv",
    ),
}


def planted(source: str, defect: str) -> str:
    """The source with the defect."""
    line, other, _ = DEFECTS[defect]
    assert source.count(line) == 1, line
    return source.replace(line, other)


def built(folder: Path, source: Path) -> Path:
    """Install the package into the folder, with nothing of this repository but the installed mcr_dl; returns it."""
    target = folder / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    command = [*pip, "--no-build-isolation", "--target", str(target), str(source)]
    code, text = launchers.finish(command, folder, launchers.environment(), LIMIT)
    assert code == 0, text
    return target


def rebuilt(mailbox: Path, folder: Path, text: str) -> None:
    """Copy the installed package to ``folder/site``, with a module made of this text."""
    shutil.copytree(mailbox, folder / "site")
    source, module = folder / "mailbox.cc", folder / "site" / "mcr_dl_mailbox" / "mailbox.so"
    source.write_text(text)
    compiler = ["c++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{mcr_dl.include_path()}", str(source)]
    subprocess.run([*compiler, "-o", str(module), mcr_dl.library_path()], check=True, timeout=LIMIT)


def check(*arguments: str, site: Path | None = None) -> tuple[int, str]:
    """Run the kit; its exit code and output."""
    environment = launchers.environment()
    if site is not None:
        environment["PYTHONPATH"] = f"{site}:{environment['PYTHONPATH']}"
    return launchers.finish([sys.executable, "-m", "mcr_dl.testing", *arguments], Path("/"), environment, LIMIT)


def rows(text: str) -> dict[str, dict[str, Any]]:
    """The rows of a report in JSON, by operation."""
    return {row["operation"]: row for row in json.loads(text)["rows"]}


@pytest.fixture(scope="module")
def mailbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the example package is installed."""
    folder = tmp_path_factory.mktemp("mailbox")
    return built(folder, Path(shutil.copytree(MAILBOX, folder / "source")))


class TestAnotherPackagesBackend:
    """tests/packages/mailbox, found by its entry point."""

    def test_it_passes(self, mailbox: Path) -> None:
        """Three methods are native; the core makes the other operations, which are shown as emulated."""
        code, text = check("--backend", "mailbox", "-n", "3", "--json", "-", site=mailbox)
        assert code == 0, text
        found = rows(text)
        assert list(found) == list(OPS)
        assert {row["result"] for row in found.values()} == {"passed"}
        assert {op for op, row in found.items() if row["native"]} == {"all_reduce", "send", "recv"}
        assert {op for op, row in found.items() if row["emulated"]} == set(OPS) - {"all_reduce", "send", "recv"}
        assert {op for op, row in found.items() if row["skipped"]} == {"send", "recv"}  # in groups of one rank
        assert not any(row["failed"] or row["failures"] for row in found.values())

    @pytest.mark.parametrize("defect", DEFECTS)
    def test_it_fails_with_a_defect(self, defect: str, mailbox: Path, tmp_path: Path) -> None:
        """The kit names cases of the operation, on the ranks whose results are wrong; other operations still run."""
        rebuilt(mailbox, tmp_path, planted((MAILBOX / "mailbox.cc").read_text(), defect))
        op = DEFECTS[defect][2]
        arguments = ["--backend", "mailbox", "-n", "2", "--ops", f"{op},barrier", "--limit", "15", "--json", "-"]
        code, text = check(*arguments, site=tmp_path / "site")
        assert code == 1, text
        row = rows(text)[op]
        assert row["result"] == "failed"
        assert row["failed"] == sum(len(each["cases"]) for each in row["failures"]) > 0
        assert any("rank 0" in each["text"] for each in row["failures"])  # today's first case may be right on it
        if op == "all_reduce":
            assert rows(text)["barrier"]["result"] == "passed"

    @pytest.mark.parametrize(
        ("fails", "reason"),
        [
            ('fail("no letters")', "mailbox: no letters"),
            ('throw std::runtime_error("no letters")', "mailbox: connect() threw: no letters"),
        ],
    )
    def test_it_does_not_start(self, mailbox: Path, tmp_path: Path, fails: str, reason: str) -> None:
        """One line with the backend's own reason, and exit code 2."""
        line = "return std::make_unique<MailboxCommunicator>(spec);"
        text = (MAILBOX / "mailbox.cc").read_text()
        assert text.count(line) == 1
        rebuilt(mailbox, tmp_path, text.replace(line, f"if (spec.size() > 1) {fails};\n{line}"))
        code, said = check("--backend", "mailbox", "-n", "2", site=tmp_path / "site")
        assert code == 2, said
        assert len(said.splitlines()) == 1
        assert said.startswith(f"{cli.PROGRAM}: error: backend 'mailbox' does not start on rank 0: ")
        assert reason in said


class TestTheCases:
    """Which cases run."""

    @pytest.mark.parametrize("op", OPS)
    def test_all_are_the_table(self, op: str) -> None:
        """--all has every case of the table once, and fifteen seeds have the same ones."""
        whole = {
            case
            for function, row in SIGNATURES.items()
            if row["op"] == op
            for case in [
                *(each for dtype in _C.dtypes() for each in cases.table(function, "x", dtype, 2, cases.COUNTS)),
                *cases.large(function, "x", 2),
            ]
        }
        everything = kit.selected(kit.Settings("x", 2, (op,), seed=4, everything=True), op)
        assert len(everything) == len(set(everything))
        assert set(everything) == whole

    def test_a_share_has_all_dimensions(self) -> None:
        """One share has every function, type, size, layout, root and form of call."""
        share = [case for op in OPS for case in kit.selected(kit.Settings("x", 3, seed=20781), op)]
        assert {case.function for case in share} == set(SIGNATURES)
        assert {case.dtype for case in share} == set(_C.dtypes())
        assert {case.count for case in share} == {*cases.COUNTS, cases.LARGE}
        assert {case.asynchronous for case in share} == {case.aliased for case in share} == {False, True}
        assert {case.root for case in share} == {0, 1, 2}
        assert {case.red for case in share if OPS[case.op]["reduces"]} == {
            red for red in _C.reductions() if any(_C.reduction_defined(dtype, red) for dtype in _C.dtypes())
        }

    @pytest.mark.parametrize("world", [2, 3, 4, 5])
    @pytest.mark.parametrize("function", ["broadcast", "all_reduce", "scatter", "gather", "isend"])
    def test_groups_roots_and_spellings_are_independent(self, function: str, world: int) -> None:
        """Each pair of them, of one with async_op, and of a root with the way to name it, has a case."""
        table = [case for dtype in _C.dtypes() for case in cases.table(function, "x", dtype, world, cases.COUNTS)]
        groups, modes, ranks = ["world", *session.SUBGROUPS[world]], cases.modes(function), range(world)
        local = (False, True) if "group_src" in kinds(function) else (False,)
        assert {(case.asynchronous, case.group) for case in table} == set(product(modes, groups))
        assert {(case.asynchronous, case.style) for case in table} == set(product(modes, STYLES))
        assert {(case.group, case.style) for case in table} == set(product(groups, STYLES))
        in_world = [case for case in table if case.group == "world"]
        assert {(case.root, case.asynchronous) for case in in_world} == set(product(ranks, modes))
        assert {(case.root, case.by_group_rank) for case in in_world} == set(product(ranks, local))
        large = {(case.asynchronous, case.group == "world") for case in cases.large(function, "x", world)}
        assert large == set(product(modes, (False, True)))
        again = [case for dtype in _C.dtypes() for case in cases.table(function, "x", dtype, world, cases.COUNTS)]
        assert table == again

    @pytest.mark.parametrize("size", [2, 4, 5, 16])
    @pytest.mark.parametrize("dtype", _C.dtypes())
    def test_reductions_are_exact(self, dtype: str, size: int) -> None:
        """Sums and products in the type itself, in any order, are those of the largest type, whatever the ranks."""
        kind = reference.dtype_of(dtype)
        for red in (red for red in ("SUM", "PRODUCT") if _C.reduction_defined(dtype, red)):
            given = [reference.values(kind, 200, rank, red) for rank in range(size)]
            inputs = reference.thinned(given, red)
            assert all(each.dtype == kind for each in inputs)
            changed = [(reference.wide(a) != reference.wide(b)).any() for a, b in zip(given, inputs, strict=True)]
            assert not any(changed) or size > 4
            want = reference.wide(reference.reduced(inputs, red))
            for order in (inputs, inputs[::-1]):
                total = reference.wide(order[0])
                for each in order[1:]:
                    total = total * reference.wide(each) if red == "PRODUCT" else total + reference.wide(each)
                    total = reference.wide(total.to(kind))  # as a library that adds in the type itself
                assert torch.equal(total, want), (red, order is inputs)

    @pytest.mark.parametrize("size", cases.WORLDS)
    def test_groups(self, size: int) -> None:
        """The groups of every number of ranks have existing ranks, each once, and differ."""
        groups = session.SUBGROUPS[size]
        for ranks in groups.values():
            assert set(ranks) <= set(range(size))
            assert len(set(ranks)) == len(ranks) > 0
        assert len({tuple(ranks) for ranks in groups.values()}) == len(groups)


@pytest.mark.parametrize(
    ("told", "counted", "words"),
    [
        ((kit.NATIVE, kit.NATIVE), kit.NATIVE, ""),
        ((kit.SKIPPED, kit.SKIPPED), kit.SKIPPED, ""),
        ((kit.NATIVE, kit.SKIPPED), kit.FAILED, "on all ranks, got native on rank 0, skipped on rank 1"),
        ((kit.EMULATED, kit.NATIVE), kit.FAILED, "on all ranks, got emulated on rank 0, native on rank 1"),
        ((kit.NATIVE, "wrong result"), kit.FAILED, "rank 1: wrong result"),
    ],
)
def test_outcomes_of_ranks(told: tuple[str, ...], counted: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case counts by the outcome of all ranks, and fails where these differ: calls of one group would not match."""
    ranks, result = kit._Ranks(kit.Settings("x", len(told))), kit.Result("all_reduce")
    pool = SimpleNamespace(run=lambda *_, **__: [[text] for text in told])
    monkeypatch.setattr(ranks, "_living", lambda: pool)
    ranks.run([Case("all_reduce")], result)
    assert +result.counts == Counter({counted: 1})
    assert [words in failure.text for failure in result.failures] == [True] * bool(words)


class TestTheCommand:
    """Its arguments, its report and its exit codes."""

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ("--backend mip", "argument --backend: expected one of nccl, shm, mpi, "),
            ("--backend mip", "install the package whose entry point of mcr_dl.backends has it"),
            ("--backend gloo|bf16", "expected a candidate without a codec"),
            ("--backend gloo -n 17", "argument -n: expected 1 to 16 ranks"),
            ("--backend gloo --ops all_redcue", "argument --ops: expected one of broadcast, "),
            ("--backend gloo --limit 0", "argument --limit: expected a number above 0"),
            ("", "arguments are required: --backend"),
        ],
    )
    def test_refused(self, arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
        """One line that says what to do, and exit code 2."""
        error = refused(cli.main, arguments.split(), capsys)
        assert len(error.splitlines()) == 1
        assert error.startswith(f"{cli.PROGRAM}: error: ")
        assert words in error

    @pytest.mark.parametrize("candidate", ["gloo", "gloo:ring"])
    def test_a_backend_that_is_not_here(
        self, candidate: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The reason, before a rank starts; a variant comes with its backend."""
        absent = mcr_dl.BackendUnavailableError("backend 'gloo' is unavailable: for a reason")

        def load(name: str) -> str:
            assert name == "gloo"
            raise absent

        monkeypatch.setattr(registry, "load", load)
        assert cli.main(["--backend", candidate]) == 2
        assert capsys.readouterr().err == f"{cli.PROGRAM}: error: {absent}\n"

    def test_more_than_four_ranks(self) -> None:
        """The reductions of five ranks are exact too."""
        code, text = check("--backend", "shm", "-n", "5", "--ops", "reduce,reduce_scatter", "--json", "-")
        assert code == 0, text
        assert all(row["native"] + row["emulated"] > 100 for row in rows(text).values())

    def test_a_launcher(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        """Ranks of a launcher are refused: the kit replaces ranks that a failure has ended."""
        for name, value in environments(2, {})[0].items():
            monkeypatch.setenv(name, value)
        assert cli.main(["--backend", "gloo"]) == 2
        assert "run it without one" in capsys.readouterr().err

    def test_a_backend_that_does_nothing(self) -> None:
        """Nothing that needs data passes, nor a barrier that waits for no rank."""
        code, text = check("--backend", "null", "-n", "2", "--ops", "broadcast,barrier", "--json", "-")
        assert code == 1
        assert {row["result"] for row in rows(text).values()} == {"failed"}

    def test_the_version(self) -> None:
        """The report on a variant has the version of its backend."""
        registry.load("gloo")
        versions = [cli.document([], kit.Settings(name))["versions"] for name in ("gloo", "gloo:ring")]
        assert versions[0]["backend"].startswith("ok")
        assert versions[0] == versions[1]

    def test_nothing_ran(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Skipped cases are never passed: an operation without any other has not passed."""
        results = [kit.Result("send", Counter({kit.SKIPPED: 7}))]
        assert cli.verdict(results[0]) == "skipped"
        cli.report(results, kit.Settings("some", 1, seed=5))
        text = capsys.readouterr().out
        assert "0 cases passed (0 native, 0 emulated by the core), 0 failed, 7 skipped" in text
        assert "No case could run" in text
        code, text = check("--backend", "gloo", "-n", "1", "--ops", "send")
        assert code == 1
        assert "No case could run" in text

    def test_the_report(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Counts by outcome, the first failures, and the seed."""
        result = kit.Result("all_reduce", Counter({kit.NATIVE: 3, kit.EMULATED: 2, kit.SKIPPED: 1}))
        for number in range(7):
            result.fail([Case("all_reduce", seed=number)], f"rank 1: wrong {number}")
        cli.report([result], kit.Settings("some", 2, seed=5))
        text = capsys.readouterr().out
        assert "FAILED" in text
        assert "wrong 4" in text
        assert "wrong 5" not in text
        assert "all_reduce: 2 more failures" in text
        assert "5 cases passed (3 native, 2 emulated by the core), 7 failed, 1 skipped" in text
        assert "--seed 5" in text
