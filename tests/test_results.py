# SPDX-License-Identifier: Apache-2.0
"""The JSON of results: one row per line, in what the code writes and in what is committed."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mcr_dl.base import documents

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
ABSENT = pytest.param(RESULTS, marks=pytest.mark.skip("a source distribution has no docs/results"))
COMMITTED = sorted(RESULTS.glob("*.json")) if RESULTS.exists() else [ABSENT]


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_results_have_one_row_per_line(path: Path) -> None:
    """A script that writes a result again changes only the lines whose figures change."""
    text = path.read_text(encoding="utf-8")
    assert text == documents.rows(json.loads(text)) + "\n", "write it with mcr_dl.base.documents.write_rows"


def test_rows(tmp_path: Path) -> None:
    """A row is one line, however long; texts stay as they are; what was written is read back."""
    long = {"name": "µs of a row", "times": list(range(60))}
    document = {
        "short": {"a": 1, "b": [2, 3]},
        7: [long, {"flat": "x" * 200}],
        "empty": [[], {}] * 40,
        "pair": (1, None),
    }
    path = tmp_path / "result.json"
    documents.write_rows(path, document)
    text = path.read_text(encoding="utf-8")
    assert json.loads(text) == json.loads(json.dumps(document))
    lines = text.splitlines()
    assert '  "short": {"a": 1, "b": [2, 3]},' in lines
    assert f"    {json.dumps(long, ensure_ascii=False)}," in lines
    assert f"    {json.dumps({'flat': 'x' * 200})}" in lines
    assert lines.count("    [],") + lines.count("    {},") == 79
    assert documents.rows([]) == "[]"
    assert documents.rows(1.5) == "1.5"


def test_a_row_has_lists_and_objects_in_it() -> None:
    """Each element of a list is a line, with all that it holds; an element with rows of its own is not."""
    row = {"size": 4, "times": {name: [0.125] * 30 for name in ("shm", "mpi")}, "pairs": [[1, 2], [3, 4]]}
    grid = [[index * 1000 + place for place in range(30)] for index in range(3)]
    document = {"jobs": [{"ranks": 2, "points": [row, row]}], "grid": grid, "by size": {"4": row}}
    lines = documents.rows(document).splitlines()
    assert lines.count(f"        {json.dumps(row)},") == lines.count(f"        {json.dumps(row)}") == 1
    assert [line.strip(" ,") for line in lines if line.startswith("    [")] == list(map(json.dumps, grid))
    assert '      "ranks": 2,' in lines
    assert '      "size": 4,' in lines, "an object's parts have lines of their own"
    assert json.loads("\n".join(lines)) == document


def test_a_pipe_gets_the_text(tmp_path: Path) -> None:
    """A file that is written atomically takes the place of another file, and never of a device or a pipe."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with ThreadPoolExecutor() as threads:
        read = threads.submit(pipe.read_text)
        documents.replace_file(link, "text")
        assert read.result(timeout=30) == "text"
    assert pipe.is_fifo()
    assert link.is_symlink()
