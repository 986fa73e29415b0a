# SPDX-License-Identifier: Apache-2.0
"""The checks of the layers of ``src`` and of the Python package (tests/lint) find wrong includes and imports, and the
linter finds consoles that read markup."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lint import layers, modules

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("name", "includes", "expected"),
    [
        ("base/call.h", ["base/ops.h"], None),
        ("base/call.h", ["engine/pass.h"], "src/base/call.h: includes engine/pass.h, which is not below it"),
        ("engine/dispatch.cc", ["base/call.h", "group/group.h", "engine/pass.h"], None),
        ("engine/dispatch.cc", ["passes/fuse/fuse.h"], "includes passes/fuse/fuse.h"),
        ("backends/mpi/mpi.cc", ["plugin/backend.h", "backends/mpi/library.h"], None),
        ("backends/mpi/mpi.cc", ["choose/select.h"], "includes choose/select.h"),
        ("backends/mpi/mpi.cc", ["backends/nccl/lanes.h"], "includes backends/nccl/lanes.h"),
        ("engine/pass.h", ["engine/pass.h"], "these headers include each other"),
        ("misc/some.h", [], "src/misc: expected a folder of LAYERS"),
    ],
)
def test_includes(name: str, includes: list[str], expected: str | None) -> None:
    """Upward includes, other backends, cycles and unknown folders are named; the rest passes."""
    found = layers.problems({name: includes})
    assert not found if expected is None else len(found) == 1 and expected in found[0]


def test_the_sources() -> None:
    """The tree is checked, not an empty folder."""
    assert layers.main() == 0
    assert len(list(layers.SOURCES.rglob("*.h"))) > 50


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({"groups.making": "from mcr_dl.runtime import state", "runtime.state": ""}, None),
        (
            {"runtime.state": "from mcr_dl.groups import making", "groups.making": ""},
            "runtime.state: imports mcr_dl.groups",
        ),
        ({"runtime.state": "import mcr_dl"}, "runtime.state: imports mcr_dl, which is not below it"),
        ({"runtime.state": "from mcr_dl import _C"}, None),
        (
            {"base.a": "from mcr_dl.base import b", "base.b": "def f():\n    from mcr_dl.base import c", "base.c": ""},
            "base.b:2: imports mcr_dl.base.c in a function",
        ),
        (
            {"tables.a": "def f():\n    from mcr_dl.base import c", "base.c": "import rich"},
            None,
        ),
        (
            {"base.a": "def f():\n    from mcr_dl.tables import c", "tables.c": "import rich"},
            "base.a: imports mcr_dl.tables.c, which is not below it",
        ),
        (
            {
                "base.a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mcr_dl.base import b",
                "base.b": "from mcr_dl.base import a",
            },
            "these modules import each other",
        ),
        ({"groups.a": "from mcr_dl.runtime import _own", "runtime._own": ""}, "mcr_dl.runtime._own, which is private"),
        ({"runtime.a": "from mcr_dl.runtime import _own", "runtime._own": ""}, None),
        ({"groups.a": "from mcr_dl.runtime.state import _own", "runtime.state": ""}, "_own, which is private"),
        (
            {"groups.a": "from mcr_dl.runtime import state\nprint(state._own)", "runtime.state": ""},
            "groups.a:2: uses mcr_dl.runtime.state._own, which is private",
        ),
        (
            {"base.a": "import importlib\ndef f():\n    importlib.import_module('mcr_dl.base.b')", "base.b": ""},
            "base.a:3: imports mcr_dl.base.b in a function",
        ),
        (
            {"base.a": "run = import_module('mcr_dl.base.b')", "base.b": "from mcr_dl.base import a"},
            "these modules import each other",
        ),
        (
            {"base.a": "run('mcr_dl.tables.b')", "tables.b": ""},
            "base.a: imports mcr_dl.tables.b, which is not below it",
        ),
        ({"tables.a": "run('mcr_dl.base.b')", "base.b": ""}, None),
        ({"base.a": "from mcr_dl import fully_sharded", "fully_sharded": ""}, "base.a: imports mcr_dl.fully_sharded"),
        ({"base.__main__": "from mcr_dl import fully_sharded", "fully_sharded": ""}, None),
        ({"base.a": "from mcr_dl.base import __main__", "base.__main__": ""}, "base.a: imports mcr_dl.base.__main__"),
        ({"groups.a": "known = name == 'mpi'"}, "groups.a:1: names 'mpi'"),
        ({"libraries.a": "known = name == 'mpi'"}, None),
        ({"misc.a": ""}, "mcr_dl.misc: expected a package of LAYERS"),
    ],
)
def test_imports(sources: dict[str, str], expected: str | None) -> None:
    """Upward and late imports, cycles, private names, backends' names and unknown packages are named."""
    packages = {name.partition(".")[0] for name in sources}
    texts = {f"mcr_dl.{name}": "" for name in packages} | {f"mcr_dl.{name}": text for name, text in sources.items()}
    found = modules.Package({"mcr_dl": "", **texts}).problems()
    assert not found if expected is None else any(expected in each for each in found)


