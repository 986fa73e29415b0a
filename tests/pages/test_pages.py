# SPDX-License-Identifier: Apache-2.0
"""The results of docs/add-*.md. `make pages` runs this in the copy to which they have been applied, with its build."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import mcr_dl
from follow import PAGES, ROOT, Block, Misplaced, blocks
from harness import Pools, launchers
from mcr_dl import _C
from mcr_dl.testing.pool import without_launcher
from ranks import pages

CORE = Path(_C.__file__).parent
LIMIT = 120.0  # seconds for a command
worlds = pytest.mark.parametrize("world", [2, 3])


def run(*command: str, limit: float = LIMIT, code: int = 0, **variables: str) -> str:
    """The output of a command in the copy, which must end in time with this exit code."""
    environment = {**without_launcher(), "OMP_NUM_THREADS": "1", **variables}
    got, output = launchers.finish(command, ROOT, environment, limit)
    assert got == code, f"{shlex.join(command)}: exit code {got}\n{output}"
    return output


def make(arguments: list[str], limit: float) -> str:
    """Run `make` as a page says. The copy's build already exists in its own folder: `-o build` uses it as it is."""
    scripts = Path(sysconfig.get_path("scripts"))
    return run("make", "-o", "build", *arguments, f"PY={sys.executable}", f"VENV={scripts.parent}", limit=limit)


def of(page: str, kind: str) -> list[Block]:
    """The blocks of a kind; there must be some."""
    found = [block for block in blocks(page) if block.kind == kind]
    assert found
    return found


def test_this_is_the_copy() -> None:
    """The tests use the copy's own build and sources."""
    assert "pages" in CORE.parts
    assert Path(mcr_dl.__file__).is_relative_to(CORE)
    assert "scan" in {row["name"] for row in _C.ops()}
    assert {"place", "program", "shell", "package"} == {block.kind for page in PAGES for block in blocks(page)}


@worlds
def test_program_of_add_an_op(pools: Pools, world: int) -> None:
    """It ends on every rank with the expected results."""
    for block in of("add-an-op", "program"):
        pools.get("processes", world).run(pages.program, block.text)


@pytest.mark.timeout(900)
def test_commands_of_add_an_op() -> None:
    """They write the generated files, report no problem, and run cases of every backend and type."""
    commands = [shlex.split(line) for block in of("add-an-op", "shell") for line in block.text.splitlines()]
    assert [command[:2] for command in commands] == [["make", "generate"], ["make", "lint"], ["make", "test-python"]]
    stub, matrix = ROOT / "mcr/mcr_dl/_C.pyi", ROOT / "docs/support-matrix.md"
    for path in (stub, matrix):
        assert "scan" not in path.read_text()
    make(commands[0][1:], LIMIT)
    assert re.search(r"^def scan\(tensor: ArrayLike, op: .*async_op: bool = False", stub.read_text(), re.MULTILINE)
    assert "Reduces the tensors of ranks 0 to i" in stub.read_text()
    sections = dict(section.split("\n", 1) for section in matrix.read_text().split("\n## ")[1:])
    assert re.search(r"^\| scan \| native \|$", sections["mpi"], re.MULTILINE)
    assert re.search(r"^\| scan( \| -)+ \|$", sections["gloo"], re.MULTILINE)
    make(commands[1][1:], 600)


@pytest.mark.timeout(1200)
def test_suite_of_add_an_op() -> None:
    """The copy's suite has cases of the operation without further code; all of them pass, and none is skipped."""
    lines = [line for block in of("add-an-op", "shell") for line in block.text.splitlines()]
    (command,) = [line for line in lines if "test-python" in line]
    text = make(shlex.split(command)[1:], 900)
    summary = text[text.rfind("\n=") :]  # make may print a line after it
    passed = re.search(r"(\d+) passed", summary)
    assert passed is not None, text
    assert int(passed[1]) > 2 * len(_C.dtypes()), summary
    assert not re.search(r"skipped|xfailed|failed|error|rerun", summary), text


@worlds
def test_what_refuses_it(pools: Pools, world: int) -> None:
    """Backends and codecs that lack it."""
    pools.get("processes", world).run(pages.refused)


@worlds
def test_passes_leave_it_alone(pools: Pools, world: int) -> None:
    """The operation has none of their traits."""
    pools.get("processes", world).run(pages.left_alone)


@worlds
@pytest.mark.parametrize("red", ["SUM", "AVG", "MAX"])
def test_mcr_bench(tmp_path: Path, world: int, red: str) -> None:
    """It measures the operation on the backend that has it, with checked results."""
    arguments = [
        "--ops",
        "scan",
        "--backends",
        "mpi",
        "--min",
        "4",
        "--max",
        "64K",
        "--factor",
        "16",
        "--redop",
        red,
        "--budget",
        "0.1",
    ]
    for mode in ([], ["--async"]):
        path = tmp_path / f"{len(mode)}.json"
        run(sys.executable, "-m", "mcr_dl.bench", "-n", str(world), *arguments, "--json", str(path), *mode)
        rows = json.loads(path.read_text())["rows"]
        assert rows
        assert {row["operation"] for row in rows} == {"scan"}
        assert {row["wrong"] for row in rows} == {0}


def test_mcr_bench_without_the_operation() -> None:
    """On a backend that lacks the operation, it reports that."""
    text = run(sys.executable, "-m", "mcr_dl.bench", "--ops", "scan", "--backends", "gloo", "--max", "4")
    assert "Not measured: gloo: scan(float32, SUM) is not supported" in text


