# SPDX-License-Identifier: Apache-2.0
"""A program written for torch.distributed runs unchanged except for one import line, or its backend's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import launchers

SCRIPT = launchers.TESTS / "programs" / "tutorial.py"
THEIRS, OURS = "import torch.distributed as dist", "import mcr_dl as dist"

WAYS = {  # import, backend: the rest is the same
    "ours, gloo": (OURS, "gloo"),
    "ours, mpi": (OURS, "mpi"),
    "torch, mcr": (THEIRS, "mcr"),
}


def output(folder: Path, line: str, backend: str) -> list[str]:
    """The output of each of three ranks."""
    text = SCRIPT.read_text()
    assert text.count(f"\n{THEIRS}\n") == 1
    program = folder / "tutorial.py"
    program.write_text(text.replace(f"\n{THEIRS}\n", f"\n{line}\n"))
    options = ["3", "--log-dir", str(folder / "logs"), "--redirects", "3"]
    variables = {"BACKEND": backend, "MCR_DL_TUNING_TABLE": "none"}
    codes, said = launchers.together([([*launchers.TORCHRUN, *options, str(program)], variables)])
    errors = "".join(path.read_text() for path in sorted(folder.glob("logs/**/stderr.log")))
    assert codes == [0], said + errors
    return [path.read_text() for path in sorted(folder.glob("logs/**/stdout.log"))]


@pytest.fixture(scope="module")
def on_torch(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The output of the unchanged program."""
    lines = output(tmp_path_factory.mktemp("torch"), THEIRS, "gloo")
    assert len(lines) == 3
    assert all("initialized: False" in text for text in lines)
    return lines


@pytest.mark.parametrize("way", WAYS)
def test_prints_the_same(way: str, on_torch: list[str], tmp_path: Path) -> None:
    """Line by line on every rank."""
    for rank, (ours, theirs) in enumerate(zip(output(tmp_path, *WAYS[way]), on_torch, strict=True)):
        assert ours.splitlines() == theirs.splitlines(), f"rank {rank}"