def test_the_package() -> None:
    """The package is checked, not an empty folder."""
    assert modules.main() == 0
    assert len(modules.read().known) > 100


def test_scripts_and_tests_leave_the_path_alone() -> None:
    """bench/ imports nothing of tests/; tests find modules of bench/ through pytest's pythonpath (pyproject.toml)."""
    own_folder = ROOT / "bench" / "lab" / "__main__.py"  # run as a folder, it names its package
    files = {*(ROOT / "bench").rglob("*.py"), *(ROOT / "tests").rglob("*.py")} - {own_folder}
    change = re.compile(r"sys\.path(\.\w+\(|(\[.*\])? \+?= )")
    assert [str(path) for path in files if change.search(path.read_text())] == []
    names = {path.stem for path in (ROOT / "tests").iterdir() if path.suffix in ("", ".py")}
    names -= {path.stem for path in (ROOT / "bench").iterdir()}
    imported = re.compile(rf"^ *(?:import|from) (?:{'|'.join(sorted(names))})\b", re.MULTILINE)
    assert [str(path) for path in (ROOT / "bench").rglob("*.py") if imported.search(path.read_text())] == []


MARKUP = [
    "from rich.console import Console\n",
    "import rich\nrich.print('x')\n",
    "from rich import print\n",
    "from rich.markup import escape\n",
    "import rich.progress\nrich.progress.Progress()\n",
    "from rich.progress import TextColumn\n",
    "from rich.progress import track\n",
    "from rich.text import Text\nText.from_markup('x')\n",
]


def _refused_lines(file: str, code: str) -> list[int]:
    """The lines of the file that use what is banned."""
    command = [sys.executable, "-m", "ruff", "check", "--select", "TID251", "--no-cache", "--output-format", "concise"]
    done = subprocess.run(
        [*command, "--stdin-filename", file, "-"],
        cwd=ROOT, input=code, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return [int(line) for line in re.findall(r":(\d+):\d+: TID251", done.stdout)]


def test_lint_refuses_consoles_that_read_markup() -> None:
    """`make lint` finds each of them, and one in every folder."""
    code = "".join(MARKUP)
    last = [sum(each.count("\n") for each in MARKUP[: place + 1]) for place in range(len(MARKUP))]
    assert _refused_lines("mcr/mcr_dl/planted.py", code) == last
    for folder in ("mcr/mcr_dl_commands", "bench", "tests"):
        assert _refused_lines(f"{folder}/planted.py", MARKUP[0]) == [1], folder


def test_lint_selects_that_rule() -> None:
    file = ROOT / "mcr" / "mcr_dl" / "info" / "cli.py"
    command = [sys.executable, "-m", "ruff", "check", "--show-settings", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert "banned-api (TID251)" in done.stdout