def test_mcr_tune(tmp_path: Path) -> None:
    """Its table has a curve for the operation, and `auto` uses it."""
    path = tmp_path / "table.json"
    given = ["--quick", "-n", "2", "--ops", "scan", "--backends", "mpi,gloo", "--max", "1K", "--output", str(path)]
    run(sys.executable, "-m", "mcr_dl.tuning", *given)
    text = path.read_text()
    assert '"scan"' in text
    assert "scan" in run(sys.executable, "-m", "mcr_dl.tuning", "show", "--table", str(path), "scan")


def test_programs_of_add_a_backend(pools: Pools) -> None:
    """They end with the expected results."""
    for block in of("add-a-backend", "program"):
        pools.get("processes", 1).run(pages.program, block.text)


def test_the_new_backend(pools: Pools) -> None:
    """It is listed, does every operation on one rank, and rejects the rest."""
    assert mcr_dl.available_backends()["self"] == "ok: copies in one process"
    pools.get("processes", 1).run(pages.alone)
    pools.get("processes", 2).run(pages.too_many)


def test_mcr_bench_on_the_new_backend(tmp_path: Path) -> None:
    """Every operation that one rank can do alone is measured, with checked results."""
    path = tmp_path / "rows.json"
    names = [row["name"] for row in _C.ops() if not row["peer"] and row["name"] != "scan"]
    given = [
        "--ops",
        ",".join(names),
        "--backends",
        "self",
        "--max",
        "4K",
        "--factor",
        "32",
        "--budget",
        "0.1",
        "--json",
        str(path),
    ]
    run(sys.executable, "-m", "mcr_dl.bench", "-n", "1", *given)
    rows = json.loads(path.read_text())["rows"]
    assert {row["operation"] for row in rows} == set(names)
    assert {row["wrong"] for row in rows} == {0}


def test_the_check_of_add_a_backend() -> None:
    """The conformance kit passes on the page's backend; only messages, and what one rank lacks, are skipped."""
    (command,) = [block.text for block in of("add-a-backend", "shell") if "mcr_dl.testing" in block.text]
    python, *arguments = shlex.split(command)
    assert python == "python"
    rows = json.loads(run(sys.executable, *arguments, "--json", "-"))["rows"]
    assert {row["operation"] for row in rows if row["result"] != "passed"} == {"send", "recv", "scan"}
    assert not any(row["failed"] for row in rows)


def test_a_backend_in_a_package_of_its_own(tmp_path: Path) -> None:
    """The page's compiler command makes the module, and the page's entry point names it."""
    (block,) = [block for block in of("add-a-backend", "shell") if "c++" in block.text]
    scripts = sysconfig.get_path("scripts")
    run("bash", "-ec", block.text, PATH=f"{scripts}{os.pathsep}{os.environ['PATH']}")
    (ROOT / "self.so").rename(tmp_path / "self.so")
    (tmp_path / "my_package.py").write_text(f"def module_path():\n    return {str(tmp_path / 'self.so')!r}\n")
    (points,) = of("add-a-backend", "package")
    section, entry = points.text.splitlines()
    group = re.fullmatch(r'\[project\.entry-points\."(.+)"\]', section)
    assert group is not None
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group[1]}]\n{entry.replace(chr(34), '')}\n")
    assert list(importlib.metadata.distributions(path=[str(tmp_path)]))
    program = "import mcr_dl, torch; mcr_dl.init('alone'); mcr_dl.all_reduce(torch.ones(3)); mcr_dl.finalize()"
    path = f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"
    run(sys.executable, "-c", program, PYTHONPATH=path)


def algorithms_test(folder: Path, *sources: Path) -> tuple[int, str]:
    """Compile the test of algorithms against the copy's core, with these sources instead of the core's; run it."""
    tests = [ROOT / "tests/cpp" / f"{name}.cc" for name in ("algorithms_test", "interpreter", "check")]
    program = folder / "algorithms_test"
    paths = [str(path) for path in (*tests, *sources, CORE / "libmcr_dl_core.so")]
    run(
        "c++",
        "-std=c++20",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Isrc",
        *paths,
        f"-Wl,-rpath,{CORE}",
        "-o",
        str(program),
    )
    done = subprocess.run([program], capture_output=True, text=True, timeout=LIMIT, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_new_algorithm(tmp_path: Path) -> None:
    """It gives the reference result on all ranks, and the page's test fails without the algorithm's dependency.

    `make test-cpp` would build all C++ tests twice, with sanitizers: this builds only the test of algorithms.
    """
    assert [block.text for block in of("add-an-algorithm", "shell")] == ["make test-cpp\n"]
    tests = (ROOT / "tests/cpp/algorithms_test.cc").read_text().count("\nTEST(")
    assert algorithms_test(tmp_path) == (0, f"{tests} tests, 0 failures\n")
    source = (ROOT / "src/algorithms/rabenseifner.cc").read_text()
    assert source.count(", {scattered}") == 1
    wrong = tmp_path / "wrong.cc"
    wrong.write_text(source.replace("const auto scattered = ", "").replace(", {scattered}", ""))
    code, text = algorithms_test(tmp_path, wrong)
    assert code == 1
    assert "algorithm:0: failed: all_reduce SUM of 64 " in text


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("`src/a.cc`, after `no such line`:", "expected 'no such line' in src/a.cc"),
        ("`src/a.cc`, after `int`:", "'int' is 2 times in src/a.cc"),
        ("`src/a.cc`, in `void g`, before `int`:", "behind 'void g'"),
        ("`src/a.cc`, somewhere:", "cannot tell where"),
    ],
)
def test_pages_that_cannot_be_followed(tmp_path: Path, page: str, problem: str) -> None:
    """A place that does not exist, or is ambiguous, is an error that names it."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(f"# Page\n\n{page}\n\n```cpp\nint x;\n```\n")
    with pytest.raises(Misplaced, match=re.escape(problem)):
        next(blocks("page", tmp_path)).applied("int a;\nint b;\nvoid g() {}\n")
