# SPDX-License-Identifier: Apache-2.0
"""The types of the public API, as a user's type checker sees them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """\
import torch
import mcr_dl

x = torch.ones(4)
flag = bool(x.sum() > 0)
reveal_type(mcr_dl.all_reduce(x, async_op=True))  # Work
reveal_type(mcr_dl.all_reduce(x, mcr_dl.ReduceOp.SUM, None, True))  # Work
reveal_type(mcr_dl.all_reduce(x, mcr_dl.ReduceOp.SUM, None, True, backend="mpi"))  # Work
reveal_type(mcr_dl.all_reduce(x, async_op=flag))  # Work | None
reveal_type(mcr_dl.all_reduce("mpi", x, async_op=True))  # Work
reveal_type(mcr_dl.all_reduce("mpi", x))  # Work | None
reveal_type(mcr_dl.barrier(async_op=True))  # Work
reveal_type(mcr_dl.barrier(None, True))  # Work
reveal_type(mcr_dl.send(x, 1, async_op=True))  # Work
reveal_type(mcr_dl.recv(x, 1))  # int
reveal_type(mcr_dl.recv(x, 1, async_op=True))  # Work
reveal_type(mcr_dl.isend(x, 1))  # Work
reveal_type(mcr_dl.gatherv(x, x, 0, [4], async_op=True))  # Work
mcr_dl.gatherv(x, x, dst=0, rcounts=[4])
mcr_dl.scatterv(x, x, src=0, scounts=[4])
mcr_dl.bcast(x, src=0)
mcr_dl.reduce(x, root=0)
reveal_type(mcr_dl.gatherv(x, x, dst=0, rcounts=[4], async_op=True))  # Work
mcr_dl.all_reduce(x, async_op=True).wait()
mcr_dl.all_redcue(x)  # error: Module has no attribute "all_redcue"
mcr_dl.all_reduce(x).wait()  # error: "None" has no attribute "wait"
mcr_dl.trace.save("traces")
mcr_dl.passes.Fuse()
mcr_dl.schedule.Syndicate()
"""


def _checked(tmp_path: Path, program: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(program)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file=",
        "--strict",
        "--cache-dir",
        str(tmp_path.parent / "mypy-cache"),
    ]
    command += ["--follow-imports=silent", "--show-error-codes", str(path)]
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "mcr"), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.stderr == ""
    return result.stdout


def test_the_types_of_calls(tmp_path: Path) -> None:
    """``async_op=True`` gives a Work, a blocking call nothing; a name that does not exist is an error."""
    said = _checked(tmp_path, PROGRAM)
    found = dict(re.findall(r"program\.py:(\d+): (.*)", said))
    for number, line in enumerate(PROGRAM.splitlines(), 1):
        _, _, expected = line.partition("  # ")
        text = found.pop(str(number), "")
        if expected.startswith("error: "):
            assert expected.removeprefix("error: ") in text, line
        elif expected:
            revealed = re.sub(r"mcr_dl\._C\.|builtins\.", "", text)
            assert revealed == f'note: Revealed type is "{expected}"', line
        else:
            assert text == "", line
    assert found == {}


@pytest.mark.parametrize("page", ["compression", "passes"])
def test_the_types_of_examples(tmp_path: Path, page: str) -> None:
    """A program may annotate its codecs and passes as the pages do."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "class " in block]
    said = _checked(tmp_path, f"import torch\nimport mcr_dl\n\ngrad = torch.ones(8)\n{example}")
    assert said.startswith("Success"), said
